// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::io {

// A JSON value (RFC 8259). Integers are kept apart from doubles, because counters must stay exact; objects keep the
// order in which their members were added.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  // Implicit, so that values are written as literals. NOLINTBEGIN(google-explicit-constructor)
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T v) : value_(v) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T v) : value_(static_cast<std::int64_t>(v)) {
    if (!std::in_range<std::int64_t>(v)) fail<UsageError>("json", "an integer of 64 bits with sign", std::to_string(v));
  }
  template <std::floating_point T>
  Json(T v) : value_(static_cast<double>(v)) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(std::string_view v) : value_(std::string(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(Array v) : value_(std::move(v)) {}
  Json(Object v) : value_(std::move(v)) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] static Json array(std::initializer_list<Json> items = {}) { return Json(Array(items)); }
  // UsageError if a key is there twice.
  [[nodiscard]] static Json object(std::initializer_list<Member> members = {}) {
    Json result{Object()};
    for (const Member& m : members) {
      if (result.find(m.first) != nullptr) fail<UsageError>("json", "each key once", "'" + m.first + "' twice");
      result.set(m.first, m.second);
    }
    return result;
  }

  [[nodiscard]] bool is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_bool() const noexcept { return std::holds_alternative<bool>(value_); }
  [[nodiscard]] bool is_integer() const noexcept { return std::holds_alternative<std::int64_t>(value_); }
  [[nodiscard]] bool is_double() const noexcept { return std::holds_alternative<double>(value_); }
  [[nodiscard]] bool is_string() const noexcept { return std::holds_alternative<std::string>(value_); }
  [[nodiscard]] bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }

  [[nodiscard]] std::string_view kind() const noexcept {
    constexpr std::string_view names[] = {"null",     "a bool",   "an integer", "a double",
                                          "a string", "an array", "an object"};
    return names[value_.index()];
  }

  // Each throws DataError where the value is of another kind; `where` names the value in the message.
  [[nodiscard]] bool as_bool(std::string_view where = "json") const { return get<bool>("a bool", where); }
  [[nodiscard]] std::int64_t as_integer(std::string_view where = "json") const {
    return get<std::int64_t>("an integer", where);
  }
  // A double, or an integer converted to one.
  [[nodiscard]] double as_double(std::string_view where = "json") const {
    if (is_integer()) return static_cast<double>(as_integer());
    return get<double>("a number", where);
  }
  [[nodiscard]] const std::string& as_string(std::string_view where = "json") const {
    return get<std::string>("a string", where);
  }
  [[nodiscard]] const Array& as_array(std::string_view where = "json") const { return get<Array>("an array", where); }
  [[nodiscard]] const Object& as_object(std::string_view where = "json") const {
    return get<Object>("an object", where);
  }

  // The member with that key, or nullptr; also nullptr where this is no object.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept {
    if (const auto* members = std::get_if<Object>(&value_))
      for (const Member& m : *members)
        if (m.first == key) return &m.second;
    return nullptr;
  }
  // The member with that key; DataError where there is none.
  [[nodiscard]] const Json& at(std::string_view key, std::string_view where = "json") const {
    (void)as_object(where);
    const Json* found = find(key);
    if (found == nullptr) fail<DataError>(where, "a member '" + std::string(key) + "'", "none");
    return *found;
  }

  // Adds a member, or gives it a new value. A null becomes an object.
  Json& set(std::string_view key, Json value) {
    if (is_null()) value_ = Object();
    for (Member& m : get<Object>("an object", "json"))
      if (m.first == key) {
        m.second = std::move(value);
        return *this;
      }
    get<Object>("an object", "json").emplace_back(std::string(key), std::move(value));
    return *this;
  }
  // Adds an item. A null becomes an array.
  Json& push_back(Json value) {
    if (is_null()) value_ = Array();
    get<Array>("an array", "json").push_back(std::move(value));
    return *this;
  }

  // Same kind and value; members in the same order.
  friend bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

 private:
  template <class T>
  [[nodiscard]] const T& get(std::string_view expected, std::string_view where) const {
    const T* v = std::get_if<T>(&value_);
    if (v == nullptr) fail<DataError>(where, expected, kind());
    return *v;
  }
  template <class T>
  [[nodiscard]] T& get(std::string_view expected, std::string_view where) {
    return const_cast<T&>(std::as_const(*this).get<T>(expected, where));
  }

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace tutti::io
