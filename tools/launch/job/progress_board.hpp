// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include <tutti/cluster/launch/progress_report.hpp>

#include "tools/launch/host/process.hpp"

namespace tutti::launch {

// The position of each process. Finds the process that delays the other processes.
class ProgressBoard {
 public:
  struct Entry {
    std::string name, host;
    RankProgress progress{};
    bool stopped = false, ended = false, warned = false;
    Clock::time_point changed{}, stopped_since{};

    // Returns whether silence is a problem: between steps a process may take any time, unless it is stopped.
    [[nodiscard]] bool watched() const noexcept {
      return !ended && (stopped || progress.phase == ProgressPhase::begin || progress.phase == ProgressPhase::end);
    }
    [[nodiscard]] auto position() const noexcept {
      return std::tuple(progress.step, progress.bucket, static_cast<int>(progress.phase));
    }
  };
  struct Stall {
    const Entry* entry;
    double seconds;
  };

  void update(const std::string& name, const std::string& host, const RankProgress& progress, bool stopped,
              Clock::time_point now);
  // Call when a new process starts with the name of an earlier one.
  void begun(const std::string& name) { entries_.erase(name); }
  void ended(const std::string& name) {
    if (const auto e = entries_.find(name); e != entries_.end()) e->second.ended = true;
  }
  void forget_ended() {
    std::erase_if(entries_, [](const auto& e) { return e.second.ended; });
  }
  // Returns null if the process has not reported yet.
  [[nodiscard]] const Entry* find(const std::string& name) const;

  // Returns the process to blame if a process has been silent in a step for `seconds`. Prefers a stopped process, then
  // the process with the lowest position, because the others wait for it, then the one that is silent for longest. The
  // position may be between this step and the previous one. Reports take different times from different hosts, so
  // processes that fell silent a little later are considered too.
  [[nodiscard]] std::optional<Stall> stalled(double seconds, Clock::time_point now) const;
  // Excludes `time` from the silence of every process: the launcher did not run and received no updates.
  void skip(Clock::duration time);
  // Returns a process that has been stopped for `seconds`.
  [[nodiscard]] const Entry* stopped(double seconds, Clock::time_point now) const;
  // As stalled(), but does not report the same process again while its position does not change.
  [[nodiscard]] std::optional<Stall> new_stall(double seconds, Clock::time_point now);

  [[nodiscard]] static std::string position_text(const RankProgress& p);
  // Returns, for example, ", last reported at step 3", or an empty text before the first report.
  [[nodiscard]] std::string last_report(const std::string& name) const;
  [[nodiscard]] std::string describe(const Stall& s) const;

 private:
  [[nodiscard]] static double silence(const Entry& e, Clock::time_point now) {
    return std::chrono::duration<double>(now - e.changed).count();
  }
  [[nodiscard]] static bool before(const Entry& a, const Entry& b);

  std::map<std::string, Entry> entries_;
};

}  // namespace tutti::launch
