// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_table.hpp"
#include "tools/launch/job/job_folder.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/job_verdict.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// Workers on their way to the hosts of a job that runs: a host's folder is copied, it is prepared, they are started.
class ElasticAdditions : protected ElasticTable {
 public:
  void started(const std::string& name, Link& l);

 protected:
  ElasticAdditions(const Options& o, const Plan& plan, JobMembers& members, JobFolder& folder, std::list<Link>& links,
                   std::function<void(const std::string&)> say)
      : ElasticTable(o, members, std::move(say)), links_(links), plan_(plan), folder_(folder) {}

  void add(HostEntry& s, int count);
  void prepared(const ProcessExit& e);
  void go_on_with_additions();
  // What is wrong with that host ends these: the numbers of their workers.
  [[nodiscard]] std::set<int> end_additions(const Link& l);
  // This worker is not wanted any more, before it has been started.
  void end_addition(ElasticWorker& w);
  // A connection is gone.
  void forget_additions(const Link& l) {
    std::erase_if(additions_, [&](const Addition& a) { return a.link == &l && (a.over || !a.preparing); });
  }
  // Nobody joins any more. Who has asked to be let in is told so by the arbiter.
  void stop_additions();

  std::list<Link>& links_;

 private:
  // To one host.
  struct Addition {
    std::string key;
    std::vector<int> numbers;
    std::unique_ptr<Child> copy;
    Link* link = nullptr;
    bool preparing = false, over = false;
  };

  void begin(Addition& a, bool prepare);
  void give_up(Addition& a, const std::string& why);

  const Plan& plan_;
  JobFolder& folder_;
  std::map<std::string, std::string> errors_;  // of a copy
  std::list<Addition> additions_;
};

}  // namespace tutti::launch
