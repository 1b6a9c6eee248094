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

// A window of this worker, and which servers have it.
struct ExportedWindow {
  std::shared_ptr<HostWindow> memory;
  std::uint32_t number = 0;
  std::vector<bool> servers;
  // Half as large: where values of this one lie in half the bytes. Null: nowhere.
  const ExportedWindow* narrow = nullptr;
};

// The windows that a worker has lent to servers of its host. Used by the thread that owns the communicator; others only
// read windows that they were given.
class ExportedWindows {
 public:
  // windows: of this process, outlives it. neighbours: of each server, whether it is on this host.
  ExportedWindows(ProcessWindows* windows, std::vector<bool> neighbours)
      : windows_(windows), neighbours_(std::move(neighbours)), wanted_(count(neighbours_)) {
    if (windows_ == nullptr) wanted_ = 0;
  }

  // Of a page, to see who can have windows: what is lent later is lent to these. send(data, where): to each server its
  // part of the data; returns when all have answered in its place.
  template <class Send>
  void begin(Send&& send) {
    if (wanted_ == 0) return;
    (void)lend(nullptr, 1, send);
  }
  // Memory in a window that all these servers have: this one, or where it is null a new one, all zero. Null where there
  // is none.
  template <class Send>
  const ExportedWindow* lend(std::shared_ptr<HostWindow> memory, std::size_t bytes, Send&& send) {
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
  // The window that this lies in, and where; null: none.
  [[nodiscard]] const ExportedWindow* find(std::span<const std::byte> data, std::uint64_t& place) const noexcept {
    for (const ExportedWindow& w : all_)
      if (const std::size_t at = w.memory->place_of(data); at <= w.memory->bytes().size()) {
        place = at;
        return &w;
      }
    return nullptr;
  }
  // Values of `wide` may lie in `narrow` too.
  void pair(const ExportedWindow& wide, const ExportedWindow& narrow) {
    for (ExportedWindow& w : all_)
      if (&w == &wide) w.narrow = &narrow;
  }

  // The job broke: servers may still write to them.
  void abandon() noexcept {
    for (const ExportedWindow& w : all_) w.memory->abandon();
  }

  // Servers that have this worker's windows; those that it would have lent them to; why not all do.
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
