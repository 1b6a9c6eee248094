// SPDX-License-Identifier: MIT
#include "tools/launch/job/job_output.hpp"

#include <poll.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace tutti::launch {

void JobOutput::say(const std::vector<Problem>& problems) {
  std::set<std::string> said;
  constexpr std::size_t most = 8;
  for (const Problem& p : problems)
    if (said.insert(p.message).second && said.size() <= most) say(p.message);
  if (said.size() > most) say("and " + std::to_string(said.size() - most) + " more like these");
}

void JobOutput::send(const pollfd* two) {
  if (two[0].revents != 0) out.send();
  if (two[1].revents != 0) err.send();
}

void JobOutput::flush(bool hurry) {
  const auto began = Clock::now();
  for (OutputQueue* q : {&out, &err})
    while (q->size() > 0 && (!hurry || seconds_since(began) < 1)) {
      pollfd fd{q->fd(), POLLOUT, 0};
      if (::poll(&fd, 1, 100) > 0) q->send();
    }
}

}  // namespace tutti::launch
