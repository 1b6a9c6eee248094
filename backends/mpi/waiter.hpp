// SPDX-License-Identifier: MIT
#pragma once

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/core/threads/spin_pause.hpp>

namespace tutti {

// Waits for MPI's non-blocking operations by polling with increasing pauses, because MPI's own waits keep a core busy.
// If the deadline passes, the rank makes a roll call: ranks that still poll answer, and the error names the remaining
// ranks.
class MpiWaiter {
 public:
  // names: the names of the ranks of `comm`. A collective call, because it duplicates `comm`.
  MpiWaiter(MPI_Comm comm, std::vector<std::string> names, MpiSession& session)
      : session_(session), names_(std::move(names)) {
    mpi_check(MPI_Comm_dup(comm, &roll_), "MPI_Comm_dup");
    mpi_check(MPI_Comm_rank(roll_, &rank_), "MPI_Comm_rank");
  }
  MpiWaiter(const MpiWaiter&) = delete;
  MpiWaiter& operator=(const MpiWaiter&) = delete;
  void release() noexcept { MPI_Comm_free(&roll_); }

  // Makes current and later waits throw. Any thread may call it.
  void stop() noexcept { stopped_.store(true); }

  // What a wait is for: ranks that may arrive at any time, or a transfer that makes progress only when it is polled.
  enum class For { ranks, transfer };

  // The time after the deadline within which each living rank must answer the roll call.
  static constexpr std::chrono::seconds roll_call{1};

  void wait(MPI_Request& request, For what_for, const Deadline& deadline, std::string_view what) {
    const auto ended = [&] {
      int done = 0;
      mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", what);
      return done != 0;
    };
    wait_for(ended, what_for, deadline, what);
  }
  // Waits until ended() returns true. It must call MPI.
  template <class F>
  void wait_for(const F& ended, For what_for, const Deadline& deadline, std::string_view what) {
    using namespace std::chrono;
    const auto start = steady_clock::now();
    nanoseconds pause = shortest, last_roll{0};
    for (int asked = 0;; ++asked) {
      if (ended()) return;
      if (stopped_.load(std::memory_order_relaxed))
        fail<CommunicationError>(what, "all ranks", "this rank has aborted");
      if (asked < at_once) {
        spin_pause();
        continue;
      }
      const nanoseconds waited = steady_clock::now() - start;
      if (deadline.is_over()) give_up(what, waited);
      if (waited - last_roll > roll_pause) {
        answer();
        last_roll = waited;
      }
      sharpen_sleep();
      std::this_thread::sleep_for(std::min<nanoseconds>(pause, deadline.next_wait()));
      // A pause of a fiftieth of the time waited so far delays the last rank only a little.
      const nanoseconds limit =
          what_for == For::transfer ? longest_transfer : std::clamp<nanoseconds>(waited / 50, longest, longest_idle);
      pause = std::min<nanoseconds>(pause + pause / 2, limit);
    }
  }

 private:
  static constexpr int at_once = 20;
  static constexpr std::chrono::nanoseconds shortest{5'000}, longest_transfer{50'000}, longest{200'000},
      longest_idle{5'000'000}, roll_pause{20'000'000};
  static constexpr int call_tag = 1, answer_tag = 2;

  // Makes sleeps of this thread accurate to about a microsecond. Linux's default is 50 microseconds.
  static void sharpen_sleep() noexcept {
    thread_local const bool done = ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL) == 0;
    (void)done;
  }

  // Sends an empty message, which needs neither a buffer nor a wait.
  void send(int to, int tag) noexcept {
    MPI_Request r = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, roll_, &r) == MPI_SUCCESS) MPI_Request_free(&r);
  }
  bool take(int tag, int& from) noexcept {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, roll_, &there, &status) != MPI_SUCCESS || there == 0) return false;
    from = status.MPI_SOURCE;
    return MPI_Recv(nullptr, 0, MPI_BYTE, from, tag, roll_, MPI_STATUS_IGNORE) == MPI_SUCCESS;
  }
  void answer() noexcept {
    for (int from = 0; take(call_tag, from);) send(from, answer_tag);
  }

  [[noreturn]] void give_up(std::string_view what, std::chrono::nanoseconds waited) {
    using namespace std::chrono;
    session_.mark_failed();
    std::vector<bool> here(names_.size(), false);
    here[static_cast<std::size_t>(rank_)] = true;
    for (int r = 0; r < static_cast<int>(names_.size()); ++r)
      if (r != rank_) send(r, call_tag);
    const auto end = steady_clock::now() + roll_call;
    while (steady_clock::now() < end && std::find(here.begin(), here.end(), false) != here.end()) {
      for (int from = 0; take(answer_tag, from);) here[static_cast<std::size_t>(from)] = true;
      answer();
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::string missing;
    for (std::size_t r = 0; r < here.size(); ++r)
      if (!here[r]) missing += (missing.empty() ? "" : ", ") + names_[r];
    const std::string time = std::to_string(duration_cast<milliseconds>(waited).count()) + " ms";
    if (missing.empty())
      fail<CommunicationError>(what, "the end of the operation within the deadline",
                               {"no end after ", time, ", although all ranks still take part"},
                               "raise --comm-deadline, or check the network");
    fail<CommunicationError>(what, "all ranks within the deadline", {"no message from ", missing, " for ", time},
                             "check these ranks, or raise --comm-deadline");
  }

  MpiSession& session_;
  std::vector<std::string> names_;
  MPI_Comm roll_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::atomic<bool> stopped_{false};
};

}  // namespace tutti
