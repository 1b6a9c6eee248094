// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_table.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/cli/elastic_options.hpp"
#include "tools/launch/elastic/elastic_site.hpp"

namespace tutti::launch {

namespace {

// Longest pause before the launcher tries a failed host again, in seconds. The first pause is 1 s.
constexpr double longest_pause = 300;

// A worker that ran for this many seconds resets the count of failures.
constexpr double long_work = 600;

[[nodiscard]] double pause_after(int failures) {
  double pause = 1;
  for (int i = 1; i < failures && pause < longest_pause; ++i) pause *= 2;
  return std::min(pause, longest_pause);
}

}  // namespace

ElasticTable::ElasticTable(const Options& o, JobMembers& members, std::function<void(const std::string&)> say)
    : o_(o),
      members_(members),
      say_(std::move(say)),
      file_(elastic_folder(o.elastic) / "host_worker"),
      log_(elastic_folder(o.elastic) / "host_worker_log") {}

std::string ElasticTable::list_founders(const Plan& plan) {
  std::string text;
  for (ListedHost& l : hosts_at_begin(plan)) {
    text += line_of(l.host);
    HostEntry& s = hosts_[l.key];
    s.where = std::move(l);
    s.listed = true;
  }
  return text;
}

void ElasticTable::add_founder(const ProcessOrder& p, const Plan::Site& site) {
  ElasticWorker& w = workers_[p.rank];
  w.number = p.rank;
  w.key = key_of(site.host);
  w.local_rank = p.local_rank;
  w.founder = true;
  next_ = std::max(next_, p.rank + 1);
}

ElasticWorker* ElasticTable::find(const std::string& name) {
  for (auto& [number, w] : workers_)
    if (w.name() == name) return &w;
  return nullptr;
}

void ElasticTable::write_log() {
  for (auto& [key, s] : hosts_) {
    const auto there = workers_on(key, [](const ElasticWorker& w) { return w.member; });
    if (there.empty() == !s.logged) continue;
    // Hosts do not count as removed when the job ends.
    if (there.empty() && s.listed && over()) continue;
    s.logged = !there.empty();
    if (s.logged && there.front()->founder && !begun_) continue;
    if (!log_.append(s.logged, s.where.host.name)) say_("warning: host_worker_log could not be written");
  }
  begun_ = stood_;
}

void ElasticTable::log_absent() {
  for (auto& [key, s] : hosts_) {
    if (!s.listed || !workers_on(key, [](const ElasticWorker& w) { return w.counts(); }).empty()) continue;
    if (!log_.append(false, s.where.host.name)) say_("warning: host_worker_log could not be written");
  }
}

void ElasticTable::list(const std::vector<ListedHost>& hosts) {
  ++edit_;
  for (auto& station : hosts_) {
    HostEntry& s = station.second;
    const bool stays = std::any_of(hosts.begin(), hosts.end(), [&](const auto& l) { return l.key == station.first; });
    if (!stays && s.listed) s.said.clear();
    s.listed = s.listed && stays;
  }
  for (const ListedHost& l : hosts) {
    HostEntry& s = hosts_[l.key];
    if (!s.listed || l.host.slots > s.where.host.slots) s.edit = edit_;
    if (!s.listed) {
      s.unused = s.failures = 0;
      s.unreachable = false;
      s.next_try = {};
      s.said.clear();
    }
    s.where = l;
    s.listed = true;
  }
}

void ElasticTable::failed(const ElasticWorker& w) {
  if (w.member && seconds_since(w.since) > long_work) hosts_[w.key].failures = 0;
  failed(w.key, "");
}

void ElasticTable::failed(const std::string& key, const std::string& why) {
  HostEntry& s = hosts_[key];
  std::string text = why.empty() ? "" : "warning: " + why;
  // Several failures within one second count as one failure.
  if (s.failures == 0 || seconds_since(s.failed) > 1) {
    s.failed = Clock::now();
    const double pause = pause_after(++s.failures);
    s.next_try = Clock::now() + std::chrono::milliseconds(static_cast<long>(pause * 1000));
    if (!text.empty() && s.listed && s.failures <= o_.elastic.restart_budget)
      text += " The next attempt is in " + seconds_text(pause) + ".";
  }
  if (!text.empty()) say_(text);
}

}  // namespace tutti::launch
