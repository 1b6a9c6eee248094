// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>

#include "network.hpp"
#include "scheduler.hpp"
#include "system.hpp"

namespace tutti::simulation {

struct ScheduleOptions {
  std::uint64_t seed = 1;
  bool story = false;               // print the history
  Nanos bound = 180 * second;       // a job must end within this time after the last fault
  Nanos rank_timeout = 0;           // 0: random
  std::set<std::size_t> without{};  // numbers of faults that do not happen
  bool exhaustive = false;          // the seed is the number of a list of faults (fault_plan.hpp), from 1
};

// One schedule: a scheduler and a network. It exists in a process that ends after the schedule.
class Simulation {
 public:
  explicit Simulation(const ScheduleOptions& o) : options(o), scheduler(o.seed), network(scheduler) {
    scheduler.on_end = [this](Process& p) { end(p); };
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  ScheduleOptions options;
  Scheduler scheduler;
  Network network;
  std::set<const Process*> silent;  // processes that lost their power: their peers do not learn of it

  // ---- faults; name: "fault 3: " ----
  void kill(Process& p, const std::string& name) {
    scheduler.note(name + "SIGKILL of " + p.name);
    scheduler.kill(p, SIGKILL);
  }
  void stop(Process& p, Nanos time, const std::string& name) {
    scheduler.note(name + p.name + " is stopped" + lasting(time));
    p.pause_until(scheduler.now() + time);
  }
  void jump(Process& p, Random& r, const std::string& name) {
    scheduler.note(name + "the wall clock of " + p.name + " jumps");
    p.clocks.jump(r.between(-3600, 3600) * second);
  }

 private:
  void end(Process& p) {
    // The world's process ends with the schedule.
    if (p.state == Process::State::exited && (p.threads != 1 || !p.descriptors.empty()))
      scheduler.fail(p.name + " left " + std::to_string(p.threads - 1) + " threads and " +
                     std::to_string(p.descriptors.size()) + " descriptors");
    for (const int d : p.descriptors)
      if (!Network::owns(d)) TUTTI_SYSTEM(close)(d);
    network.close_all(p, silent.contains(&p));
  }
};

// Returns a text without the schedule's folder, which has another name in each run.
[[nodiscard]] inline std::string without_folder(std::string text) {
  const std::string folder = std::filesystem::current_path();
  for (std::size_t at = 0; (at = text.find(folder, at)) != std::string::npos;) text.replace(at, folder.size(), ".");
  return text;
}
// Returns the exit code of the running process, whose main function is f(). Its errors have codes of their own.
template <class F>
[[nodiscard]] int code_of(F&& f) {
  Scheduler& s = *Scheduler::current();
  Process& p = s.process();
  int code = 1;
  try {
    code = f();
  } catch (const Error& e) {
    code = e.exit_code();
    p.error = without_folder(e.what());
  } catch (const std::exception& e) {
    p.error = without_folder(e.what());
  }
  if (code != 0) s.note(p.name + ": " + p.error);
  return code;
}

namespace detail {

// Runs the schedule in this process, writes "ok ..." or "FAILED ..." and then the history, and ends the process.
[[noreturn]] inline void run_schedule(const ScheduleOptions& o, const std::function<void(Simulation&)>& scenario,
                                      int output) {
  // A schedule that hangs uses up its processor time, however loaded the machine is.
  const rlimit most{60, 70};
  ::setrlimit(RLIMIT_CPU, &most);
  ::mallopt(M_ARENA_MAX, 1);  // only one thread runs at a time
  Simulation simulation(o);
  Scheduler& s = simulation.scheduler;
  s.keep_history();
  const auto finish = [&](const std::string& line) {
    std::FILE* const to = ::fdopen(output, "w");
    std::fprintf(to, "%s simulated %lld ms, %llu switches, history %016llx\n%s", line.c_str(),
                 static_cast<long long>(s.now() / ms), static_cast<unsigned long long>(s.switches()),
                 static_cast<unsigned long long>(s.hash()), s.history().c_str());
    ::_exit(std::fflush(to));
  };
  s.on_failure = [&](const std::string& why) { finish("FAILED: " + why + ";"); };
  try {
    scenario(simulation);
  } catch (const std::exception& e) {
    s.fail(e.what());
  }
  finish("ok");
  std::abort();
}

// Runs the schedule in a child process. Returns its output.
[[nodiscard]] inline std::string run_child(const ScheduleOptions& o, const std::function<void(Simulation&)>& scenario) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  std::fflush(nullptr);
  // The files of the schedule are relative to a folder of its own, in memory if possible.
  const std::filesystem::path memory = "/dev/shm";
  const bool in_memory = ::access(memory.c_str(), W_OK | X_OK) == 0;
  const std::string base = (in_memory ? memory : std::filesystem::temp_directory_path()) / "tutti-simulation-XXXXXX";
  std::vector<char> folder(base.c_str(), base.c_str() + base.size() + 1);
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    if (::chdir(folder.data()) != 0) std::abort();
    // Its threads take turns, and wake each other faster on one core.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
    // The program's own messages are not part of the history.
    const int none = o.story ? -1 : ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (const int d : {STDOUT_FILENO, STDERR_FILENO})
      if (none >= 0) ::dup2(none, d);
    run_schedule(o, scenario, ends[1]);
  }
  ::close(ends[1]);
  std::string text;
  char block[65536];
  for (ssize_t n = 0; (n = ::read(ends[0], block, sizeof block)) > 0;) text.append(block, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder.data(), ignored);
  if (WIFSIGNALED(status))
    return "FAILED: the process ended by signal " + std::to_string(WTERMSIG(status)) +
           (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL ? ", after 60 s of processor time" : "") + "\n";
  return text;
}

}  // namespace detail

