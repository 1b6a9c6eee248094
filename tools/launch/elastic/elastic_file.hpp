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

// The hosts file of an elastic job, which users edit while the job runs.
namespace tutti::launch {

// A line of the hosts file. key identifies the host: its address, or "here" for the launcher's host.
struct ListedHost {
  Host host;
  std::string key;
  [[nodiscard]] bool here() const { return key == "here"; }
};

// Returns the host's address from the system's resolver. If it has no address, for example because only ssh knows the
// name, returns the name.
[[nodiscard]] std::string key_of(const Host& h);

// Returns the hosts with their keys. If two names have the same key, only the first host is kept.
[[nodiscard]] std::vector<ListedHost> with_keys(std::vector<Host> hosts);

// Watches the file in its own thread, because name servers and file servers may be slow. An edit counts if the file was
// renamed into place, or if it has not changed for a second and ends in a newline.
class HostsWatch {
 public:
  struct HostsUpdate {
    std::optional<std::vector<ListedHost>> hosts{};
    std::string problem{};  // the error in the file; reported once
  };

  // written: the text that this process has written. A text that differs from it is an edit by another process.
  HostsWatch(std::filesystem::path file, const std::string& written);
  ~HostsWatch();
  HostsWatch(const HostsWatch&) = delete;
  HostsWatch& operator=(const HostsWatch&) = delete;

  [[nodiscard]] HostsUpdate take();

 private:
  // Properties that change with the file. All are 0 if the file does not exist.
  using Look = std::tuple<ino_t, off_t, time_t, long, time_t, long>;

  [[nodiscard]] Look look() const;
  // Returns whether there were events of the file since the last call, and sets whole_ by the last one.
  [[nodiscard]] bool read_events();

  void run();
  // Sets the problem of `update` if the file cannot be read.
  [[nodiscard]] std::string read(HostsUpdate& update) const;
  // whole: the file was renamed into place, and not written after that.
  void judge(const std::string& text, bool whole, HostsUpdate update);
  std::filesystem::path file_;
  io::Descriptor notify_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  HostsUpdate updates_;
  Look judged_{};       // used by the thread only
  bool whole_ = false;  // used by the thread only
  std::string said_;    // used by the thread only
  std::thread thread_;
};

}  // namespace tutti::launch
