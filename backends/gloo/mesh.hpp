// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/deadline_watcher.hpp>
#include <tutti/backends/gloo/device.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>

// Gloo's connections, which can be stopped here. Gloo itself cannot do so: closing a connection does not wake a thread
// that waits in the middle of a message, and such a thread does not notice the death of its peer. Therefore these
// classes wrap the objects in which Gloo waits. They use only Gloo's abstract classes.
namespace tutti {

namespace detail {

class GlooBuffer;

class GlooTransport final : public ::gloo::transport::Context, public std::enable_shared_from_this<GlooTransport> {
 public:
  explicit GlooTransport(std::shared_ptr<::gloo::transport::Context> inner)
      : Context(inner->rank, inner->size), inner_(std::move(inner)) {}

  std::unique_ptr<::gloo::transport::Pair>& getPair(int peer) override { return inner_->getPair(peer); }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override {
    const std::lock_guard lock(pairs_mutex_);
    check();
    inner_->setTimeout(getTimeout());  // setTimeout() is not virtual, and the pair reads the time-out now
    return inner_->createPair(peer);
  }
  inline std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override;

  // Makes the waits of the current operation throw, because its deadline has passed. Any thread may call it.
  void expire() noexcept {
    expired_.store(true, std::memory_order_release);
    end_waits();
  }
  // Call before an operation.
  void begin() noexcept { expired_.store(false, std::memory_order_release); }
  // Returns whether the deadline of the last operation has passed.
  [[nodiscard]] bool expired() const noexcept { return expired_.load(std::memory_order_acquire); }

  // Makes current and later waits throw, and ends the connections of the peers. Any thread may call it, several times.
  void stop(const std::shared_ptr<::gloo::transport::Device>& device);
  // Call while the group forms, before this rank waits for `peer`. -1: it waits for no peer.
  void waits_for(int peer) {
    const std::lock_guard lock(pairs_mutex_);
    waited_for_ = peer;
    moved_ = std::chrono::steady_clock::now();
  }
  // Call when all peers are connected.
  void is_formed() {
    const std::lock_guard lock(pairs_mutex_);
    formed_ = true;
  }
  void check() const {
    if (stopped_.load(std::memory_order_acquire)) throw ::gloo::IoException("interrupted");
    if (expired()) throw ::gloo::IoException("timed out");
  }

 private:
  friend class GlooBuffer;
  inline void end_waits() noexcept;

  std::shared_ptr<::gloo::transport::Context> inner_;
  std::atomic<bool> stopped_{false}, expired_{false};
  std::mutex mutex_, pairs_mutex_;
  std::set<GlooBuffer*> live_;
  bool closed_ = false, formed_ = false;
  int waited_for_ = -1;
  std::chrono::steady_clock::time_point moved_{};  // when waits_for() was called last
};

class GlooBuffer final : public ::gloo::transport::UnboundBuffer {
 public:
  GlooBuffer(std::shared_ptr<GlooTransport> of, void* data, std::size_t bytes)
      : UnboundBuffer(data, bytes), of_(std::move(of)), inner_(of_->inner_->createUnboundBuffer(data, bytes)) {
    const std::lock_guard lock(of_->mutex_);
    of_->live_.insert(this);
  }
  ~GlooBuffer() override {
    const std::lock_guard lock(of_->mutex_);
    of_->live_.erase(this);
  }
  GlooBuffer(const GlooBuffer&) = delete;
  GlooBuffer& operator=(const GlooBuffer&) = delete;

  // An aborted wait would return to Gloo as if the data had arrived.
  bool waitRecv(int* rank, std::chrono::milliseconds) override {
    of_->check();
    const bool done = inner_->waitRecv(rank, no_timeout);
    of_->check();
    return done;
  }
  bool waitSend(int* rank, std::chrono::milliseconds) override {
    of_->check();
    const bool done = inner_->waitSend(rank, no_timeout);
    of_->check();
    return done;
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    of_->check();
    inner_->send(to, slot, offset, bytes);
  }
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    of_->check();
    inner_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    of_->check();
    inner_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  // GlooMesh ends the waits at their deadline. Gloo's own time-out would count a pause of this process.
  static constexpr std::chrono::hours no_timeout{24 * 365};

