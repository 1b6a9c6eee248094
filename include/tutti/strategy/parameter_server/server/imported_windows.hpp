// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/window_offer.hpp>

namespace tutti::ps {

// The windows that workers have exported to a server of their host. A worker can write anything into its window at any
// time, so only values are read from it; frames contain the positions.
class ImportedWindows {
 public:
  // windows: those of this process, which must outlive this object; null: it takes no windows of workers.
  ImportedWindows(ProcessWindows* windows, std::size_t workers) : windows_(windows), of_(workers) {}

  // Maps a window of a worker. Returns the reason if it cannot, otherwise an empty text.
  [[nodiscard]] std::string take(std::uint32_t worker, const WindowOffer& offer) {
    if (windows_ == nullptr) return "it maps no windows";
    std::string why;
    auto window = windows_->map(offer.window, why);
    if (window != nullptr) of_[worker][offer.number - 1] = std::move(window);
    return why;
  }
  // Returns the data of a frame. Returns an empty span if it is not completely in a window of its worker.
  [[nodiscard]] std::span<std::byte> find(const Frame& f) const noexcept {
    if (f.window < 1 || f.window > WindowOffer::most || f.worker >= of_.size()) return {};
    const auto& window = of_[f.worker][f.window - 1];
    if (window == nullptr) return {};
    const std::span<std::byte> all = window->bytes();
    if (f.place > all.size() || f.bytes > all.size() - f.place) return {};
    return all.subspan(static_cast<std::size_t>(f.place), f.bytes);
  }
  // Accepts worker numbers below `workers`.
  void grow(std::size_t workers) { of_.resize(std::max(of_.size(), workers)); }
  // Call for a worker that has left, or that connects again.
  void forget(std::uint32_t worker) noexcept { of_[worker] = {}; }

 private:
  ProcessWindows* windows_;
  std::vector<std::array<std::shared_ptr<HostWindow>, WindowOffer::most>> of_;
};

}  // namespace tutti::ps