// The main function of a program with one scenario:
//   PROGRAM [--first-seed S] [--seeds N] [--until-failure] [--story] [--twice] [--bound SECONDS]
//           [--rank-timeout SECONDS] [--without N[,N...]] [--exhaustive]
//   PROGRAM --lists
// Runs the scenario with N seeds. Prints a line for each seed that fails, with the command that repeats it, and ends
// with 1 if there are any. --until-failure: runs no seed after the first one that fails. --story: prints each history.
// --twice: runs each seed twice and compares the histories byte for byte. --bound 180: time within which the job must
// end after the last fault. --rank-timeout: instead of a random one. --without: leaves out these faults. --exhaustive:
// the seeds are the numbers of the lists of fault_plan.hpp, 1 to `lists`; a scenario with 0 of them has no such option.
// --lists: prints that number.
inline int run_schedules(int argc, char** argv, const std::function<void(Simulation&)>& scenario,
                         std::uint64_t lists = 0) {
  std::uint64_t first = 1, seeds = 1;
  ScheduleOptions o;
  bool twice = false, until_failure = false;
  std::string more;  // options that a command to repeat a seed needs
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    const auto value = [&] {
      if (i + 1 < argc) return argv[++i];
      std::fprintf(stderr, "%s: %s needs a value\n", argv[0], argv[i]);
      std::exit(2);
    };
    if (word == "--lists") {
      std::printf("%llu\n", static_cast<unsigned long long>(lists));
      return 0;
    }
    if (word == "--first-seed") {
      first = std::strtoull(value(), nullptr, 10);
    } else if (word == "--seeds") {
      seeds = std::strtoull(value(), nullptr, 10);
    } else if (word == "--until-failure") {
      until_failure = true;
    } else if (word == "--story") {
      o.story = true;
    } else if (word == "--exhaustive") {
      o.exhaustive = true;
      more += " --exhaustive";
    } else if (word == "--twice") {
      twice = true;
    } else if (word == "--bound" || word == "--rank-timeout") {
      const char* const time = value();
      (word == "--bound" ? o.bound : o.rank_timeout) = static_cast<Nanos>(std::strtoull(time, nullptr, 10)) * second;
      more += " " + std::string(word) + " " + time;
    } else if (word == "--without") {
      const char* const without = value();
      more += std::string(" --without ") + without;
      for (const char* p = without; *p != 0;) {
        char* end = nullptr;
        o.without.insert(std::strtoull(p, &end, 10));
        p = *end == ',' ? end + 1 : end + (*end != 0 ? 1 : 0);
      }
    } else {
      std::fprintf(stderr,
                   "usage: %s [--first-seed S] [--seeds N] [--until-failure] [--story] [--twice] [--bound SECONDS] "
                   "[--rank-timeout SECONDS] [--without N[,N...]] [--exhaustive]\n       %s --lists\n",
                   argv[0], argv[0]);
      return 2;
    }
  }
  if (o.exhaustive && (first < 1 || first > lists || seeds > lists - first + 1)) {
    std::fprintf(stderr, "%s: --exhaustive: expected lists from 1 to %llu, got %llu from %llu\n", argv[0],
                 static_cast<unsigned long long>(lists), static_cast<unsigned long long>(seeds),
                 static_cast<unsigned long long>(first));
    return 2;
  }
  std::uint64_t failed = 0, switches = 0;
  double simulated = 0;
  for (o.seed = first; o.seed < first + seeds; ++o.seed) {
    const std::string text = detail::run_child(o, scenario);
    const std::string line = text.substr(0, text.find('\n'));
    if (o.story) std::fputs(text.c_str(), stdout);
    if (const auto at = line.find(" simulated "); at != std::string::npos) {
      char* end = nullptr;
      simulated += std::strtod(line.c_str() + at + 11, &end) / 1000;
      switches += std::strtoull(end + 5, nullptr, 10);
    }
    const bool differs = twice && detail::run_child(o, scenario) != text;
    if (line.starts_with("ok") && !differs) continue;
    ++failed;
    std::printf("seed %llu: %s\n  repeat: %s --first-seed %llu --story%s\n", static_cast<unsigned long long>(o.seed),
                differs ? "two runs have different histories" : line.c_str(), argv[0],
                static_cast<unsigned long long>(o.seed), more.c_str());
    std::fflush(stdout);
    if (until_failure) seeds = o.seed - first + 1;
  }
  std::printf("%llu seeds from %llu: %llu failed, %.0f s simulated, %llu switches\n",
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(failed), simulated, static_cast<unsigned long long>(switches));
  return failed == 0 ? 0 : 1;
}

}  // namespace tutti::simulation
