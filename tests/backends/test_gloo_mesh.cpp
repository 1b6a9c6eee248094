// SPDX-License-Identifier: MIT
// If a rank leaves a Gloo group while it forms, the other ranks survive, even if their Gloo threads are slow.
#include <doctest/doctest.h>

#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/mesh.hpp>
#include <tutti/comm/key_store.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

// Blocks the Gloo thread of a device until let_go().
class Held final : public ::gloo::transport::tcp::Handler {
 public:
  explicit Held(const std::shared_ptr<::gloo::transport::Device>& device)
      : device_(std::dynamic_pointer_cast<::gloo::transport::tcp::Device>(device)),
        ready_(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    device_->registerDescriptor(ready_.get(), EPOLLIN, this);
    while (!holds_) std::this_thread::sleep_for(1ms);
  }
  ~Held() override {
    let_go();
    device_->unregisterDescriptor(ready_.get(), this);
  }
  void let_go() { over_ = true; }
  void handleEvents(int) override {
    holds_ = true;
    while (!over_) std::this_thread::sleep_for(1ms);
  }

 private:
  std::shared_ptr<::gloo::transport::tcp::Device> device_;
  io::Descriptor ready_;
  std::atomic<bool> holds_{false}, over_{false};
};

// A rank in a group of three ranks. Rank 2 never arrives.
struct Rank {
  Rank(int r, const std::string& address, KeyStore& s) : number(r), store(s), mesh(r, 3, gloo_device(address)) {}
  void connect() {
    thread = std::thread([this] {
      try {
        mesh.connect(store, "mesh/", {"a", "b", "c"}, Deadline(60s), stopped);
      } catch (const std::exception&) {
        // connect() fails after stop().
      }
    });
  }
  void stop() {
    stopped = true;
    store.wake();
    mesh.stop();
    thread.join();
  }
  int number;
  KeyStore& store;
  std::atomic<bool> stopped{false};
  GlooMesh mesh;
  std::thread thread;
};

}  // namespace

TEST_CASE("a rank with a slow Gloo thread survives when another rank gives up the group") {
  // Of two ranks, the order of their addresses decides which one connects.
  for (const auto& [here, there] : {std::pair{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}}) {
    MemoryKeyStore store;
    Rank late(0, here, store);
    auto other = std::make_unique<Rank>(1, there, store);
    late.connect();
    while (!store.find("mesh/0")) std::this_thread::sleep_for(1ms);
    Held held(gloo_device(here));
    other->connect();
    std::this_thread::sleep_for(300ms);  // until the kernel has connected both ranks
    other->stop();
    other.reset();
    held.let_go();
    std::this_thread::sleep_for(300ms);  // until the Gloo thread has handled its events
    late.stop();
  }
}
