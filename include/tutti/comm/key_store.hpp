// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <tutti/comm/deadline.hpp>

namespace tutti {

// Returns the key for data of one generation of a job's members. The arbiter deletes it after that generation.
[[nodiscard]] inline std::string generation_key(std::uint64_t generation, const std::string& name) {
  return "@" + std::to_string(generation) + "/" + name;
}

// Stores texts by key, so that ranks that are not connected yet find each other. Any thread may call the functions.
// They throw CommunicationError if the store cannot be reached.
class KeyStore {
 public:
  KeyStore() = default;
  KeyStore(const KeyStore&) = delete;
  KeyStore& operator=(const KeyStore&) = delete;
  virtual ~KeyStore() = default;

  // Sets a key to a value. The last value counts.
  virtual void publish(const std::string& key, const std::string& value) = 0;
  // Waits for the value of a key. Returns no value if it is not published in time, or if `stopped` is set first.
  [[nodiscard]] virtual std::optional<std::string> lookup(const std::string& key, const Deadline& deadline,
                                                          const std::atomic<bool>& stopped) = 0;
  // Returns the value of a key, or no value if it is not published yet.
  [[nodiscard]] virtual std::optional<std::string> find(const std::string& key) = 0;
  // Makes waiting calls check their `stopped`.
  virtual void wake() noexcept = 0;
};

// A store for ranks that are threads of one process.
class MemoryKeyStore : public KeyStore {
 public:
  void publish(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    news_.notify_all();
  }
  std::optional<std::string> lookup(const std::string& key, const Deadline& deadline,
                                    const std::atomic<bool>& stopped) override {
    std::unique_lock lock(mutex_);
    while (!stopped && !values_.contains(key) && !deadline.is_over()) news_.wait_for(lock, deadline.next_wait());
    return stopped ? std::nullopt : value_of(key);
  }
  std::optional<std::string> find(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return value_of(key);
  }
  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    news_.notify_all();
  }

 private:
  [[nodiscard]] std::optional<std::string> value_of(const std::string& key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? std::nullopt : std::optional(at->second);
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::map<std::string, std::string> values_;
};

}  // namespace tutti
