// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_file.hpp"

#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/host/process.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

std::string key_of(const Host& h) {
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

std::vector<ListedHost> with_keys(std::vector<Host> hosts) {
  std::vector<ListedHost> listed;
  for (Host& h : hosts) {
    const std::string key = key_of(h);
    if (std::none_of(listed.begin(), listed.end(), [&](const auto& l) { return l.key == key; }))
      listed.push_back({std::move(h), key});
  }
  return listed;
}

HostsWatch::HostsWatch(std::filesystem::path file, const std::string& written)
    : file_(std::move(file)), notify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  // Without inotify events, as on a network file system, a file counts only after it has not changed for a second.
  if (notify_.get() >= 0)
    ::inotify_add_watch(notify_.get(), file_.parent_path().c_str(), IN_MOVED_TO | IN_MODIFY | IN_CREATE);
  const Look first = look();
  HostsUpdate ignored;
  if (read(ignored) == written) judged_ = first;
  thread_ = std::thread([this] { run(); });
}

HostsWatch::~HostsWatch() {
  over_ = true;
  thread_.join();
}

HostsWatch::HostsUpdate HostsWatch::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(updates_, {});
}

HostsWatch::Look HostsWatch::look() const {
  struct stat s {};
  if (::stat(file_.c_str(), &s) != 0) return {};
  return {s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec};
}

bool HostsWatch::read_events() {
  alignas(inotify_event) std::array<char, 4096> buffer{};
  bool any = false;
  for (ssize_t n = 0; (n = ::read(notify_.get(), buffer.data(), buffer.size())) > 0;)
    for (std::size_t at = 0; at < static_cast<std::size_t>(n);) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      const bool mine = event.len > 0 && file_.filename() == std::string(buffer.data() + at + sizeof event);
      if (mine || (event.mask & IN_Q_OVERFLOW) != 0) {
        any = true;
        whole_ = (event.mask & IN_MOVED_TO) != 0;
      }
      at += sizeof event + event.len;
    }
  return any;
}

void HostsWatch::run() {
  Look seen = look();
  auto since = Clock::now();
  const auto changes = [&] {
    const bool written = read_events() && !whole_;
    const Look now = look();
    if (now == seen && !written) return false;
    seen = now;
    since = Clock::now();
    return true;
  };
  while (!over_) {
    pollfd fd{notify_.get(), POLLIN, 0};
    // Other files of the folder may change often.
    if (::poll(&fd, 1, 50) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    (void)changes();
    if (!whole_ && (seen == judged_ || seconds_since(since) < 1)) continue;
    const bool whole = whole_;
    whole_ = false;
    HostsUpdate update;
    const std::string text = read(update);
    // The text may be half of an edit that began meanwhile.
    if (changes() || whole_) continue;
    judged_ = seen;
    judge(text, whole, std::move(update));
  }
}

std::string HostsWatch::read(HostsUpdate& update) const {
  try {
    return io::read_text_file(file_, max_hosts_file_bytes);
  } catch (const Error& e) {
    update.problem = e.what();
    return {};
  }
}

void HostsWatch::judge(const std::string& text, bool whole, HostsUpdate update) {
  try {
    if (update.problem.empty()) {
      if (!whole && !text.empty() && !text.ends_with('\n'))
        fail<DataError>(file_.string(), "a newline at the end", "an incomplete last line",
                        "write a new file and rename it to this name");
      update.hosts = with_keys(parse_hosts(text, file_.string()));
    }
  } catch (const Error& e) {
    update.problem = e.what();
  }
  if (update.hosts) said_.clear();
  if (!update.problem.empty() && std::exchange(said_, update.problem) == update.problem) return;
  const std::lock_guard lock(mutex_);
  if (update.hosts) updates_.hosts = std::move(update.hosts);
  if (!update.problem.empty()) updates_.problem = std::move(update.problem);
}

}  // namespace tutti::launch
