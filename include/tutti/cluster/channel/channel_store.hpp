// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/comm/key_store.hpp>

namespace tutti {

// The key store of a job, reached through the channel. The channel must outlive it.
class ChannelStore : public KeyStore {
 public:
  explicit ChannelStore(ControlChannel& channel) : channel_(channel) {}

  void publish(const std::string& key, const std::string& value) override { channel_.publish(key, value); }
  std::optional<std::string> lookup(const std::string& key, const Deadline& deadline,
                                    const std::atomic<bool>& stopped) override {
    return channel_.lookup_unless(key, deadline, stopped);
  }
  std::optional<std::string> find(const std::string& key) override { return channel_.find(key); }
  void wake() noexcept override { channel_.wake_lookups(); }

 private:
  ControlChannel& channel_;
};

}  // namespace tutti
