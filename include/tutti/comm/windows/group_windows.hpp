// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>

namespace tutti {

// A window of each rank of a host. All have the same size, and every rank has mapped all of them.
class GroupWindows {
 public:
  GroupWindows() = default;  // without windows: fits() is false

  // A collective call. rank and size: among the ranks of the host. gather(mine, all): gathers the bytes of all ranks in
  // their order. If one rank cannot map all windows, no rank gets any, and each rank gets the reason.
  template <class Gather>
  [[nodiscard]] static GroupWindows make(ProcessWindows& windows, int rank, int size, std::size_t bytes,
                                         Gather&& gather) {
    std::string why;
    const auto mine = windows.make(bytes, why);
    return share(windows, rank, size, mine, std::move(why), gather);
  }
  // As make(), for a window that each rank has already made. mine: null if this rank has no window; why: the reason.
  template <class Gather>
  [[nodiscard]] static GroupWindows share(ProcessWindows& windows, int rank, int size,
                                          const std::shared_ptr<HostWindow>& mine, std::string why, Gather&& gather) {
    GroupWindows g;
    std::vector<PeerWindow> all(static_cast<std::size_t>(size));
    const auto tell = [&](const PeerWindow& said) {
      gather(std::as_bytes(std::span(&said, 1)), std::as_writable_bytes(std::span(all)));
      for (std::size_t r = 0; r < all.size() && g.why_.empty(); ++r)
        if (all[r].why[0] != '\0') g.why_ = "rank " + std::to_string(r) + " of this host: " + all[r].why.data();
    };
    tell(mine == nullptr ? PeerWindow(why) : PeerWindow(windows.name_of(*mine)));
    if (!g.why_.empty()) return g;
    std::vector<std::shared_ptr<HostWindow>> mapped;
    for (std::size_t r = 0; r < all.size() && why.empty(); ++r)
      if (all[r].name.bytes != mine->bytes().size())
        why = "windows have different sizes";
      else
        mapped.push_back(static_cast<int>(r) == rank ? mine : windows.map(all[r].name, why));
    tell(PeerWindow(why));
    if (!g.why_.empty()) return g;
    for (const auto& window : mapped) g.bases_.push_back(window->bytes().data());
    g.mine_ = mine->bytes();
    g.windows_ = std::move(mapped);
    return g;
  }

  [[nodiscard]] bool fits() const noexcept { return !windows_.empty(); }
  // Returns why there are no windows.
  [[nodiscard]] const std::string& reason() const noexcept { return why_; }
  // Returns this rank's window, page aligned and initially zero.
  [[nodiscard]] std::span<std::byte> mine() const noexcept { return mine_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return mine_.size(); }
  // Call if the group failed: other ranks may still use the windows.
  void abandon() const noexcept {
    for (const auto& window : windows_) window->abandon();
  }
  // Returns the addresses of all ranks' windows in this process.
  [[nodiscard]] const std::vector<std::byte*>& bases() const noexcept { return bases_; }

 private:
  struct PeerWindow {
    WindowName name{};
    std::array<char, 208> why{};
    PeerWindow() = default;
    explicit PeerWindow(const WindowName& n) : name(n) {}
    explicit PeerWindow(std::string_view text) {
      std::copy_n(text.data(), std::min(text.size(), why.size() - 1), why.data());
    }
  };

  std::vector<std::shared_ptr<HostWindow>> windows_;
  std::span<std::byte> mine_;
  std::vector<std::byte*> bases_;
  std::string why_;
};

}  // namespace tutti
