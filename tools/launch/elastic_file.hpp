// SPDX-License-Identifier: MIT
#pragma once

#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "plan.hpp"
#include "process.hpp"

// The hosts file of a job whose workers come and go, which somebody edits while it runs.
namespace tutti::launch {

// A line of it. key: by which hosts are compared, their address; "here" for the launcher's own.
struct ListedHost {
  Host host;
  std::string key;
  [[nodiscard]] bool here() const { return key == "here"; }
};

// Asks the system for the host's address; its name serves where there is none, as with names that only ssh knows.
[[nodiscard]] inline std::string key_of(const Host& h) {
  const passwd* me = ::getpwuid(::geteuid());
  const bool mine = h.port == 0 && (h.user.empty() || (me != nullptr && h.user == me->pw_name));
  std::string address = h.name;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  char text[NI_MAXHOST];
  if (::getaddrinfo(h.name.c_str(), nullptr, &hints, &found) == 0) {
    if (::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      address = text;
    ::freeaddrinfo(found);
  }
  const auto own = own_addresses();
  if (mine && (h.name == "localhost" || h.name == own_node() || own.contains(address) || address.starts_with("127.")))
    return "here";
  return address + (h.port == 0 ? "" : " port " + std::to_string(h.port));
}

// The hosts by their keys; of two names for one host the first counts.
[[nodiscard]] inline std::vector<ListedHost> with_keys(std::vector<Host> hosts) {
  std::vector<ListedHost> listed;
  for (Host& h : hosts) {
    const std::string key = key_of(h);
    if (std::none_of(listed.begin(), listed.end(), [&](const auto& l) { return l.key == key; }))
      listed.push_back({std::move(h), key});
  }
  return listed;
}

// Looks at the file in a thread of its own, because a name server or a file server may take its time. An edit counts
// when it was renamed into place, or when the file has been the same for a second and ends in a newline.
class HostsWatch {
 public:
  struct HostsUpdate {
    std::optional<std::vector<ListedHost>> hosts{};
    std::string problem{};  // what is wrong with it; said once
  };

  explicit HostsWatch(std::filesystem::path file)
      : file_(std::move(file)), notify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    // Without the news of it, as from a file server, the second holds.
    if (notify_.get() >= 0) ::inotify_add_watch(notify_.get(), file_.parent_path().c_str(), IN_MOVED_TO);
    judged_ = look();
    thread_ = std::thread([this] { run(); });
  }
  ~HostsWatch() {
    over_ = true;
    thread_.join();
  }
  HostsWatch(const HostsWatch&) = delete;
  HostsWatch& operator=(const HostsWatch&) = delete;

  [[nodiscard]] HostsUpdate take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(updates_, {});
  }

 private:
  // What changes with the file; all 0 where it is missing.
  using Look = std::tuple<ino_t, off_t, time_t, long, time_t, long>;

  [[nodiscard]] Look look() const {
    struct stat s {};
    if (::stat(file_.c_str(), &s) != 0) return {};
    return {s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec};
  }
  // Whether the file has been renamed into its place since the last call.
  [[nodiscard]] bool renamed() const {
    alignas(inotify_event) std::array<char, 4096> buffer{};
    bool yes = false;
    for (ssize_t n = 0; (n = ::read(notify_.get(), buffer.data(), buffer.size())) > 0;)
      for (std::size_t at = 0; at < static_cast<std::size_t>(n);) {
        inotify_event event{};
        std::memcpy(&event, buffer.data() + at, sizeof event);
        yes = yes || (event.len > 0 && file_.filename() == std::string(buffer.data() + at + sizeof event));
        at += sizeof event + event.len;
      }
    return yes;
  }

  void run() {
    Look seen = judged_;
    auto since = Clock::now();
    while (!over_) {
      pollfd fd{notify_.get(), POLLIN, 0};
      (void)::poll(&fd, 1, 50);
      const bool whole = renamed();
      const Look now = look();
      if (now != seen) {
        seen = now;
        since = Clock::now();
      }
      if (!whole && (seen == judged_ || seconds_since(since) < 1)) continue;
      judged_ = seen;
      judge(whole);
    }
  }
  void judge(bool whole) {
    HostsUpdate news;
    try {
      const std::string text = io::read_text_file(file_, max_hosts_file_bytes);
      if (!whole && !text.empty() && !text.ends_with('\n'))
        fail<DataError>(file_.string(), "a newline at its end", "the middle of a line",
                        "a finished file, renamed into its place, counts at once");
      news.hosts = with_keys(parse_hosts(text, file_.string()));
      said_.clear();
    } catch (const Error& e) {
      if (said_ == e.what()) return;
      news.problem = said_ = e.what();
    }
    const std::lock_guard lock(mutex_);
    if (news.hosts) updates_.hosts = std::move(news.hosts);
    if (!news.problem.empty()) updates_.problem = std::move(news.problem);
  }
  std::filesystem::path file_;
  io::Descriptor notify_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  HostsUpdate updates_;
  Look judged_{};     // the thread's
  std::string said_;  // the thread's
  std::thread thread_;
};

}  // namespace tutti::launch
