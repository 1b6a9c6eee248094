// SPDX-License-Identifier: MIT
#include "tools/trainer/options_json.hpp"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "tools/trainer/option_table.hpp"

namespace tutti::trainer {

namespace {

struct WriteJson {
  io::Json object = io::Json::object();
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T& field, const char*, Scope = Scope::job) {
    if constexpr (std::is_same_v<T, std::uint64_t>)
      object.set(name,
                 std::to_string(field));  // integers are exact up to 2^53 in many JSON readers, and up to 2^63 here
    else if constexpr (std::is_same_v<T, std::string>)
      object.set(name, utf8_text(field));
    else
      object.set(name, json_of(field));
  }
  template <class T>
  static io::Json json_of(const T& v) {
    return io::Json(v);
  }
  template <class T>
  static io::Json json_of(const std::optional<T>& v) {
    if (!v) return {};
    if constexpr (std::is_same_v<T, std::string>)
      return utf8_text(*v);
    else
      return io::Json(*v);
  }
};

struct ReadScopes {
  std::map<std::string, Scope> scopes{};
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T&, const char*, Scope scope = Scope::job) {
    scopes[name] = scope;
  }
};

}  // namespace

io::Json options_json(const RunOptions& options) {
  WriteJson writer;
  RunOptions copy = options;
  describe(copy, writer);
  return std::move(writer.object);
}

std::map<std::string, Scope> scopes_of(const RunOptions& options) {
  ReadScopes reader;
  RunOptions copy = options;
  describe(copy, reader);
  return std::move(reader.scopes);
}

}  // namespace tutti::trainer
