// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/job_folder.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/job_verdict.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/mpi/mpirun_output.hpp"

namespace tutti::launch {

// An elastic job over MPI. Each generation of members has its own mpirun, because MPI's groups cannot change. Its ranks
// save and exit with 75 after SIGUSR1 (at the next step) or SIGUSR2 (at the end of the epoch). The next mpirun then
// continues with the current members. If a rank is lost, all ranks end, and the next mpirun continues from the last
// checkpoint.
class MpiGenerations final : public JobMembers {
 public:
  // An event for the launcher.
  struct MembershipUpdate {
    enum class Kind {
      standing,  // a generation works
      left,      // a worker left by itself
      lost,      // a worker was lost with its host: `why`
      gone,      // a worker has ended and will not run again: `ending`
      failed,    // a worker joined, and no generation with it worked: `why`
      over,      // the job has ended: `endings`
    };
    Kind kind;
    std::string name{}, why{};
    ProcessExit ending{};
    std::vector<ProcessExit> endings{};
  };

  MpiGenerations(const Options& o, const Plan& plan, const JobFolder& folder, std::unique_ptr<Child>& mpirun,
                 MpirunOutput& said)
      : o_(o), plan_(plan), folder_(folder), mpirun_(mpirun), said_(said) {}

  // ---- members ----
  [[nodiscard]] bool opened(const std::string& name) const override { return find(name) != nullptr; }
  [[nodiscard]] bool can_spare(const std::string&) const override {
    return count() - 1 >= std::max(1, o_.elastic.min_workers);
  }
  void ask_to_leave(const std::string& name) override;
  void stop_all() override;
  [[nodiscard]] bool too_few() const override { return too_few_; }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] bool stopping() const override { return stop_; }
  [[nodiscard]] std::uint64_t epoch() const override { return 0; }
  [[nodiscard]] std::vector<std::string> standing() const override;
  [[nodiscard]] Link* agent_of(const std::string& host) override;
  void add(Link& agent, const std::string& name, int number) override;

  // ---- events ----
  void set(const Link& l, std::int64_t generation) {
    if (generation == now_.generation) awaited_.erase(&l);
  }
  void halted(const Link& l) {
    if (phase_ == Phase::halting) awaited_.erase(&l);
  }
  void kept(std::string_view base64) { kept_ = base64; }
  void progress(const RankProgress& p);
  void ended(const ProcessExit& e);
  // Call when the connection of an agent is closed.
  void forget(const Link& l);
  // Kills a worker that makes no progress. Returns true the first time.
  bool give_up(const std::string& name);

  // ---- actions ----
  // Call in each round. Throws if mpirun cannot be started.
  void steer();
  [[nodiscard]] std::vector<MembershipUpdate> take_updates() { return std::exchange(updates_, {}); }
  // Returns the plan of the current or last generation, for mpirun's messages.
  [[nodiscard]] const Plan& plan() const noexcept { return now_; }

 private:
  struct Worker {
    std::string name, key;  // key: of the worker's host
    int number = 0;
    Link* link = nullptr;
    bool member = false;  // in the current or last generation
    bool proven = false;  // was a member of a generation that worked
    bool asked = false, given_up = false;
    std::optional<ProcessExit> end{};
  };
  enum class Phase { none, setting, running, halting };

  [[nodiscard]] const Worker* find(const std::string& name) const;
  [[nodiscard]] Worker* find(const std::string& name) { return const_cast<Worker*>(std::as_const(*this).find(name)); }
  [[nodiscard]] int count() const;
  [[nodiscard]] std::set<Link*> agents() const;
  void tell_members(const std::string& line);
  // Removes a worker that has ended, and ends its host's agent if no worker of that host remains.
  void leave(const Worker& w);
  void remove(const Worker& w);

  // ---- generations ----
  // Returns the workers of the next generation. The workers on the launcher's host come first, because rank 0 runs on
  // the user's host; then the others by age of their hosts. After a failure within an epoch, the members stay the same
  // until the epoch ends (--elastic-at epoch).
  [[nodiscard]] std::vector<Worker*> next_members();
  void begin();
  void start();
  void watch();
  // Ends the processes of the generation that still run. All of its agents report how its processes ended.
  void halt();
  void finish_halt();

  // ---- results ----
  void conclude();
  // Removes the workers that made a generation fail. Returns false if the job must end.
  [[nodiscard]] bool blame(const std::vector<ProcessExit>& all);
  void finish(const std::vector<ProcessExit>& all);
  void over(const std::vector<ProcessExit>& all);

  const Options& o_;
  const Plan& plan_;
  const JobFolder& folder_;
  std::unique_ptr<Child>& mpirun_;
  MpirunOutput& said_;
  std::map<int, Worker> workers_;  // by number, and so by age
  std::vector<MembershipUpdate> updates_;
  Plan now_;
  Phase phase_ = Phase::none;
  std::set<const Link*> awaited_;
  std::string kept_;  // in base64
  int generation_ = 0, vain_ = 0;
  std::uint64_t furthest_ = 0;  // highest step of this generation
  std::optional<std::uint64_t> same_step_;
  bool stop_ = false, finished_ = false, too_few_ = false, stands_ = false, ever_stood_ = false, broken_ = false,
       host_lost_ = false, mpirun_told_ = false;
  Clock::time_point added_{}, asked_at_{}, halted_at_{};
  std::optional<Clock::time_point> failed_at_;
};

}  // namespace tutti::launch
