// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/windows/host_window.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// How a process of an elastic job enters its first generation.
struct ElasticOptions {
  LaunchEnvironment start;
  JobFacts facts;  // facts that all processes have in common, see ControlChannel::enrol()
  // Time limit for the founders of the job to arrive, and for the members of a generation to find each other.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(60);
};

namespace detail {

// The flag of the current group, for the channel's thread, which may still use it after the strategy is destroyed.
class GroupFlag {
 public:
  [[nodiscard]] std::shared_ptr<InterruptFlag> renew() {
    const std::lock_guard lock(mutex_);
    flag_ = std::make_shared<InterruptFlag>();
    if (!end_.empty()) flag_->raise(end_);
    return flag_;
  }
  // An empty `why` has no effect: no group has ended.
  void raise(const std::string& why) {
    std::shared_ptr<InterruptFlag> flag;
    {
      const std::lock_guard lock(mutex_);
      flag = flag_;
    }
    if (flag != nullptr && !why.empty()) flag->raise(why);
  }
  // Raises the flag of the current group and of all later groups: the channel has ended.
  void end(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      end_ = why;
    }
    raise(why);
  }

 private:
  std::mutex mutex_;
  std::string end_;
  std::shared_ptr<InterruptFlag> flag_;
};

}  // namespace detail

// The state of a process of an elastic job that does not depend on the strategy: the channel to the arbiter, the flag
// that ends its group, and memory that outlives all its groups.
class ElasticMember : public ElasticMembership {
 public:
  ElasticMember(const ElasticMember&) = delete;
  ElasticMember& operator=(const ElasticMember&) = delete;

  [[nodiscard]] std::int64_t epoch_of_joining() const override { return options_.start.epoch_begin; }
  // The launcher gives each number only once.
  [[nodiscard]] int most_members() const override { return options_.start.rank + 1; }
  void ask_to_leave() override { channel_->ask_to_leave(); }
  [[nodiscard]] bool stop_requested() const override { return channel_->stop_requested(); }
  [[nodiscard]] bool may_write() const override { return joining() || channel_->may_write(); }
  [[nodiscard]] bool await_lease() override { return joining() || channel_->await_lease(); }
  void epoch_begins(std::int64_t epoch) override { channel_->epoch_begins(static_cast<std::uint64_t>(epoch)); }

  [[nodiscard]] ControlChannel& channel() noexcept { return *channel_; }

 protected:
  ~ElasticMember() {
    channel_->on_change({});
    channel_->on_end({});
  }
  // hint: how to start a process of an elastic job. losses_end: the loss of another process ends the group.
  ElasticMember(std::shared_ptr<ControlChannel> channel, ElasticOptions options, const char* hint, bool losses_end)
      : options_(std::move(options)), channel_(std::move(channel)) {
    if (channel_ == nullptr)
      fail<UsageError>("elastic training", "a process started by tutti-launch --elastic",
                       "a process started in another way", hint);
    flag_ = group_flag_->renew();
    if (losses_end)
      channel_->on_change(
          [now = group_flag_](const control::MembershipChange& c) { now->raise(control::reason_of_end(c)); });
    channel_->on_end(
        [now = group_flag_](const std::string& why) { now->end(why.substr(0, why.find_last_not_of('.') + 1)); });
  }
  // If this process is a founder of the job, enters its first generation.
  void begin() {
    if (!options_.start.new_worker && !next_generation({}))
      fail<CommunicationError>("elastic training", "to begin the job", "a release before the job began");
  }
  [[nodiscard]] bool founds() const noexcept { return joining() && !options_.start.new_worker; }

  // Returns zeroed memory in a new window, which is appended to `kept` and persists over all generations. Returns an
  // empty span if that fails or `windows` is null.
  [[nodiscard]] static std::span<std::byte> memory_in(std::vector<std::shared_ptr<HostWindow>>& kept,
                                                      ProcessWindows* windows, std::size_t bytes) {
    std::string why;
    auto window = windows != nullptr && bytes > 0 ? windows->make(bytes, why) : nullptr;
    if (window == nullptr) return {};
    return kept.emplace_back(std::move(window))->bytes().first(bytes);
  }

  ElasticOptions options_;
  std::shared_ptr<ControlChannel> channel_;
  Assignment now_;
  std::shared_ptr<detail::GroupFlag> group_flag_ = std::make_shared<detail::GroupFlag>();
  std::shared_ptr<InterruptFlag> flag_;
  std::vector<std::shared_ptr<HostWindow>> windows_;  // the last one holds the gradients
};

}  // namespace tutti
