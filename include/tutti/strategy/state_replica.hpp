// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/strategy.hpp>

// The transfer of a rank's state to the ranks with a different state.
namespace tutti {

// A rank's state before the transfer.
struct StateReplica {
  bool lacks = false;  // it has no valid state
  // The window with the state, which has the same layout on all ranks, and its name for other processes. Null: no
  // window.
  std::shared_ptr<HostWindow> window{};
  WindowName name{};
};

namespace detail {

// The ranks' descriptions of their state before the transfer: one record for each rank.
class StateRecords {
 public:
  StateRecords(std::size_t ranks, std::size_t pieces) : one_(head + pieces), mine_(head), all_(one_ * ranks) {
    mine_.resize(one_);
  }

  [[nodiscard]] std::span<std::uint64_t> mine() noexcept { return mine_; }
  [[nodiscard]] std::span<std::uint64_t> all() noexcept { return all_; }
  void describe(const StateReplica& own) noexcept {
    mine_[0] = own.lacks ? 1 : 0;
    const auto words = std::bit_cast<Name>(own.name);
    std::copy(words.begin(), words.end(), mine_.begin() + 1);
  }
  void add_hash(std::size_t piece, std::uint64_t hash) noexcept { mine_[head + piece] = hash; }

  [[nodiscard]] WindowName name_of(std::size_t rank) const noexcept {
    Name words{};
    std::copy_n(all_.data() + rank * one_ + 1, words.size(), words.begin());
    return std::bit_cast<WindowName>(words);
  }
  // Returns whether a rank's piece differs from that of `authority`.
  [[nodiscard]] bool differs(std::size_t rank, std::size_t authority, std::size_t piece) const noexcept {
    const std::uint64_t *const here = all_.data() + rank * one_, *const there = all_.data() + authority * one_;
    return rank != authority && (here[0] != 0 || here[head + piece] != there[head + piece]);
  }
  // Returns whether every rank's second copy is in a window, all with the same size.
  [[nodiscard]] bool in_windows() const noexcept {
    const std::uint64_t bytes = name_of(0).bytes;
    for (std::size_t r = 1; r * one_ < all_.size(); ++r)
      if (name_of(r).bytes != bytes) return false;
    return bytes != 0;
  }

 private:
  using Name = std::array<std::uint64_t, sizeof(WindowName) / sizeof(std::uint64_t)>;
  static constexpr std::size_t head = 1 + std::tuple_size_v<Name>;
  std::size_t one_;
  std::vector<std::uint64_t> mine_, all_;
};

// Returns the position of a piece in the window of its rank, which is the same in all windows, or `elsewhere` if it is
// in no window.
inline constexpr std::size_t elsewhere = ~std::size_t{0};
[[nodiscard]] inline std::size_t place_in(const StateReplica& own, const StateSpan& piece) noexcept {
  if (own.window == nullptr) return elsewhere;
  const std::size_t at = own.window->place_of(piece.bytes);
  return at <= own.window->bytes().size() ? at : elsewhere;
}
// Copies these pieces from another rank's window. Returns false if it cannot be mapped, for example on another host.
[[nodiscard]] inline bool take_from_window(const WindowName& theirs, const StateReplica& own,
                                           std::span<const StateSpan> state, std::span<const std::size_t> pieces) {
  std::string why;
  const WindowReader reader(theirs, why);
  if (!why.empty()) return false;
  for (const std::size_t i : pieces)
    if (!reader.read(place_in(own, state[i]), state[i].bytes)) return false;
  return true;
}

}  // namespace detail
}  // namespace tutti