  std::shared_ptr<GlooTransport> of_;
  std::unique_ptr<::gloo::transport::UnboundBuffer> inner_;
};

inline std::unique_ptr<::gloo::transport::UnboundBuffer> GlooTransport::createUnboundBuffer(void* data,
                                                                                            std::size_t bytes) {
  return std::make_unique<GlooBuffer>(shared_from_this(), data, bytes);
}

inline void GlooTransport::end_waits() noexcept {
  const std::lock_guard lock(mutex_);
  for (GlooBuffer* b : live_) {
    b->abortWaitRecv();
    b->abortWaitSend();
  }
}

inline void GlooTransport::stop(const std::shared_ptr<::gloo::transport::Device>& device) {
  stopped_.store(true, std::memory_order_release);
  end_waits();
  const GlooFastPoll fast_poll(device);
  std::unique_lock lock(pairs_mutex_);
  // close() resets a connection. If the peer's kernel has accepted the connection but its Gloo has not, Gloo's thread
  // there asks for the address of a lost peer, and the exception ends that process. Therefore stop() gives connections
  // time to be accepted. While the group forms, it closes only the pair for which this rank waits. The destructor
  // closes the remaining pairs, without a reset.
  constexpr std::chrono::milliseconds accepted_within{10};
  const auto pause = moved_ + accepted_within - std::chrono::steady_clock::now();
  if (pause > pause.zero()) {
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
  }
  if (!formed_) {
    if (waited_for_ >= 0 && getPair(waited_for_)) getPair(waited_for_)->close();
    return;
  }
  if (std::exchange(closed_, true)) return;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank && getPair(peer)) getPair(peer)->close();
}

}  // namespace detail

// Connections between all ranks of a group, which are the context of Gloo's new collectives. Do not use Gloo's old
// collectives (AllreduceRing<T> and similar ones): stop() cannot wake them.
class GlooMesh final : public ::gloo::Context {
 public:
  GlooMesh(int me, int ranks, std::shared_ptr<::gloo::transport::Device> device) : Context(me, ranks) {
    device_ = std::move(device);
    transport_ = std::make_shared<detail::GlooTransport>(device_->createContext(me, ranks));
    transportContext_ = transport_;
    watcher_.emplace([this] { transport_->expire(); });
  }
  ~GlooMesh() override {
    watcher_.reset();
    const GlooFastPoll fast_poll(device_);
    transport_.reset();
    transportContext_.reset();
  }
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // A collective call. key: prefix of the group's keys in the store, which end with a rank's number. names: the ranks'
  // names for messages. Throws a CommunicationError that names ranks that have not arrived in time. After stop() it may
  // throw any exception.
  void connect(KeyStore& store, const std::string& key, const std::vector<std::string>& names, const Deadline& deadline,
               const std::atomic<bool>& stopped) {
    const GlooFastPoll fast_poll(device_);
    // A pair waits for five times this time-out. While it connects, a pause of this process counts.
    transport_->setTimeout(std::chrono::ceil<std::chrono::milliseconds>(deadline.left() / 5) +
                           std::chrono::milliseconds(1));
    std::string mine;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char> address = transport_->createPair(peer)->address().bytes();
      mine.append(address.begin(), address.end());
    }
    store.publish(key + std::to_string(rank), mine);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::string& name = names[static_cast<std::size_t>(peer)];
      const auto text = store.lookup(key + std::to_string(peer), deadline, stopped);
      transport_->check();
      if (!text) fail<CommunicationError>("gloo", {"a message from ", name, " in time"}, "no message");
      // A peer publishes an address for each rank except itself.
      const std::size_t bytes = mine.size() / static_cast<std::size_t>(size - 1);
      const auto at = static_cast<std::size_t>(rank > peer ? rank - 1 : rank) * bytes;
      if (text->size() != mine.size())
        fail<CommunicationError>("gloo", {"the addresses of ", name}, "an invalid message",
                                 "run the same build with the same --encrypt on all hosts");
      transport_->waits_for(peer);
      transport_->check();
      try {
        transport_->getPair(peer)->connect(
            {text->begin() + static_cast<std::ptrdiff_t>(at), text->begin() + static_cast<std::ptrdiff_t>(at + bytes)});
      } catch (const ::gloo::Exception& e) {
        transport_->check();
        fail<CommunicationError>("gloo", {"a connection with ", name}, e.what(),
                                 "GLOO_SOCKET_IFNAME names the network interface to use");
      }
      // Gloo treats a pair that stop() has closed as connected.
      transport_->waits_for(-1);
      transport_->check();
    }
    transport_->is_formed();
    transport_->check();
  }
  // While it exists, waits end at this deadline, which the calling thread must not use meanwhile.
  class Operation {
   public:
    Operation(GlooMesh& mesh, const Deadline& deadline) : watched_(mesh.begin(), deadline) {}

   private:
    DeadlineWatcher::Operation watched_;
  };
  // Returns whether the deadline of the last operation has passed.
  [[nodiscard]] bool expired() const noexcept { return transport_->expired(); }
  // Makes current and later waits throw ::gloo::Exception. Any thread may call it.
  void stop() { transport_->stop(device_); }

 private:
  DeadlineWatcher& begin() {
    transport_->begin();
    return *watcher_;
  }

  std::shared_ptr<detail::GlooTransport> transport_;
  std::optional<DeadlineWatcher> watcher_;
};

}  // namespace tutti
