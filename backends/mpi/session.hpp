// SPDX-License-Identifier: MIT
#pragma once

// MPI 3 has no C++ bindings.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>

namespace tutti {

// Throws CommunicationError if an MPI call returned an error code. what: the operation that made the call.
inline void mpi_check(int code, std::string_view call, std::string_view what = "MPI") {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  fail<CommunicationError>(
      what, {call, " to succeed"},
      length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : "error " + std::to_string(code));
}

// MPI from its start to its end, each of which may happen once in a process. Communicators share the session, and the
// last one ends it. If the program started MPI itself, the program must also end it.
class MpiSession {
 public:
  // Returns the session of this process, and starts MPI if it is not running.
  [[nodiscard]] static std::shared_ptr<MpiSession> open() {
    static std::mutex mutex;
    static std::weak_ptr<MpiSession> current;
    const std::lock_guard lock(mutex);
    if (auto s = current.lock()) return s;
    std::shared_ptr<MpiSession> s(new MpiSession);
    current = s;
    return s;
  }
  ~MpiSession() {
    // MPI_Finalize waits for all ranks. After a failure some ranks may never arrive.
    if (owner_ && !failed() && std::uncaught_exceptions() == 0) MPI_Finalize();
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // After this call the process does not wait for other ranks, not even at the end of MPI.
  void mark_failed() noexcept { failed_.store(true); }
  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }

 private:
  MpiSession() {
    int flag = 0;
    mpi_check(MPI_Finalized(&flag), "MPI_Finalized");
    if (flag != 0)
      fail<CommunicationError>("MPI", "one MPI session per process", "a second session",
                               "keep the session of MpiSession::open() while communicators are opened and closed");
    mpi_check(MPI_Initialized(&flag), "MPI_Initialized");
    int level = MPI_THREAD_SINGLE;
    if (flag == 0) {
      // The program handles SIGINT and SIGTERM: it finishes the step and saves the state.
      struct sigaction before[2];
      sigaction(SIGINT, nullptr, &before[0]);
      sigaction(SIGTERM, nullptr, &before[1]);
      // With more ranks than cores, Open MPI would yield whenever it has no work. spin_pause() explains why that is
      // slow, so MpiWaiter sleeps instead. Keeps a value that the user has set.
      ::setenv("OMPI_MCA_mpi_yield_when_idle", "0", 0);
      // One thread at a time calls MPI, but not always the same thread.
      const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
      sigaction(SIGINT, &before[0], nullptr);
      sigaction(SIGTERM, &before[1], nullptr);
      mpi_check(code, "MPI_Init_thread");
      owner_ = true;
    } else {
      mpi_check(MPI_Query_thread(&level), "MPI_Query_thread");
    }
    if (level < MPI_THREAD_SERIALIZED)
      fail<CommunicationError>("MPI", "MPI_THREAD_SERIALIZED or more", {"level ", level},
                               "start MPI with MPI_Init_thread, or let tutti start it");
    mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  bool owner_ = false;
  std::atomic<bool> failed_{false};
};

}  // namespace tutti
