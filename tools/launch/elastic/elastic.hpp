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

// Manages the workers of an elastic job: compares the hosts file with the running workers, and starts or stops workers.
// Changes begin when the first generation of the job works. If a worker dies before that, the job begins without it if
// enough workers remain. A problem that prevents the start of processes ends the job.
class Elastic : ElasticAdditions {
 public:
  Elastic(const Options& o, const Plan& plan, JobMembers& members, JobFolder& folder, std::list<Link>& links,
          std::function<void(const std::string&)> say);

  // ---- events from the launcher ----
  using ElasticAdditions::started;
  // What the end of a process means. fails: the job fails. none: no effect. noted: the launcher notes it, and it counts
  // only if no other worker finishes the work.
  enum class Meaning { fails, none, noted };
  // given_up: the worker was removed from the job before its end was reported, so all messages have been printed.
  [[nodiscard]] Meaning meaning_of(const ProcessExit& e, bool given_up = false);
  // Returns whether the job continues in spite of a problem of the host.
  [[nodiscard]] bool takes_problem(Link& l, const Problem& p);
  [[nodiscard]] bool has_given_up(const std::string& name);
  // Returns whether the worker was a member and has reported that its work is done.
  [[nodiscard]] bool did_work(const std::string& name);
  // Returns whether the failure of this worker ends the job. All members have the same weights, so a loss or weights
  // that are not finite are the same in all. In that case no other worker is started, and no other end is reported.
  [[nodiscard]] bool ends_job(const ProcessExit& e);
  // Removes a worker that joined, because no generation with the worker worked.
  void drop(const std::string& name, const std::string& why);
  // Forgets a connection that is closed. Its link is destroyed after this.
  void forget(const Link& l);
  void hear(const JobControl::MembershipUpdate& news);
  // Call when the launcher ends all processes of the job.
  void job_ends() noexcept { ending_ = ends_now_ = true; }
  // Call when the user stops the job.
  void stop();

  // ---- actions ----
  // Call in each round.
  void steer();
  // Returns whether the job waits for workers. There may be no process left.
  [[nodiscard]] bool waits() const { return stood_ && !over(); }
  // Returns a problem if there were too few workers for too long.
  [[nodiscard]] std::optional<Problem> problem();

 private:
  // ---- before the first generation ----
  // Returns the workers of a host if all of its processes have been started, otherwise no workers.
  [[nodiscard]] std::vector<ElasticWorker*> started_on(const Link& l);
  // Returns whether the job can begin without the workers `lost`. If so, it removes them.
  [[nodiscard]] bool begins_without(const std::vector<ElasticWorker*>& lost, const std::string& why);

  // Returns the meaning of an end after the work was done: a worker that is killed has no effect on the result.
  [[nodiscard]] Meaning meaning_at_the_end(const ElasticWorker& w, const ProcessExit& e);

  // Handles the loss of a server: kills its process if it still runs, so that it cannot rejoin. Has no effect while the
  // launcher ends all processes.
  void lose_server(const JobControl::MembershipUpdate& news);

  void stands();
  // ---- hosts file ----
  void let_leave();
  [[nodiscard]] bool ask_to_leave(HostEntry& s, ElasticWorker& w);
  // Returns whether new workers of a host must wait: at the end of an epoch, removed workers leave first, and the
  // workers that the same edit adds join one epoch later.
  [[nodiscard]] bool held(const HostEntry& s) const;
  void let_join();

  std::optional<HostsWatch> watch_;
  std::optional<std::vector<ListedHost>> wanted_;
  std::set<std::string> lost_servers_;
  std::optional<Clock::time_point> too_few_;
  bool ending_ = false;        // no more workers are started
  bool ends_now_ = false;      // the launcher ends all processes
  bool work_is_done_ = false;  // a worker has finished the work and exited with code 0
};

}  // namespace tutti::launch
