// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/host/host_group.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/windows/group_windows.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The shared memory of the ranks of one host, with their HostGroup. The ranks find their windows through a store.
class SharedHost {
  [[nodiscard]] auto gather_within(const Deadline& deadline, std::string_view what) {
    return [this, &deadline, what](std::span<const std::byte> mine, std::span<std::byte> all) {
      if (group_)
        group_->all_gather(mine, all, deadline, what);
      else
        std::copy(mine.begin(), mine.end(), all.begin());
    };
  }

 public:
  // prefix: of the keys that only this group uses.
  SharedHost(const HostTopology& places, KeyStore& store, const InterruptFlag& flag, std::string prefix)
      : topology_(places), store_(store), flag_(flag), prefix_(std::move(prefix)) {}
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;

  // A collective call of all ranks of all hosts. Returns whether the ranks of every host share memory. Throws
  // CommunicationError that names the ranks that have not arrived in time.
  [[nodiscard]] bool join(const Deadline& deadline) {
    if (topology_.most_of_a_host() == 1) return false;
    std::string why;
    if (topology_.local_size() > 1) why = share(deadline);
    if (topology_.is_leader()) {
      if (!why.empty()) say(why + "; this job runs without shared memory");
      store_.publish(key("host", topology_.rank()), why.empty() ? "shares" : "shares nothing");
    }
    bool all = true;
    for (const int leader : topology_.leaders()) all = word_of("host", leader, deadline) == "shares" && all;
    const std::lock_guard lock(mutex_);
    if (!all) group_.reset();
    return all;
  }

  // Returns null if the rank is alone on its host, or if no memory is shared.
  [[nodiscard]] HostGroup* group() noexcept { return group_ ? &*group_ : nullptr; }
  // Makes waits for ranks of this host throw. May be called from any thread.
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    if (group_) group_->abort();
  }
  [[nodiscard]] bool gave_up() const noexcept { return group_ && group_->aborted_by() >= 0; }
  // Returns whether this rank was the first to call abort(), for example at its deadline.
  [[nodiscard]] bool gave_up_here() const noexcept { return group_ && group_->aborted_by() == group_->rank(); }

  // Returns zeroed memory of every rank of the host. A collective call of the ranks of the host.
  [[nodiscard]] GroupWindows allocate(std::size_t bytes, const Deadline& deadline) {
    return make(bytes, gather_within(deadline, "allocate"));
  }
  // Shares a window of this process that outlives the group; null: this rank has no window. A collective call too.
  [[nodiscard]] GroupWindows share(const std::shared_ptr<HostWindow>& mine, const Deadline& deadline) {
    return GroupWindows::share(ProcessWindows::of_process(), topology_.local_rank(), topology_.local_size(), mine,
                               mine == nullptr ? "no window" : "", gather_within(deadline, "windows"));
  }
  // Keeps the windows of allocate() during the lifetime of this object. Returns this rank's own memory.
  std::span<std::byte> keep(GroupWindows windows, std::size_t bytes) {
    if (group_) group_->map(windows.bases(), windows.bytes());
    return windows_.emplace_back(std::move(windows)).mine().first(bytes);
  }
  // Call if the group failed: other ranks may still use its memory, so it is not reused.
  void abandon() const noexcept {
    for (const GroupWindows& w : windows_) w.abandon();
  }

  void say(const std::string& what) const {
    std::fprintf(stderr, "tutti: %s: %s\n", topology_.host_name(topology_.rank()).c_str(), what.c_str());
  }

 private:
  static constexpr std::size_t control_bytes = (sizeof(HostControl) + 63) / 64 * 64;

  [[nodiscard]] std::string key(const std::string& what, int rank) const {
    return prefix_ + "/" + what + "/" + std::to_string(rank);
  }
  [[nodiscard]] std::string word_of(const std::string& what, int rank, const Deadline& deadline) const {
    auto word = store_.lookup(key(what, rank), deadline, flag_.raised());
    if (!word)
      fail<CommunicationError>("shared memory", {"a message from ", topology_.name(rank), " in time"}, "no message");
    return *std::move(word);
  }
  template <class Gather>
  [[nodiscard]] GroupWindows make(std::size_t bytes, Gather&& gather) const {
    return GroupWindows::make(ProcessWindows::of_process(), topology_.local_rank(), topology_.local_size(), bytes,
                              gather);
  }

  // Makes the group. Returns the reason if that fails, otherwise an empty text.
  [[nodiscard]] std::string share(const Deadline& deadline) {
    if (topology_.local_size() > HostBarrierState::max_ranks)
      return std::to_string(topology_.local_size()) + " ranks on a host are too many to share memory";
    int round = 0;
    GroupWindows windows = make(control_bytes + HostGroup::scratch_bytes, [&](std::span<const std::byte> mine,
                                                                              std::span<std::byte> all) {
      const std::string what = "window" + std::to_string(++round);
      store_.publish(key(what, topology_.rank()), std::string(reinterpret_cast<const char*>(mine.data()), mine.size()));
      for (int r = 0; r < topology_.size(); ++r) {
        if (topology_.place(r).host != topology_.my_host()) continue;
        const std::string text = word_of(what, r, deadline);
        if (text.size() != mine.size())
          fail<CommunicationError>("shared memory", {"the window of ", topology_.name(r)}, "an invalid message",
                                   "run the same build on all hosts");
        std::memcpy(all.data() + static_cast<std::size_t>(topology_.place(r).local) * mine.size(), text.data(),
                    text.size());
      }
    });
    if (!windows.fits()) return windows.reason();
    std::vector<std::byte*> scratch;
    for (std::byte* base : windows.bases()) scratch.push_back(base + control_bytes);
    // The control memory is initially all zero, so no rank has to initialise it before other ranks arrive.
    auto* const control = std::launder(reinterpret_cast<HostControl*>(windows.bases().front()));
    windows_.push_back(std::move(windows));
    const std::lock_guard lock(mutex_);
    group_.emplace(*control, std::move(scratch), topology_.local_rank(), false, topology_.local_names());
    if (flag_.raised()) group_->abort();
    return "";
  }

  const HostTopology& topology_;
  KeyStore& store_;
  const InterruptFlag& flag_;
  std::string prefix_;
  std::mutex mutex_;
  std::vector<GroupWindows> windows_;
  std::optional<HostGroup> group_;
};

}  // namespace tutti
