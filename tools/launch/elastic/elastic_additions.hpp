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

// Adds workers to the hosts of a running job: copies the working folder to a host, prepares the host, and starts the
// workers.
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
  // Ends the additions of a host that has a problem. Returns the numbers of their workers.
  [[nodiscard]] std::set<int> end_additions(const Link& l);
  // Ends the addition of a worker that was not started yet and is no longer wanted.
  void end_addition(ElasticWorker& w);
  // Forgets a connection that is closed.
  void forget_additions(const Link& l) {
    std::erase_if(additions_, [&](const Addition& a) { return a.link == &l && (a.over || !a.preparing); });
  }
  // Ends all additions. The arbiter rejects workers that already wait to join.
  void stop_additions();

  std::list<Link>& links_;

 private:
  // Workers that are being added to one host.
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
  std::map<std::string, std::string> errors_;  // output of the copy command, by key
  std::list<Addition> additions_;
};

}  // namespace tutti::launch
