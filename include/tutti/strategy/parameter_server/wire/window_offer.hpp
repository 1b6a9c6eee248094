// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>

// Memory that a worker exports to the servers of its host. They read and write data in it directly, so it is not sent.
namespace tutti::ps {

// A window, and the number by which the worker's frames refer to it from now on.
struct WindowOffer {
  std::uint32_t number = 0;
  WindowName window{};

  static constexpr std::uint32_t most = 16;   // windows of one worker
  static constexpr std::size_t record = 256;  // bytes of an encoded offer, and of its answer
  using Record = std::array<std::byte, record>;
};

[[nodiscard]] inline WindowOffer::Record encode(const WindowOffer& l) noexcept {  // in the form that is sent
  WindowOffer::Record bytes{};
  std::byte* at = bytes.data();
  detail::put(at, l.number);
  detail::put(at, l.window.number);
  detail::put(at, l.window.bytes);
  std::memcpy(at, l.window.server.data(), l.window.server.size());
  at += l.window.server.size();
  detail::put(at, l.window.edition);
  return bytes;
}
// Returns the offer in these bytes, or nullopt if they are no offer.
[[nodiscard]] inline std::optional<WindowOffer> decode_window_offer(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != WindowOffer::record) return {};
  const std::byte* at = bytes.data();
  WindowOffer l;
  detail::take(at, l.number);
  detail::take(at, l.window.number);
  detail::take(at, l.window.bytes);
  std::memcpy(l.window.server.data(), at, l.window.server.size());
  at += l.window.server.size();
  detail::take(at, l.window.edition);
  if (l.number < 1 || l.number > WindowOffer::most) return {};
  return l;
}

// Returns a server's answer. An empty `why` means that the server has mapped the window.
[[nodiscard]] inline WindowOffer::Record verdict(std::string_view why) noexcept {
  WindowOffer::Record bytes{};
  std::memcpy(bytes.data(), why.data(), std::min(why.size(), bytes.size()));
  return bytes;
}
[[nodiscard]] inline std::string decode_verdict(std::span<const std::byte> bytes) {  // empty: accepted
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace tutti::ps
