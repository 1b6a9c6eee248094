// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include <tutti/core/error.hpp>

namespace tutti {

// While such an object exists, SIGINT and SIGTERM do not end the process, but make the training loop stop after its
// step. A second SIGINT ends the process at once with status 130. Only one object may exist at a time.
class StopSignals {
 public:
  StopSignals() {
    static_assert(std::atomic<int>::is_always_lock_free);
    if (alive().exchange(true)) fail<UsageError>("StopSignals", "at most one object", "a second one");
    received().store(0);
    struct sigaction action {};
    action.sa_handler = &StopSignals::handle;
    ::sigemptyset(&action.sa_mask);
    // Reads and writes are restarted, so that a request to stop leaves no half-written file.
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &before_[i]);
  }
  ~StopSignals() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
    alive().store(false);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] static bool stop_requested() noexcept { return received().load(std::memory_order_relaxed) != 0; }
  // Returns the first signal that has arrived, or 0.
  [[nodiscard]] static int signal_number() noexcept { return received().load(std::memory_order_relaxed); }
  // Returns 130 after SIGINT, 143 after SIGTERM, and 0 without a signal.
  [[nodiscard]] static int exit_code() noexcept { return stop_requested() ? 128 + signal_number() : 0; }

 private:
  static constexpr std::array<int, 2> signals{SIGINT, SIGTERM};

  static std::atomic<int>& received() noexcept {
    static constinit std::atomic<int> value{0};
    return value;
  }
  static std::atomic<bool>& alive() noexcept {
    static constinit std::atomic<bool> value{false};
    return value;
  }

  // Uses only functions that POSIX allows in a handler.
  static void handle(int number) {
    int none = 0;
    if (received().compare_exchange_strong(none, number)) {
      say("\nstopping after this step; interrupt again to end at once\n");
    } else if (number == SIGINT) {
      say("\nended at once; the work since the last checkpoint, if any, is lost\n");
      ::_exit(static_cast<int>(ExitCode::interrupted));
    }
  }
  static void say(const char* text) noexcept {
    const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    (void)written;
  }

  std::array<struct sigaction, signals.size()> before_{};
};

}  // namespace tutti
