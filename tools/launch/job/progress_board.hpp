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

// Where each process is, and which one keeps the others waiting.
class ProgressBoard {
 public:
  struct Entry {
    std::string name, host;
    RankProgress progress{};
    bool stopped = false, ended = false, warned = false;
    Clock::time_point changed{}, stopped_since{};

    // Between steps a process may take its time, unless it is stopped.
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
  // Another process under a name.
  void begun(const std::string& name) { entries_.erase(name); }
  void ended(const std::string& name) {
    if (const auto e = entries_.find(name); e != entries_.end()) e->second.ended = true;
  }
  void forget_ended() {
    std::erase_if(entries_, [](const auto& e) { return e.second.ended; });
  }
  // Nothing before the process has reported.
  [[nodiscard]] const Entry* find(const std::string& name) const;

  // Whether a process is silent for so long in a step, and then the one to blame: one that is stopped, else the one
  // that is furthest behind, perhaps between this step and the one before, since the others wait for it, else the one
  // silent for longest. News takes a while, from one host longer than from another, so those that fell silent a little
  // later count too.
  [[nodiscard]] std::optional<Stall> stalled(double seconds, Clock::time_point now) const;
  // Leaves a time out of account in which the launcher itself stood still, and received no updates.
  void skip(Clock::duration time);
  // One that somebody has stopped for so long.
  [[nodiscard]] const Entry* stopped(double seconds, Clock::time_point now) const;
  // The same, but no second time while the one that was named stays where it is.
  [[nodiscard]] std::optional<Stall> new_stall(double seconds, Clock::time_point now);

  [[nodiscard]] static std::string position_text(const RankProgress& p);
  // ", last reported at step 3", where it has reported.
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
