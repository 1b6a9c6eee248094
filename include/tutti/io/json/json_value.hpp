// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::io {

// A JSON value (RFC 8259). Integers are distinct from doubles, because counters must stay exact. Objects keep the order
// in which their members were added.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  // Implicit, so that programs can write values as literals. NOLINTBEGIN(google-explicit-constructor)
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T v) : kind_(Kind::boolean), integer_(v ? 1 : 0) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T v) : kind_(Kind::integer), integer_(static_cast<std::int64_t>(v)) {
    if (!std::in_range<std::int64_t>(v)) fail<UsageError>("json", "a signed 64-bit integer", v);
  }
  template <std::floating_point T>
  Json(T v) : kind_(Kind::number), number_(static_cast<double>(v)) {}
  Json(std::string v) : kind_(Kind::string), text_(std::move(v)) {}
  Json(std::string_view v) : kind_(Kind::string), text_(v) {}
  Json(const char* v) : kind_(Kind::string), text_(v) {}
  Json(Array v) : kind_(Kind::array), items_(std::move(v)) {}
  Json(Object v) : kind_(Kind::object), members_(std::move(v)) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] static Json array(std::initializer_list<Json> items = {}) { return Json(Array(items)); }
  // Throws UsageError if a key occurs twice.
  [[nodiscard]] static Json object(std::initializer_list<Member> members = {}) {
    Json result{Object()};
    for (const Member& m : members) {
      if (result.find(m.first) != nullptr) fail<UsageError>("json", "each key once", {"'", m.first, "' twice"});
      result.set(m.first, m.second);
    }
    return result;
  }

  [[nodiscard]] bool is_null() const noexcept { return kind_ == Kind::null; }
  [[nodiscard]] bool is_bool() const noexcept { return kind_ == Kind::boolean; }
  [[nodiscard]] bool is_integer() const noexcept { return kind_ == Kind::integer; }
  [[nodiscard]] bool is_double() const noexcept { return kind_ == Kind::number; }
  [[nodiscard]] bool is_string() const noexcept { return kind_ == Kind::string; }
  [[nodiscard]] bool is_array() const noexcept { return kind_ == Kind::array; }

  [[nodiscard]] std::string_view kind() const noexcept {
    switch (kind_) {
      case Kind::null:
        return "null";
      case Kind::boolean:
        return "a bool";
      case Kind::integer:
        return "an integer";
      case Kind::number:
        return "a double";
      case Kind::string:
        return "a string";
      case Kind::array:
        return "an array";
      case Kind::object:
        break;
    }
    return "an object";
  }

  // Each of these throws DataError if the value is of another kind. where: names the value in the message.
  [[nodiscard]] bool as_bool(std::string_view where = "json") const {
    require(Kind::boolean, "a bool", where);
    return integer_ != 0;
  }
  [[nodiscard]] std::int64_t as_integer(std::string_view where = "json") const {
    require(Kind::integer, "an integer", where);
    return integer_;
  }
  // Returns a double, or an integer converted to double.
  [[nodiscard]] double as_double(std::string_view where = "json") const {
    if (is_integer()) return static_cast<double>(integer_);
    require(Kind::number, "a number", where);
    return number_;
  }
  [[nodiscard]] const std::string& as_string(std::string_view where = "json") const {
    require(Kind::string, "a string", where);
    return text_;
  }
  [[nodiscard]] const Array& as_array(std::string_view where = "json") const {
    require(Kind::array, "an array", where);
    return items_;
  }
  [[nodiscard]] const Object& as_object(std::string_view where = "json") const {
    require(Kind::object, "an object", where);
    return members_;
  }

  // Returns the member with that key, or nullptr if there is no such member or this is not an object.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept {
    for (const Member& m : members_)
      if (m.first == key) return &m.second;
    return nullptr;
  }
  // Returns the member with that key. Throws DataError if the member is missing.
  [[nodiscard]] const Json& at(std::string_view key, std::string_view where = "json") const {
    (void)as_object(where);
    const Json* found = find(key);
    if (found == nullptr) fail<DataError>(where, {"a member '", key, "'"}, "no such member");
    return *found;
  }

  // Adds a member or replaces its value. A null becomes an object.
  Json& set(std::string_view key, Json value) {
    if (is_null()) kind_ = Kind::object;
    require(Kind::object, "an object", "json");
    for (Member& m : members_)
      if (m.first == key) {
        m.second = std::move(value);
        return *this;
      }
    members_.emplace_back(std::string(key), std::move(value));
    return *this;
  }
  // Adds an item. A null becomes an array.
  Json& push_back(Json value) {
    if (is_null()) kind_ = Kind::array;
    require(Kind::array, "an array", "json");
    items_.push_back(std::move(value));
    return *this;
  }

  // Equal if kind and value are equal and members have the same order.
  friend bool operator==(const Json& a, const Json& b) {
    return a.kind_ == b.kind_ && a.integer_ == b.integer_ && a.number_ == b.number_ && a.text_ == b.text_ &&
           a.items_ == b.items_ && a.members_ == b.members_;
  }

 private:
  enum class Kind : std::uint8_t { null, boolean, integer, number, string, array, object };

  void require(Kind kind, std::string_view expected, std::string_view where) const {
    if (kind_ != kind) fail<DataError>(where, expected, this->kind());
  }

  // One member for each kind, of which one is in use: a std::variant of seven types takes every compiler far more time.
  Kind kind_ = Kind::null;
  std::int64_t integer_ = 0;
  double number_ = 0;
  std::string text_;
  Array items_;
  Object members_;
};

}  // namespace tutti::io
