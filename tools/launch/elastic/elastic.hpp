// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_additions.hpp"
#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/elastic/elastic_table.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_control.hpp"
#include "tools/launch/job/job_folder.hpp"
#include "tools/launch/job/job_verdict.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// Workers that come and go while the job runs: what the hosts file asks for against what there is. It begins once the
// first generation of the job stands. Who dies before that is left out, as long as enough others are there; what keeps
// processes from being started ends the job as any.
class Elastic : ElasticAdditions {
 public:
  Elastic(const Options& o, const Plan& plan, JobMembers& members, JobFolder& folder, std::list<Link>& links,
          std::function<void(const std::string&)> say);

  // ---- what the launcher hears ----
  using ElasticAdditions::started;
  // What the end of a process means: that of the job; nothing; or something only if no other one finishes the work.
  enum class Meaning { fails, none, noted };
  // given_up: it was before the end was heard of, so that all has been said.
  [[nodiscard]] Meaning meaning_of(const ProcessExit& e, bool given_up = false);
  // Whether what is wrong with a host is no end of the job.
  [[nodiscard]] bool takes_problem(Link& l, const Problem& p);
  [[nodiscard]] bool has_given_up(const std::string& name);
  // Whether the worker, a member, was heard to have done its work.
  [[nodiscard]] bool did_work(const std::string& name);
  // Whether others could only repeat the failure of this worker: a member whose weights or loss are not finite has got
  // them from all. Then nothing is said of the others, and no other worker is started for it.
  [[nodiscard]] bool ends_job(const ProcessExit& e);
  // A worker that came, and with which nothing worked.
  void drop(const std::string& name, const std::string& why);
  // A connection is gone, and with it its link.
  void forget(const Link& l);
  void hear(const JobControl::MembershipUpdate& news);
  // The launcher ends all processes of the job.
  void job_ends() noexcept { ending_ = ends_now_ = true; }
  // The job is to stop, as its user says.
  void stop();

  // ---- what it does ----
  // To be called in each round.
  void steer();
  // Whether the job waits for workers although none may be left.
  [[nodiscard]] bool waits() const { return stood_ && !over(); }
  // Too few of them for too long.
  [[nodiscard]] std::optional<Problem> problem();

 private:
  // ---- before the first generation ----
  // Those of a host whose processes have all been started; none where one has not.
  [[nodiscard]] std::vector<ElasticWorker*> started_on(const Link& l);
  // Whether the job can begin without these, which are lost; then it does.
  [[nodiscard]] bool begins_without(const std::vector<ElasticWorker*>& lost, const std::string& why);

  // Who is killed when another one has done the whole work takes nothing of that with it.
  [[nodiscard]] Meaning meaning_at_the_end(const ElasticWorker& w, const ProcessExit& e);

  // A server that still runs may not come back. One that the launcher itself ended is not lost.
  void lose_server(const JobControl::MembershipUpdate& news);

  void stands();
  // ---- the hosts file ----
  void let_leave();
  [[nodiscard]] bool ask_to_leave(HostEntry& s, ElasticWorker& w);
  // At the end of an epoch who was removed goes first, and who came in the same edit an epoch later.
  [[nodiscard]] bool held(const HostEntry& s) const;
  void let_join();

  std::optional<HostsWatch> watch_;
  std::optional<std::vector<ListedHost>> wanted_;
  std::set<std::string> lost_servers_;
  std::optional<Clock::time_point> too_few_;
  bool ending_ = false;        // no worker is to come any more
  bool ends_now_ = false;      // by the launcher, which ends all processes
  bool work_is_done_ = false;  // by a worker whose end was good
};

}  // namespace tutti::launch
