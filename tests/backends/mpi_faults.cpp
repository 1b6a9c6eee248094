// SPDX-License-Identifier: MIT
// mpi_faults WAY WHAT, for test_mpi.sh: makes a rank fail in the way WHAT and prints what the other ranks report. WAY:
// plain, shared or hosts.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/core/clock.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

MpiOptions options_of(const std::string& way, const std::string& what) {
  const auto deadline = what == "interrupted" ? 600s : 1500ms;
  if (way == "plain") return {.shared_memory = false, .deadline = deadline};
  if (way == "hosts") return {.deadline = deadline, .ranks_per_host = 2};
  if (way == "shared") return {.deadline = deadline};
  fail<UsageError>("mpi_faults", "plain, shared or hosts", way);
}

void sum(MpiCommunicator& c, const std::string& name, std::size_t n = 40'000) {
  std::vector<float> v(n, 1.F);
  // Imitates training: the communication thread begins the operation, and this thread waits for it a moment later.
  Work w = c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, name);
  std::this_thread::sleep_for(100ms);
  w.wait();
  if (v[0] != static_cast<float>(c.size())) fail("mpi_faults", "a right sum", std::to_string(v[0]));
}

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return of(u.ru_utime) + of(u.ru_stime);
}

// One rank does not arrive until another thread has interrupted the wait of the other ranks.
int be_interrupted(MpiCommunicator& c, bool bad) {
  std::thread other([&] {
    std::this_thread::sleep_for(300ms);
    c.interrupt();
  });
  const Stopwatch watch;
  const auto error = [&](const std::string& name) {
    try {
      sum(c, name);
    } catch (const CommunicationError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string first = bad ? "" : error("step 12 bucket 3");
  other.join();
  const std::string later = error("step 12 bucket 4");
  const bool good = (bad || first.starts_with("[step 12 bucket 3] expected all ranks")) &&
                    later.find("has aborted") != std::string::npos && watch.seconds() < 5;
  std::printf("rank %d: %s\n", c.rank(), good ? "was interrupted" : (first + later).c_str());
  std::fflush(stdout);
  std::this_thread::sleep_for(1s);  // When one process ends, mpirun ends the others.
  return good ? 75 : 1;
}

void handler(int) {}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const CommunicationError& e) {
    return e.what();
  }
  return "no error";
}

// Prints MPI's own message, and the error of a second session in one process.
int errors(const MpiOptions& o) {
  {
    const MpiCommunicator c(o);
    std::printf("%s\n", error_of([] { mpi_check(MPI_ERR_TRUNCATE, "MPI_Recv", "step 3"); }).c_str());
  }
  std::printf("%s\n", error_of([&] { const MpiCommunicator c(o); }).c_str());
  return 0;
}

void run(MpiCommunicator& c, const std::string& what, int bad) {
  const bool is_bad = c.rank() == bad;
  sum(c, "step 12 bucket 2");
  if (what == "sleeps") {
    // This rank lives but does not arrive. The other ranks must not wait for ever.
    if (is_bad) std::this_thread::sleep_for(1min);
    sum(c, "step 12 bucket 3");
  } else if (what == "stops") {
    if (is_bad) raise(SIGSTOP);
    sum(c, "step 12 bucket 3");
  } else if (what == "host_stops") {
    // All ranks of the last host stop, as after a network failure: only ranks of other hosts can report it.
    if (c.rank() >= c.size() - 2) raise(SIGSTOP);
    sum(c, "step 12 bucket 3");
  } else if (what == "dies") {
    if (is_bad) raise(SIGKILL);
    sum(c, "step 12 bucket 3");
  } else if (what == "throws") {
    // While an exception propagates, the process must not wait for the other ranks.
    if (is_bad) fail<DataError>("record 7", "3073 bytes", "12");
    sum(c, "step 12 bucket 3");
  } else if (what == "aborts") {
    if (is_bad) c.abort("record 7 is damaged", ExitCode::data);
    sum(c, "step 12 bucket 3");
  } else if (what == "differs") {
    sum(c, "step 12 bucket 3", is_bad ? 40'001 : 40'000);
  } else if (what == "waits") {
    // A rank that waits for a late rank must use almost no processor time.
    if (is_bad) {
      std::this_thread::sleep_for(1s);
      return sum(c, "late");
    }
    const double before = cpu_seconds();
    const Stopwatch watch;
    sum(c, "late");
    const double share = (cpu_seconds() - before) / watch.seconds();
    std::printf("rank %d: %.1f %% of a core\n", c.rank(), share * 100);
  } else {
    fail<UsageError>("mpi_faults", "what to do", what);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3)
      fail<UsageError>("mpi_faults", "plain|shared|hosts and what to do", std::to_string(argc - 1) + " words");
    signal(SIGINT, &handler);
    signal(SIGTERM, &handler);
    if (argv[2] == std::string("errors")) return errors(options_of(argv[1], argv[2]));
    MpiCommunicator c(options_of(argv[1], argv[2]));
    for (const int s : {SIGINT, SIGTERM}) {
      struct sigaction now {};
      sigaction(s, nullptr, &now);
      if (now.sa_handler != &handler) fail("mpi_faults", "the program's signal handler", "another");
    }
    const std::string what = argv[2];
    if (what == "interrupted") return be_interrupted(c, c.rank() == c.size() - 1);
    // With "hosts" the last rank is on another host than rank 0.
    const int bad = c.size() - 1;
    if (what == "throws" && c.rank() == bad) {
      run(c, what, bad);
    } else {
      try {
        run(c, what, bad);
      } catch (const Error& e) {
        c.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
        return e.exit_code();
      }
    }
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "mpi_faults: %s\n", e.what());
    return e.exit_code();
  }
}
