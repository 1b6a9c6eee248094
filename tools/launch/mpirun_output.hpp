// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>

#include "link.hpp"
#include "mpi.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "wire.hpp"

namespace tutti::launch {

// mpirun's own words, beside the lines of the processes. They are held back for a moment: when a process has failed
// they only repeat it.
class MpirunOutput {
 public:
  // A line of mpirun's standard error; one of a process goes on to `err`.
  void hear(std::string_view line, OutputQueue& err) {
    const bool of_a_process = line.starts_with("[") && line.find("] ") != std::string_view::npos &&
                              line.find_first_not_of("s0123456789", 1) == line.find(']');
    if (of_a_process) return err.put(std::string(line) + "\n");
    // Open MPI 4.1 warns of a harmless race of its own.
    if (line.find("plm:rsh: Warning: setpgid(") != std::string_view::npos) return;
    if (const auto rank = rank_that_mpirun_blames(line)) blames_ = *rank;
    if (!line.empty() && held_.size() < 65536) held_.append(line).append("\n");
    heard_ = Clock::now();
  }
  // Seconds since the last held line; 0 where none is held.
  [[nodiscard]] double quiet_for() const { return held_.empty() ? 0 : seconds_since(heard_); }
  [[nodiscard]] const std::string& held() const noexcept { return held_; }
  void forget() {
    held_.clear();
    blames_ = -1;
  }
  void repeat(OutputQueue& err) {
    LineSplitter lines;
    lines.feed(held_, [&](std::string_view line) { err.put("mpirun: " + std::string(line) + "\n"); });
    held_.clear();
  }

  // What to say where mpirun failed and no process did; last_report(name) says where a process was.
  template <class F>
  [[nodiscard]] Problem problem(const Child& mpirun, const Plan& plan, const F& last_report) const {
    const int code = mpirun.code();
    std::string got =
        mpirun.by_signal() ? "its end by " + signal_text(code - 128) : "exit code " + std::to_string(code);
    if (blames_ >= 0 && static_cast<std::size_t>(blames_) < plan.site_of_mpi_rank.size()) {
      const auto& site = plan.sites[plan.site_of_mpi_rank[static_cast<std::size_t>(blames_)]];
      std::string name;
      for (const ProcessOrder& p : site.order.processes)
        if (p.mpi_rank == blames_) name = process_name(p.role, p.rank);
      got = "mpirun's word that it failed, with " + got + last_report(name);
      const bool own = code > 0 && code < 126;
      return {own ? code : static_cast<int>(ExitCode::communication),
              error_message(name + " on " + site.host.name, "exit code 0", got)};
    }
    if (!held_.empty()) got += "; its own words stand above";
    return {static_cast<int>(ExitCode::communication), error_message("mpirun", "exit code 0", got)};
  }

 private:
  std::string held_;
  Clock::time_point heard_{};
  int blames_ = -1;
};

}  // namespace tutti::launch
