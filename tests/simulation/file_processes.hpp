// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "interposed_files.hpp"
#include "random.hpp"
#include "simulation.hpp"

namespace tutti::simulation {

// Where the simulation has a file of /proc.
inline thread_local std::string path_of_proc;
[[nodiscard]] inline const char* redirected(const char* path) {
  if (std::string_view(path).substr(0, 7) != "/proc/1") return path;
  path_of_proc = std::string(path).substr(1);
  return path_of_proc.c_str();
}

// Processes that meet through files, their files in /proc, and the faults that happen to them. hosts.cpp adds what the
// processes do.
class FileProcesses {
 protected:
  explicit FileProcesses(Simulation& simulation)
      : simulation_(simulation), s_(simulation.scheduler), plan_(simulation.options.seed, 4) {
    ::setenv("TUTTI_STATE_DIR", (std::filesystem::current_path() / "state").c_str(), 1);
    redirect = redirected;
    s_.on_end = [end = s_.on_end](Process& p) {
      std::filesystem::remove_all("proc/" + std::to_string(1000 + p.number));
      end(p);
    };
  }

  Process& start(const std::string& name, std::function<void(Process&)> main) {
    Process* const p = &s_.start_process(name, [this, main = std::move(main)] {
      return code_of([&] {
        main(s_.process());
        return 0;
      });
    });
    made_.push_back(p);
    // In half of the schedules some processes have a slow file server.
    if (Random slow(simulation_.options.seed, 20); slow.one_in(2))
      if (Random mine(simulation_.options.seed, 2000 + static_cast<std::uint64_t>(p->number)); mine.one_in(2))
        p->slow_files = 20 * ms;
    p->clocks.drift(s_.noise());
    // What /proc says of it: its start is its number.
    const std::filesystem::path folder = "proc/" + std::to_string(1000 + p->number);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "stat") << "1 (sim) S 1 1 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 " << p->number << "\n";
    return *p;
  }
  // Returns a time within which processes meet: they start at about the same moment, or one after the other.
  [[nodiscard]] Nanos short_time() {
    static constexpr Nanos times[] = {1000, 10'000, 100'000, ms, 4 * ms};
    return times[plan_.below(std::size(times))];
  }
  void sleep(Nanos least, Nanos most) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(s_.noise().between(least, most)));
  }
  // Stops and kills processes for a time. kills: whether a process may be killed.
  void disturb(Nanos time, bool kills) {
    for (std::size_t i = 0, n = plan_.below(5); i < n; ++i) {
      s_.sleep(plan_.between(0, time / 4));
      Random r(simulation_.options.seed, 1000 + i);
      if (simulation_.options.without.contains(i) || made_.empty()) continue;
      Process& p = *made_[r.below(made_.size())];
      if (!p.runs()) continue;
      const std::string name = "fault " + std::to_string(i) + ": ";
      if (kills && r.one_in(2)) {
        killed_ = true;
        simulation_.kill(p, name);
      } else if (r.one_in(4)) {
        simulation_.jump(p, r, name);
      } else {
        simulation_.stop(p, r.between(ms, 3 * second), name);
      }
    }
  }
  void await(const std::function<bool()>& done, const std::string& what) {
    const Nanos latest = s_.now() + simulation_.options.bound;
    while (!done()) {
      if (s_.now() > latest) s_.fail(what + " does not happen: " + s_.threads_text());
      s_.sleep(20 * ms);
    }
  }

  Simulation& simulation_;
  Scheduler& s_;
  Random plan_;
  std::deque<Process*> made_;
  bool killed_ = false;
};

}  // namespace tutti::simulation
