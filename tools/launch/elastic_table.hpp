// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "elastic_file.hpp"
#include "elastic_log.hpp"
#include "elastic_options.hpp"
#include "elastic_site.hpp"
#include "job_members.hpp"
#include "link.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "wire.hpp"

namespace tutti::launch {

// A worker of a job whose workers come and go, as the launcher has it.
struct ElasticWorker {
  int number = 0;
  std::string key{};  // its host
  int local_rank = 0;
  Link* link = nullptr;                  // null before it is started, and once the connection is gone
  bool founder = false, pending = true;  // pending: not started yet
  bool member = false;                   // of a generation that stood
  bool asked = false;                    // to leave
  bool released = false, given_up = false, ended = false;
  bool did_work = false;      // to the end of the job, as its last word said
  bool done_without = false;  // it was given up, and the others stand again without it
  int edit = 0;               // of the hosts file, for which it leaves
  Clock::time_point since{};  // a member

  [[nodiscard]] std::string name() const { return process_name("worker", number); }
  // Nothing of it runs any more, as far as can be known.
  [[nodiscard]] bool gone() const noexcept { return ended || (!pending && link == nullptr && (given_up || released)); }
  // It works, or will.
  [[nodiscard]] bool counts() const noexcept { return !gone() && !given_up && !asked && !released; }
};

// A host of such a job.
struct HostEntry {
  ListedHost where{};
  bool listed = false;
  bool logged = false;       // as ADDED, or there from the beginning
  int edit = 0;              // of the hosts file, that asked for more here
  int unused = 0;            // slots whose workers left by themselves
  int failures = 0;          // since it was listed, or worked for long
  bool unreachable = false;  // since it was listed, a worker of it was given up that did not reach another one
  Clock::time_point failed{}, next_try{};
  std::string said{};  // why nobody is started or stopped here, once

  [[nodiscard]] int wanted() const noexcept { return listed ? std::max(0, where.host.slots - unused) : 0; }
};

// The longest pause before a host that fails is tried again; the first is a second.
inline constexpr double longest_pause = 300;
// Who worked for so many seconds has not failed in a row.
inline constexpr double long_work = 600;

[[nodiscard]] inline double pause_after(int failures) {
  double pause = 1;
  for (int i = 1; i < failures && pause < longest_pause; ++i) pause *= 2;
  return std::min(pause, longest_pause);
}

// Hosts and workers of a job whose workers come and go, and the log of both.
class ElasticTable {
 protected:
  ElasticTable(const Options& o, JobMembers& members, std::function<void(const std::string&)> say)
      : o_(o),
        members_(members),
        say_(std::move(say)),
        file_(elastic_folder(o.elastic) / "host_worker"),
        log_(elastic_folder(o.elastic) / "host_worker_log") {}

  // The text of the file with which it begins.
  [[nodiscard]] std::string list_founders(const Plan& plan) {
    std::string text;
    for (ListedHost& l : hosts_at_begin(plan)) {
      text += line_of(l.host);
      HostEntry& s = hosts_[l.key];
      s.where = std::move(l);
      s.listed = true;
    }
    return text;
  }
  void add_founder(const ProcessOrder& p, const Plan::Site& site) {
    ElasticWorker& w = workers_[p.rank];
    w.number = p.rank;
    w.key = key_of(site.host);
    w.local_rank = p.local_rank;
    w.founder = true;
    next_ = std::max(next_, p.rank + 1);
  }
  [[nodiscard]] ElasticWorker* find(const std::string& name) {
    for (auto& [number, w] : workers_)
      if (w.name() == name) return &w;
    return nullptr;
  }
  template <class F>  // f(worker)
  [[nodiscard]] std::vector<ElasticWorker*> workers_on(const std::string& key, F&& f) {
    std::vector<ElasticWorker*> found;
    for (auto& [number, w] : workers_)
      if (w.key == key && !w.gone() && f(w)) found.push_back(&w);
    return found;
  }
  [[nodiscard]] std::string host_of(const ElasticWorker& w) { return hosts_[w.key].where.host.name; }
  [[nodiscard]] bool over() const { return members_.finished() || members_.stopping(); }
  void say_once(HostEntry& s, const std::string& text) {
    if (std::exchange(s.said, text) != text) say_(text);
  }

  // Who was there from the beginning is not told of.
  void write_log() {
    for (auto& [key, s] : hosts_) {
      const auto there = workers_on(key, [](const ElasticWorker& w) { return w.member; });
      if (there.empty() == !s.logged) continue;
      // The end of the job is no leaving.
      if (there.empty() && s.listed && over()) continue;
      s.logged = !there.empty();
      if (s.logged && there.front()->founder && !begun_) continue;
      if (!log_.append(s.logged, s.where.host.name)) say_("warning: host_worker_log could not be written");
    }
    begun_ = stood_;
  }

  // Of those with which the job was to begin, the hosts without which it did.
  void log_absent() {
    for (auto& [key, s] : hosts_) {
      if (!s.listed || !workers_on(key, [](const ElasticWorker& w) { return w.counts(); }).empty()) continue;
      if (!log_.append(false, s.where.host.name)) say_("warning: host_worker_log could not be written");
    }
  }

  void list(const std::vector<ListedHost>& hosts) {
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
  // A worker is lost, which counts against its host.
  void failed(const ElasticWorker& w) {
    if (w.member && seconds_since(w.since) > long_work) hosts_[w.key].failures = 0;
    failed(w.key, "");
  }
  // A host failed: it is tried again later, and each time later.
  void failed(const std::string& key, const std::string& why) {
    HostEntry& s = hosts_[key];
    std::string text = why.empty() ? "" : "warning: " + why;
    // What fails there at once is one failure.
    if (s.failures == 0 || seconds_since(s.failed) > 1) {
      s.failed = Clock::now();
      const double pause = pause_after(++s.failures);
      s.next_try = Clock::now() + std::chrono::milliseconds(static_cast<long>(pause * 1000));
      if (!text.empty() && s.listed && s.failures <= o_.elastic.restart_budget)
        text += " It is tried again in " + seconds_text(pause) + ".";
    }
    if (!text.empty()) say_(text);
  }

  const Options& o_;
  JobMembers& members_;
  std::function<void(const std::string&)> say_;
  std::filesystem::path file_;
  MembershipLog log_;
  std::map<std::string, HostEntry> hosts_;  // by key
  std::map<int, ElasticWorker> workers_;    // by number, until they are gone
  int next_ = 0, edit_ = 0;
  bool stood_ = false, begun_ = false;
};

}  // namespace tutti::launch
