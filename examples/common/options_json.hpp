// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/io/json.hpp>
#include <tutti/train/run_log.hpp>

#include "option_table.hpp"

// The options as a log and a checkpoint hold them.
namespace tutti::examples {

namespace detail {

struct WriteJson {
  io::Json object = io::Json::object();
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T& field, const char*, std::initializer_list<const char*>, Scope = Scope::job) {
    if constexpr (std::is_same_v<T, std::uint64_t>)
      object.set(name, std::to_string(field));  // JSON's integers end at 2^53 in many readers, ours at 2^63
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
  void operator()(const char* name, T&, const char*, std::initializer_list<const char*>, Scope scope = Scope::job) {
    scopes[name] = scope;
  }
};

}  // namespace detail

// The options by their names on the command line.
inline io::Json options_json(const RunOptions& options) {
  detail::WriteJson writer;
  RunOptions copy = options;
  describe(copy, writer);
  return std::move(writer.object);
}

// Whom each concerns.
inline std::map<std::string, Scope> scopes_of(const RunOptions& options) {
  detail::ReadScopes reader;
  RunOptions copy = options;
  describe(copy, reader);
  return std::move(reader.scopes);
}

}  // namespace tutti::examples
