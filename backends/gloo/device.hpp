// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

namespace tutti {

namespace detail {

[[nodiscard]] inline bool is_of_this_host(const tcp::Address& a) {
  const tcp::Socket s(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return s.get() >= 0 && ::bind(s.get(), a.get(), a.size) == 0;
}
[[noreturn]] inline void no_device(const std::string& address, const std::string& why) {
  fail<CommunicationError>("gloo", "an address of this host", {"'", printable(address), "': ", why},
                           "GLOO_SOCKET_IFNAME names the network interface to use");
}

// Returns a socket that listens at a free port of an address of this host. Throws CommunicationError.
[[nodiscard]] inline tcp::Socket listen_at(const std::string& address) {
  std::string why;
  const auto found = tcp::addresses_of(address, 0, std::chrono::steady_clock::now() + std::chrono::seconds(10), why);
  int error = 0;
  if (found.empty()) no_device(address, why);
  auto s = tcp::listen_on(found.front(), 128, error);
  if (!s) no_device(address, tcp::error_text(error));
  return std::move(*s);
}

}  // namespace detail

// Returns Gloo's device for an address of this host: a thread and its epoll descriptor. A process has one device for
// each address, which all its groups share. The first call ignores SIGPIPE, unless the program has its own handler:
// Gloo writes to connections that the peer has closed.
[[nodiscard]] inline std::shared_ptr<::gloo::transport::Device> gloo_device(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<::gloo::transport::Device>> devices;
  const std::lock_guard lock(mutex);
  if (const auto at = devices.find(address); at != devices.end()) return at->second;
  struct sigaction pipe {};
  if (::sigaction(SIGPIPE, nullptr, &pipe) == 0 && pipe.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
  // The address is checked first, because Gloo leaks memory if it cannot create a device.
  std::string why;
  const auto found = tcp::addresses_of(address, 0, std::chrono::steady_clock::now() + std::chrono::seconds(10), why);
  if (!found.empty() && std::none_of(found.begin(), found.end(), detail::is_of_this_host)) why = "it is another host's";
  if (!why.empty()) detail::no_device(address, why);
  try {
    return devices[address] = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr(address.c_str()));
  } catch (const std::exception& e) {
    devices.erase(address);
    detail::no_device(address, e.what());
  }
}

// During its lifetime Gloo's thread polls every 0.2 ms. Otherwise an idle thread polls every 10 ms, and the opening and
// the closing of a connection wait for the next poll.
class GlooFastPoll final : public ::gloo::transport::tcp::Handler {
 public:
  explicit GlooFastPoll(const std::shared_ptr<::gloo::transport::Device>& device)
      : device_(std::dynamic_pointer_cast<::gloo::transport::tcp::Device>(device)),
        ready_(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (device_ != nullptr && ready_.get() >= 0) device_->registerDescriptor(ready_.get(), EPOLLIN, this);
  }
  ~GlooFastPoll() override {
    if (device_ == nullptr || ready_.get() < 0) return;
    // Waits until Gloo's thread is in handleEvents(): unregisterDescriptor() waits for the end of the thread's current
    // turn, and a poll without this descriptor may take 10 ms.
    std::this_thread::sleep_for(pause / 2);
    device_->unregisterDescriptor(ready_.get(), this);
  }
  GlooFastPoll(const GlooFastPoll&) = delete;
  GlooFastPoll& operator=(const GlooFastPoll&) = delete;

  // Runs on Gloo's thread.
  void handleEvents(int) override { std::this_thread::sleep_for(pause); }

 private:
  static constexpr std::chrono::microseconds pause{200};
  std::shared_ptr<::gloo::transport::tcp::Device> device_;
  io::Descriptor ready_;
};

}  // namespace tutti
