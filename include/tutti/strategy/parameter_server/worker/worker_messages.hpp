// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// Texts that servers send to a worker.
namespace tutti::ps::detail {

[[nodiscard]] inline std::string text_of(std::span<const std::byte> data) {
  return printable({reinterpret_cast<const char*>(data.data()), data.size()});
}
// Returns the names of the workers, by their ranks.
[[nodiscard]] inline std::vector<std::string> names_of(std::span<const std::byte> data, std::size_t workers) {
  std::vector<std::string> names;
  std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  while (!text.empty() && names.size() < workers) {
    const std::size_t end = text.find('\0');
    names.push_back(printable(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return names;
}
// Returns why the job ended: the expected result and the actual one.
[[nodiscard]] inline CommunicationError given_up(const std::string& operation, std::span<const std::byte> data) {
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  const std::size_t end = text.find('\0');
  const std::string said = end == text.npos ? "another rank has aborted" : std::string(text.substr(end + 1, 600));
  std::string_view rest = said;
  std::string got;
  for (; rest.size() > 80; rest.remove_prefix(80)) got += printable(rest.substr(0, 80));
  return CommunicationError(error_message(operation, printable(text.substr(0, end)), got + printable(rest)));
}

}  // namespace tutti::ps::detail
