// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <csignal>
#include <functional>

#include <tutti/core/error.hpp>

// Signals and exit code of a process that serves workers and does not train itself.
namespace tutti {

namespace detail {

inline volatile std::sig_atomic_t server_signal = 0;

}  // namespace detail

// The work of such a process. stop_requested returns true after a signal.
using Serving = std::function<void(const std::function<bool()>& stop_requested)>;

// Runs `serving` and returns the exit code of the process: 0, or 128 + N after signal N. The first SIGINT or SIGTERM
// ends a server if its workers have not arrived yet; otherwise the server ends with its workers, which save their
// state. The second signal ends the process at once.
[[nodiscard]] inline int run_server_process(const Serving& serving) {
  struct sigaction action {};
  action.sa_handler = [](int number) { detail::server_signal = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  bool stopped = false;
  try {
    serving([&] { return stopped = detail::server_signal != 0; });
  } catch (const CommunicationError&) {
    if (!stopped) throw;  // otherwise the signal is the reason
  }
  return stopped ? 128 + detail::server_signal : 0;
}

}  // namespace tutti
