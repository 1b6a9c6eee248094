// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/window_offer.hpp>

namespace tutti::ps {

// A window of this worker, and the servers that have it.
struct ExportedWindow {
  std::shared_ptr<HostWindow> memory;
  std::uint32_t number = 0;
  std::vector<bool> servers;
  // A window of half the size, for the values of this window in half as many bytes. Null: there is no such window.
  const ExportedWindow* narrow = nullptr;
};

// The windows that a worker has exported to servers of its host. Used by the thread that owns the communicator; other
// threads only read windows that were passed to them.
class ExportedWindows {
 public:
  // windows: windows of this process; must outlive this object. neighbours: for each server, whether it is on this
  // host.
  ExportedWindows(ProcessWindows* windows, std::vector<bool> neighbours)
      : windows_(windows), neighbours_(std::move(neighbours)), wanted_(count(neighbours_)) {
    if (windows_ == nullptr) wanted_ = 0;
  }

  // Exports a page to find out which servers can map windows: only these get later windows. send(data, where): sends
  // each server its part of the data, and returns when the servers' answers have replaced the data.
  template <class Send>
  void begin(Send&& send) {
    if (wanted_ == 0) return;
    (void)add(nullptr, 1, send);
  }
  // Exports a window to all these servers: `memory`, or a new zeroed window if it is null. Returns null if no server
  // can map it.
  template <class Send>
  const ExportedWindow* add(std::shared_ptr<HostWindow> memory, std::size_t bytes, Send&& send) {
    if (wanted_ == 0 || count(neighbours_) == 0) return nullptr;
    if (all_.size() == WindowOffer::most) return no("more than " + std::to_string(WindowOffer::most) + " windows");
    std::string why;
    if (memory == nullptr) memory = windows_->make(bytes, why);
    if (memory == nullptr) return no(why);
    const WindowOffer::Record record =
        encode(WindowOffer{static_cast<std::uint32_t>(all_.size() + 1), windows_->name_of(*memory)});
    std::vector<std::byte> records;
    std::vector<ServerRange> where;
    for (std::size_t s = 0; s < neighbours_.size(); ++s) {
      records.insert(records.end(), record.begin(), record.end());
      if (neighbours_[s])
        where.push_back({s * WindowOffer::record, (s + 1) * WindowOffer::record, static_cast<int>(s)});
    }
    send(std::span(records), std::span<const ServerRange>(where));
    for (const ServerRange& r : where) {
      const std::string said = decode_verdict(std::span(records).subspan(r.begin, WindowOffer::record));
      if (said.empty()) continue;
      neighbours_[static_cast<std::size_t>(r.server)] = false;
      why_ = "server " + std::to_string(r.server) + ": " + said;
    }
    if (count(neighbours_) == 0) return nullptr;
    const auto number = static_cast<std::uint32_t>(all_.size() + 1);
    return &all_.emplace_back(ExportedWindow{std::move(memory), number, neighbours_, nullptr});
  }
  // Returns the window that contains the data, and sets `place` to its position. Returns null if no window contains it.
  [[nodiscard]] const ExportedWindow* find(std::span<const std::byte> data, std::uint64_t& place) const noexcept {
    for (const ExportedWindow& w : all_)
      if (const std::size_t at = w.memory->place_of(data); at <= w.memory->bytes().size()) {
        place = at;
        return &w;
      }
    return nullptr;
  }
  // Allows values of `wide` to be sent through `narrow`.
  void pair(const ExportedWindow& wide, const ExportedWindow& narrow) {
    for (ExportedWindow& w : all_)
      if (&w == &wide) w.narrow = &narrow;
  }

  // Call if the job failed: servers may still write to the windows.
  void abandon() noexcept {
    for (const ExportedWindow& w : all_) w.memory->abandon();
  }

  // servers(): number of servers that have this worker's windows. wanted(): number of servers to which it wanted to
  // export them. why(): the reason if the numbers differ.
  [[nodiscard]] std::size_t servers() const noexcept { return all_.empty() ? 0 : count(neighbours_); }
  [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  static std::size_t count(const std::vector<bool>& v) {
    return static_cast<std::size_t>(std::count(v.begin(), v.end(), true));
  }
  std::nullptr_t no(const std::string& why) {
    why_ = why;
    neighbours_.assign(neighbours_.size(), false);
    return nullptr;
  }

  ProcessWindows* windows_;
  std::vector<bool> neighbours_;
  std::size_t wanted_;
  std::deque<ExportedWindow> all_;
  std::string why_;
};

}  // namespace tutti::ps
