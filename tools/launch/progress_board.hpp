// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include <tutti/cluster/launch/progress_report.hpp>

#include "process.hpp"

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
              Clock::time_point now) {
    Entry& e = entries_[name];
    const bool moved = e.name.empty() || !(e.progress == progress);
    e.name = name;
    e.host = host;
    e.progress = progress;
    if (stopped && !e.stopped) e.stopped_since = now;
    e.stopped = stopped;
    if (!moved) return;
    e.changed = now;
    e.warned = false;
  }
  // Another process under a name.
  void begun(const std::string& name) { entries_.erase(name); }
  void ended(const std::string& name) {
    if (const auto e = entries_.find(name); e != entries_.end()) e->second.ended = true;
  }
  void forget_ended() {
    std::erase_if(entries_, [](const auto& e) { return e.second.ended; });
  }
  // Nothing before the process has reported.
  [[nodiscard]] const Entry* find(const std::string& name) const {
    const auto e = entries_.find(name);
    return e == entries_.end() ? nullptr : &e->second;
  }

  // Whether a process is silent for so long in a step, and then the one to blame: one that is stopped, else the one
  // that is furthest behind, perhaps between this step and the one before, since the others wait for it, else the one
  // silent for longest. News takes a while, from one host longer than from another, so those that fell silent a little
  // later count too.
  [[nodiscard]] std::optional<Stall> stalled(double seconds, Clock::time_point now) const {
    const double nearly = std::max(seconds - 2, seconds / 2);
    bool any = false;
    auto first = ~std::uint64_t{0};  // the step at which those stand still that are in one
    for (const auto& [name, e] : entries_) {
      if (!e.watched() || silence(e, now) < nearly) continue;
      any = any || silence(e, now) >= seconds;
      first = std::min<std::uint64_t>(first, e.progress.step);
    }
    if (!any) return {};
    const Entry* worst = nullptr;
    for (const auto& [name, e] : entries_) {
      if (e.ended || silence(e, now) < nearly || !(e.watched() || e.progress.step + 1 >= first)) continue;
      if (worst == nullptr || before(e, *worst)) worst = &e;
    }
    return Stall{worst, silence(*worst, now)};
  }
  // One that somebody has stopped for so long.
  [[nodiscard]] const Entry* stopped(double seconds, Clock::time_point now) const {
    for (const auto& [name, e] : entries_)
      if (!e.ended && e.stopped && std::chrono::duration<double>(now - e.stopped_since).count() >= seconds) return &e;
    return nullptr;
  }
  // The same, but no second time while the one that was named stays where it is.
  [[nodiscard]] std::optional<Stall> new_stall(double seconds, Clock::time_point now) {
    const auto stall = stalled(seconds, now);
    for (const auto& [name, e] : entries_)
      if (!e.ended && e.warned) return {};
    if (stall) entries_[stall->entry->name].warned = true;
    return stall;
  }

  [[nodiscard]] static std::string position_text(const RankProgress& p) {
    if (p.phase == ProgressPhase::none) return "before its first step";
    std::string text = "step " + std::to_string(p.step);
    if (p.bucket >= 0) text += ", bucket " + std::to_string(p.bucket);
    if (p.phase == ProgressPhase::begin) text += " (begun)";
    if (p.phase == ProgressPhase::end) text += " (done)";
    if (p.phase == ProgressPhase::idle) text += " (then idle)";
    return text;
  }
  // ", last reported at step 3", where it has reported.
  [[nodiscard]] std::string last_report(const std::string& name) const {
    const auto* e = find(name);
    if (e == nullptr || e->progress.phase == ProgressPhase::none) return "";
    return ", last reported at " + position_text(e->progress);
  }
  [[nodiscard]] std::string describe(const Stall& s) const {
    std::string text = s.entry->name + " on " + s.entry->host + " has stood still for " +
                       std::to_string(std::lround(s.seconds)) + " s at " + position_text(s.entry->progress);
    if (s.entry->stopped) text += "; it is stopped, as by SIGSTOP";
    const Entry* ahead = nullptr;
    for (const auto& [name, e] : entries_)
      if (e.watched() && e.position() > s.entry->position() && (ahead == nullptr || e.position() > ahead->position()))
        ahead = &e;
    if (ahead != nullptr) text += "; " + ahead->name + " is at " + position_text(ahead->progress);
    return text;
  }

 private:
  [[nodiscard]] static double silence(const Entry& e, Clock::time_point now) {
    return std::chrono::duration<double>(now - e.changed).count();
  }
  [[nodiscard]] static bool before(const Entry& a, const Entry& b) {
    if (a.stopped != b.stopped) return a.stopped;
    if (a.position() != b.position()) return a.position() < b.position();
    return a.changed < b.changed;
  }

  std::map<std::string, Entry> entries_;
};

}  // namespace tutti::launch
