// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/host/process.hpp"
#include "tools/launch/job/commands.hpp"

namespace tutti::launch {

// What the job prints and what the launcher says of it, on their way to whoever reads them.
struct JobOutput {
  OutputQueue out{STDOUT_FILENO}, err{STDERR_FILENO};

  void print(std::string_view line) { out.put(std::string(line) + "\n"); }
  void complain(std::string_view line) { err.put(std::string(line) + "\n"); }
  void say(const std::string& text) { complain("tutti-launch: " + text); }
  // Says each problem once, and no more of them than can be read.
  void say(const std::vector<Problem>& problems);

  // Whether so much waits that no more is to be read for now.
  [[nodiscard]] bool full() const { return out.size() > (std::size_t{1} << 20) || err.size() > (std::size_t{1} << 20); }
  // Two entries for poll(), and what they came to.
  void wait_for(std::vector<pollfd>& fds) const {
    for (const OutputQueue* q : {&out, &err}) fds.push_back({q->size() > 0 ? q->fd() : -1, POLLOUT, 0});
  }
  void send(const pollfd* two);
  // Waits until it has been read, or in a hurry a second.
  void flush(bool hurry);
};

}  // namespace tutti::launch
