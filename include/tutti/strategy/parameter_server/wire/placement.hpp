// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/tensor/arena.hpp>

// The division of a piece among servers, the same as in MXNet's distributed store. An array with fewer elements than
// the bound is on one server, chosen by its key. A larger array is divided evenly among all servers.
namespace tutti::ps {

inline constexpr std::uint64_t usual_big_array = 1'000'000;  // elements

// Returns the bound: MXNET_KVSTORE_BIGARRAY_BOUND, read through `get`, which works like std::getenv. Throws UsageError
// if it is not a positive number.
template <class Get>
[[nodiscard]] std::uint64_t big_array_bound(const Get& get) {
  const char* const text = get("MXNET_KVSTORE_BIGARRAY_BOUND");
  if (text == nullptr || *text == '\0') return usual_big_array;
  const std::string value(text);
  if (value.size() < 16 && value.find_first_not_of("0123456789") == std::string::npos)
    if (const std::uint64_t n = std::stoull(value); n > 0) return n;
  fail<UsageError>("environment MXNET_KVSTORE_BIGARRAY_BOUND", "a number of elements from 1",
                   {"'", printable(value), "'"}, "unset it to divide arrays of a million elements or more");
}

// Returns the server of a small array with this key.
[[nodiscard]] constexpr int server_of(std::uint64_t key, int servers) noexcept {
  return static_cast<int>(key * 9973 % static_cast<std::uint64_t>(servers));
}

// Calls f(server, begin, end) for each server's part of an array, in bytes and in order, except empty parts. Each part
// begins at a cache line.
template <class F>
void place(std::uint64_t key, std::size_t elements, std::size_t element_bytes, int servers, std::uint64_t big_array,
           F&& f) {
  if (elements == 0) return;
  if (elements < big_array || servers == 1) return f(server_of(key, servers), std::size_t{0}, elements * element_bytes);
  for (int s = 0; s < servers; ++s) {
    const RankShare part = share_of(elements, element_bytes, servers, s);
    if (part.begin < part.end) f(s, part.begin * element_bytes, part.end * element_bytes);
  }
}

// A part of the arenas, in elements, and its server.
struct ServerRange {
  std::size_t begin = 0, end = 0;
  int server = 0;
};

// Returns the division of the arenas among servers, tensor by tensor; neighbouring parts on one server are one range.
[[nodiscard]] inline std::vector<ServerRange> ranges_of(const ArenaLayout& layout, int servers,
                                                        std::uint64_t big_array) {
  std::vector<ServerRange> all;
  for (std::size_t i = 0; i < layout.slices.size(); ++i) {
    const std::size_t begin = layout.slices[i].offset;
    const std::size_t end = i + 1 < layout.slices.size() ? layout.slices[i + 1].offset : layout.count;
    const std::size_t unit = size_of(layout.dtype);
    place(i + 1, end - begin, unit, servers, big_array, [&](int server, std::size_t from, std::size_t to) {
      if (!all.empty() && all.back().server == server && all.back().end == begin + from / unit)
        all.back().end = begin + to / unit;
      else
        all.push_back({begin + from / unit, begin + to / unit, server});
    });
  }
  return all;
}

}  // namespace tutti::ps
