// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "process.hpp"

namespace tutti::launch {

// What the job prints and what the launcher says of it, on their way to whoever reads them.
struct JobOutput {
  OutputQueue out{STDOUT_FILENO}, err{STDERR_FILENO};

  void print(std::string_view line) { out.put(std::string(line) + "\n"); }
  void complain(std::string_view line) { err.put(std::string(line) + "\n"); }
  void say(const std::string& text) { complain("tutti-launch: " + text); }
  // Says each problem once, and no more of them than can be read.
  void say(const std::vector<Problem>& problems) {
    std::set<std::string> said;
    constexpr std::size_t most = 8;
    for (const Problem& p : problems)
      if (said.insert(p.message).second && said.size() <= most) say(p.message);
    if (said.size() > most) say("and " + std::to_string(said.size() - most) + " more like these");
  }

  // Whether so much waits that no more is to be read for now.
  [[nodiscard]] bool full() const { return out.size() > (std::size_t{1} << 20) || err.size() > (std::size_t{1} << 20); }
  // Two entries for poll(), and what they came to.
  void wait_for(std::vector<pollfd>& fds) const {
    for (const OutputQueue* q : {&out, &err}) fds.push_back({q->size() > 0 ? q->fd() : -1, POLLOUT, 0});
  }
  void send(const pollfd* two) {
    if (two[0].revents != 0) out.send();
    if (two[1].revents != 0) err.send();
  }
  // Waits until it has been read, or in a hurry a second.
  void flush(bool hurry) {
    const auto began = Clock::now();
    for (OutputQueue* q : {&out, &err})
      while (q->size() > 0 && (!hurry || seconds_since(began) < 1)) {
        pollfd fd{q->fd(), POLLOUT, 0};
        if (::poll(&fd, 1, 100) > 0) q->send();
      }
  }
};

}  // namespace tutti::launch
