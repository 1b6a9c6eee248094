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

// Queues the output of the job and the messages of the launcher.
struct JobOutput {
  OutputQueue out{STDOUT_FILENO}, err{STDERR_FILENO};

  void print(std::string_view line) { out.put(std::string(line) + "\n"); }
  void complain(std::string_view line) { err.put(std::string(line) + "\n"); }
  void say(const std::string& text) { complain("tutti-launch: " + text); }
  // Prints each problem once, up to a readable number of problems.
  void say(const std::vector<Problem>& problems);

  // Returns whether so much is queued that no more output should be read for now.
  [[nodiscard]] bool full() const { return out.size() > (std::size_t{1} << 20) || err.size() > (std::size_t{1} << 20); }
  // Adds two entries for poll(). Pass their results to send().
  void wait_for(std::vector<pollfd>& fds) const {
    for (const OutputQueue* q : {&out, &err}) fds.push_back({q->size() > 0 ? q->fd() : -1, POLLOUT, 0});
  }
  void send(const pollfd* two);
  // Waits until all output has been written. With `hurry`, waits for at most one second.
  void flush(bool hurry);
};

}  // namespace tutti::launch
