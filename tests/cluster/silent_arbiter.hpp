// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/core/error.hpp>

namespace tutti::testing {

// An arbiter that answers the first heartbeat, assigns this process to generation 1, sends the messages `then`, and
// stays silent.
class SilentAfterAssignment final : public control::FrameLink {
 public:
  explicit SilentAfterAssignment(std::vector<control::Message> then = {}) : then_(std::move(then)) {}
  void send(std::string_view frame) override {
    const std::lock_guard lock(mutex_);
    const auto m = control::decode(frame.substr(1));
    if (const auto* beat = std::get_if<control::Heartbeat>(&m); beat != nullptr && !beaten_) {
      beaten_ = true;
      frames_.push_back(frame_of(control::HeartbeatAck{beat->number}));
      frames_.push_back({});  // an empty frame, which makes the channel look for received frames
      control::NewGeneration issued{};
      issued.generation = 1;
      issued.rank_timeout_ms = 200;
      issued.members.emplace_back();
      frames_.push_back(frame_of(issued));
      for (const control::Message& next : then_) frames_.push_back(frame_of(next));
    }
  }
  std::optional<std::string> receive(std::chrono::milliseconds wait) override {
    {
      const std::lock_guard lock(mutex_);
      if (!frames_.empty()) {
        auto frame = std::move(frames_.front());
        frames_.pop_front();
        return frame.empty() ? std::nullopt : std::optional(frame);
      }
    }
    std::this_thread::sleep_for(std::min(wait, std::chrono::milliseconds(10)));
    return {};
  }
  void wake() override {}
  void unanswered() override { throw CommunicationError("no answer"); }

 private:
  [[nodiscard]] static std::string frame_of(const control::Message& m) {
    std::string all;
    control::split_message(control::encode(m), [&](std::string_view frame) { all = frame; });
    return all;
  }
  const std::vector<control::Message> then_;
  std::mutex mutex_;
  bool beaten_ = false;
  std::deque<std::string> frames_;
};

}  // namespace tutti::testing
