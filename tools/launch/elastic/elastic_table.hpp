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
  bool member = false;                   // of a generation that worked
  bool asked = false;                    // to leave
  bool released = false, given_up = false, ended = false;
  bool did_work = false;      // to the end of the job, as it reported before its end
  bool done_without = false;  // given up, and a generation without it works
  int edit = 0;               // of the hosts file that made it leave
  Clock::time_point since{};  // time since when it is a member

  [[nodiscard]] std::string name() const { return process_name("worker", number); }
  // Returns whether no process of the worker is left, as far as the launcher knows.
  [[nodiscard]] bool gone() const noexcept { return ended || (!pending && link == nullptr && (given_up || released)); }
  // Returns whether it works or will work.
  [[nodiscard]] bool counts() const noexcept { return !gone() && !given_up && !asked && !released; }
};

// A host of an elastic job.
struct HostEntry {
  ListedHost where{};
  bool listed = false;
  bool logged = false;       // as ADDED, or present from the beginning
  int edit = 0;              // edit of the hosts file that added slots here
  int unused = 0;            // slots of workers that left by themselves
  int failures = 0;          // since it was listed or a worker ran for long
  bool unreachable = false;  // since it was listed, a worker here was given up because it did not reach another one
  Clock::time_point failed{}, next_try{};
  std::string said{};  // last message about this host, to print it once only

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

  // Logs the removal of hosts that were listed at the beginning and took no part.
  void log_absent();

  void list(const std::vector<ListedHost>& hosts);
  // Counts the loss of a worker as a failure of its host.
  void failed(const ElasticWorker& w);
  // Notes a failure of a host. The pause before the next attempt doubles with each failure.
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
