// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>

#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// Handles mpirun's own messages, but not the lines of the processes. Holds the messages back for a moment: if a process
// has failed, they only repeat its error.
class MpirunOutput {
 public:
  // Handles a line of mpirun's standard error. Passes lines of processes to `err`.
  void hear(std::string_view line, OutputQueue& err);
  // Returns the seconds since the last held line, or 0 if no line is held.
  [[nodiscard]] double quiet_for() const { return held_.empty() ? 0 : seconds_since(heard_); }
  [[nodiscard]] const std::string& held() const noexcept { return held_; }
  void forget();
  void repeat(OutputQueue& err);

  // Returns the problem if mpirun failed and no process did. last_report(name) returns the last position of a process.
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
      got = "mpirun's message that it failed, with " + got + last_report(name);
      const bool own = code > 0 && code < 126;
      return {own ? code : static_cast<int>(ExitCode::communication),
              error_message(name + " on " + site.host.name, "exit code 0", got)};
    }
    if (!held_.empty()) got += "; see its messages above";
    return {static_cast<int>(ExitCode::communication), error_message("mpirun", "exit code 0", got)};
  }

 private:
  std::string held_;
  Clock::time_point heard_{};
  int blames_ = -1;
};

}  // namespace tutti::launch
