// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/elastic/elastic_log.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// A worker of an elastic job, as the launcher sees it.
struct ElasticWorker {
  int number = 0;
  std::string key{};  // its host
  int local_rank = 0;
  Link* link = nullptr;                  // null before it is started and after the connection is closed
  bool founder = false, pending = true;  // pending: not started yet
  bool member = false;                   // it was in a generation that worked
  bool asked = false;                    // it was asked to leave
  bool released = false, given_up = false, ended = false;
  bool did_work = false;      // it reported the end of the job's work before it ended
  bool done_without = false;  // it was removed from the job, and a generation without it works
  int edit = 0;               // edit of the hosts file that made it leave
  Clock::time_point since{};  // time at which it became a member

  [[nodiscard]] std::string name() const { return process_name("worker", number); }
  // Returns whether no process of the worker is left, as far as the launcher knows.
  [[nodiscard]] bool gone() const noexcept { return ended || (!pending && link == nullptr && (given_up || released)); }
  // Returns whether the worker works or will work.
  [[nodiscard]] bool counts() const noexcept { return !gone() && !given_up && !asked && !released; }
};

// A host of an elastic job.
struct HostEntry {
  ListedHost where{};
  bool listed = false;
  bool logged = false;       // logged as ADDED, or present from the beginning
  int edit = 0;              // edit of the hosts file that added slots here
  int unused = 0;            // slots of workers that left by themselves
  int failures = 0;          // failures since the host was listed or a worker ran for long
  bool unreachable = false;  // since it was listed, a worker here was removed because it could not reach another worker
  Clock::time_point failed{}, next_try{};
  std::string said{};  // last message about this host, which is not printed again

  [[nodiscard]] int wanted() const noexcept { return listed ? std::max(0, where.host.slots - unused) : 0; }
};

// The hosts and workers of an elastic job, and the log of their changes.
class ElasticTable {
 protected:
  ElasticTable(const Options& o, JobMembers& members, std::function<void(const std::string&)> say);

  // Adds the hosts with which the job begins. Returns the text of the hosts file.
  [[nodiscard]] std::string list_founders(const Plan& plan);
  void add_founder(const ProcessOrder& p, const Plan::Site& site);
  [[nodiscard]] ElasticWorker* find(const std::string& name);
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

  // Writes the hosts that joined or left to the log. Hosts with which the job begins are not logged.
  void write_log();

  // Logs the removal of hosts that were listed at the beginning and never had a worker.
  void log_absent();

  void list(const std::vector<ListedHost>& hosts);
  // Counts the loss of a worker as a failure of its host.
  void failed(const ElasticWorker& w);
  // Notes a failure of a host. Each further failure doubles the pause before the next attempt.
  void failed(const std::string& key, const std::string& why);

  const Options& o_;
  JobMembers& members_;
  std::function<void(const std::string&)> say_;
  std::filesystem::path file_;
  MembershipLog log_;
  std::map<std::string, HostEntry> hosts_;  // by key
  std::map<int, ElasticWorker> workers_;    // by number; erased when they are gone
  int next_ = 0, edit_ = 0;
  bool stood_ = false, begun_ = false;
};

}  // namespace tutti::launch
