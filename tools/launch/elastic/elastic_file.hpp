// SPDX-License-Identifier: MIT
#pragma once

#include <sys/inotify.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/io/file.hpp>

// The hosts file of a job whose workers come and go, which somebody edits while it runs.
namespace tutti::launch {

// A line of it. key: by which hosts are compared, their address; "here" for the launcher's own.
struct ListedHost {
  Host host;
  std::string key;
  [[nodiscard]] bool here() const { return key == "here"; }
};

// Asks the system for the host's address; its name serves where there is none, as with names that only ssh knows.
[[nodiscard]] std::string key_of(const Host& h);

// The hosts by their keys; of two names for one host the first counts.
[[nodiscard]] std::vector<ListedHost> with_keys(std::vector<Host> hosts);

// Looks at the file in a thread of its own, because a name server or a file server may take its time. An edit counts
// when it was renamed into place, or when the file has been the same for a second and ends in a newline.
class HostsWatch {
 public:
  struct HostsUpdate {
    std::optional<std::vector<ListedHost>> hosts{};
    std::string problem{};  // what is wrong with it; said once
  };

  explicit HostsWatch(std::filesystem::path file);
  ~HostsWatch();
  HostsWatch(const HostsWatch&) = delete;
  HostsWatch& operator=(const HostsWatch&) = delete;

  [[nodiscard]] HostsUpdate take();

 private:
  // What changes with the file; all 0 where it is missing.
  using Look = std::tuple<ino_t, off_t, time_t, long, time_t, long>;

  [[nodiscard]] Look look() const;
  // Whether the file has been renamed into its place since the last call.
  [[nodiscard]] bool renamed() const;

  void run();
  void judge(bool whole);
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
