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

// Hosts and workers of a job whose workers come and go, and the log of both.
class ElasticTable {
 protected:
  ElasticTable(const Options& o, JobMembers& members, std::function<void(const std::string&)> say);

  // The text of the file with which it begins.
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

  // Who was there from the beginning is not told of.
  void write_log();

  // Of those with which the job was to begin, the hosts without which it did.
  void log_absent();

  void list(const std::vector<ListedHost>& hosts);
  // A worker is lost, which counts against its host.
  void failed(const ElasticWorker& w);
  // A host failed: it is tried again later, and each time later.
  void failed(const std::string& key, const std::string& why);

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
