// SPDX-License-Identifier: MIT
#include "tools/launch/job/progress_board.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::launch {

void ProgressBoard::update(const std::string& name, const std::string& host, const RankProgress& progress, bool stopped,
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

const ProgressBoard::Entry* ProgressBoard::find(const std::string& name) const {
  const auto e = entries_.find(name);
  return e == entries_.end() ? nullptr : &e->second;
}

std::optional<ProgressBoard::Stall> ProgressBoard::stalled(double seconds, Clock::time_point now) const {
  const double nearly = std::max(seconds - 2, seconds / 2);
  bool any = false;
  auto first = ~std::uint64_t{0};  // the lowest step of the processes that are silent within a step
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

void ProgressBoard::skip(Clock::duration time) {
  for (auto& [name, e] : entries_) {
    e.changed += time;
    e.stopped_since += time;
  }
}

const ProgressBoard::Entry* ProgressBoard::stopped(double seconds, Clock::time_point now) const {
  for (const auto& [name, e] : entries_)
    if (!e.ended && e.stopped && std::chrono::duration<double>(now - e.stopped_since).count() >= seconds) return &e;
  return nullptr;
}

std::optional<ProgressBoard::Stall> ProgressBoard::new_stall(double seconds, Clock::time_point now) {
  const auto stall = stalled(seconds, now);
  for (const auto& [name, e] : entries_)
    if (!e.ended && e.warned) return {};
  if (stall) entries_[stall->entry->name].warned = true;
  return stall;
}

std::string ProgressBoard::position_text(const RankProgress& p) {
  if (p.phase == ProgressPhase::none) return "before its first step";
  std::string text = "step " + std::to_string(p.step);
  if (p.bucket >= 0) text += ", bucket " + std::to_string(p.bucket);
  if (p.phase == ProgressPhase::begin) text += " (begun)";
  if (p.phase == ProgressPhase::end) text += " (done)";
  if (p.phase == ProgressPhase::idle) text += " (then idle)";
  return text;
}

std::string ProgressBoard::last_report(const std::string& name) const {
  const auto* e = find(name);
  if (e == nullptr || e->progress.phase == ProgressPhase::none) return "";
  return ", last reported at " + position_text(e->progress);
}

std::string ProgressBoard::describe(const Stall& s) const {
  std::string text = s.entry->name + " on " + s.entry->host + " has made no progress for " +
                     std::to_string(std::lround(s.seconds)) + " s at " + position_text(s.entry->progress);
  if (s.entry->stopped) text += "; it is stopped, as by SIGSTOP";
  const Entry* ahead = nullptr;
  for (const auto& [name, e] : entries_)
    if (e.watched() && e.position() > s.entry->position() && (ahead == nullptr || e.position() > ahead->position()))
      ahead = &e;
  if (ahead != nullptr) text += "; " + ahead->name + " is at " + position_text(ahead->progress);
  return text;
}

bool ProgressBoard::before(const Entry& a, const Entry& b) {
  if (a.stopped != b.stopped) return a.stopped;
  if (a.position() != b.position()) return a.position() < b.position();
  return a.changed < b.changed;
}

}  // namespace tutti::launch
