// SPDX-License-Identifier: MIT
// Simulates elastic jobs of processes with unequal speeds. The shares of logical ranks follow the speeds: fit() with
// Shares::measured, by the simulated clocks, or in a third of the schedules with Shares::rows. A third of the schedules
// have no fault, in a third a process is killed in an exchange of times, and a third have the faults of the scenario of
// members.cpp.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/span.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/run/share_controller.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "audit_files.hpp"
#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "job.hpp"
#include "random.hpp"
#include "simulation.hpp"
#include "tests/strategy/job_images.hpp"

namespace tutti::simulation {
namespace {

constexpr int logical = 12, most_workers = 8;
constexpr std::int64_t batch = 2 * logical, steps_an_epoch = 24, samples = batch * steps_an_epoch, epochs = 4;
constexpr std::int64_t steps = epochs * steps_an_epoch;
constexpr std::int64_t settled = 20;  // steps after a change of speed
const testing::JobImages images{samples, batch, 4};

// ---- what happens in this schedule ----
enum class Mode : std::uint8_t { calm, killed_in_exchange, faults };
struct Plan {
  Mode mode = Mode::calm;
  bool rows = false;        // shares of rows
  std::vector<Nanos> cost;  // of an image, for the worker of each place
  int changes = 0;          // the cost of this place is another one from change_step on
  Nanos later = 0;
  std::int64_t change_step = 0;
  int pauses = 0;  // the place that is slow in three steps from pause_step on
  std::int64_t pause_step = 0;
  std::uint64_t kill_at = 0, kill_after = 0;  // which exchange, and after how many messages
  int victim = 0;

  [[nodiscard]] Nanos usual(int place, std::int64_t step) const {
    return place == changes && step >= change_step ? later : cost[static_cast<std::size_t>(place)];
  }
  [[nodiscard]] Nanos of(int place, std::int64_t step) const {
    const bool slow = place == pauses && step >= pause_step && step < pause_step + 3;
    return usual(place, step) * (slow ? 8 : 1);
  }
};
Plan plan;
// Filled by the processes.
std::vector<SharesReport> reports;
std::map<int, int> place_of_rank;
bool was_killed = false;

Plan plan_of(std::uint64_t seed) {
  Random r(seed, 8);
  Plan p;
  p.mode = static_cast<Mode>(r.below(3));
  for (int i = 0; i < most_workers; ++i) p.cost.push_back(r.between(1000, 4000) * 1000);
  p.changes = static_cast<int>(r.below(4));
  p.later = r.between(1000, 4000) * 1000;
  p.change_step = r.between(26, 34);
  p.pauses = static_cast<int>(r.below(4));
  p.pause_step = r.between(62, 70);
  p.kill_at = 1 + r.below(4);
  p.kill_after = r.below(3);
  p.victim = static_cast<int>(r.below(4));
  p.rows = r.one_in(3);
  return p;
}

// Images that take the process some time to read.
struct SlowImages {
  Synthetic stored;
  std::function<Nanos()> cost;
  [[nodiscard]] std::int64_t size() const { return stored.size(); }
  [[nodiscard]] const Schema& schema() const { return stored.schema(); }
  void read(std::int64_t index, Rng& rng, Sample sample) const {
    if (Scheduler* const s = Scheduler::current()) s->sleep(cost());
    stored.read(index, rng, sample);
  }
};

// Kills the victim in one of its exchanges of times, after some of its messages.
class ExchangeWatcher : public SpanWatcher {
 public:
  void begin(Lane, std::string_view what, std::string_view, std::int64_t) noexcept override {
    open_.push_back(what == "speeds");
    if (!open_.back() || plan.mode != Mode::killed_in_exchange) return;
    Scheduler& s = *Scheduler::current();
    Process& p = s.process();
    if (p.name != "worker" + std::to_string(plan.victim) || ++exchanges_ != plan.kill_at) return;
    exchanging_ = true;
    const auto kill = [this, &s, &p] {
      if (!exchanging_ || was_killed) return;
      s.note(p.name + " is killed in an exchange of times");
      was_killed = true;
      job->excuse(p);
      s.kill(p, SIGKILL);
    };
    if (plan.kill_after == 0) return kill();
    p.after_sends.emplace(p.sends + plan.kill_after, kill);
  }
  void end() noexcept override {
    if (open_.back() && exchanging_ && !was_killed &&
        Scheduler::current()->process().name == "worker" + std::to_string(plan.victim))
      exchanging_ = false;
    open_.pop_back();
  }
  void over(Lane, std::string_view, std::int64_t, std::int64_t) noexcept override {}
  void stand_behind(SpanWatcher&) noexcept override {}

  Job* job = nullptr;

 private:
  static thread_local std::vector<bool> open_;  // the spans of this thread; true: an exchange of times
  std::uint64_t exchanges_ = 0;                 // of the victim
  bool exchanging_ = false;
};
thread_local std::vector<bool> ExchangeWatcher::open_;
ExchangeWatcher watcher;

// ---- the training ----
Graph net(bool rows) {
  Builder b(3, 4, 4);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  // The results of batch norm depend on the shares of rows.
  x = rows ? b.relu("relu1", nn::conv(b, "conv1", x, {.out = 3, .stride = 2}))
           : nn::conv_bn(b, "conv1", "bn1", x, {.out = 3, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
TrainerOptions trainer_options(bool rows) {
  TrainerOptions o;
  o.optimizer = Sgd{0.9, true};
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 9;
  o.logical_ranks = rows ? 0 : logical;
  return o;
}
LoaderOptions loader_options(bool rows, int rank, int size) {
  LoaderOptions o = images.train_options(rank, size);
  o.placement.logical_ranks = rows ? 0 : logical;
  return o;
}
std::vector<std::byte> bits_of(Trainer& t) {
  Executor& e = t.executor();
  std::vector<std::byte> bits;
  const auto add = [&](const ArenaLayout& layout, const void* data) {
    const auto* const bytes = static_cast<const std::byte*>(data);
    const std::size_t unit = size_of(layout.dtype);
    for (const auto& s : layout.slices)
      bits.insert(bits.end(), bytes + s.offset * unit, bytes + (s.offset + s.count) * unit);
  };
  add(e.parameters(), e.parameter_data());
  add(e.states(), e.state_data());
  return bits;
}
FitOptions fit_options() {
  FitOptions f = images.fit_options(epochs);
  f.save_every = 0;
  f.save_best = false;
  return f;
}

// The weights and statistics of a training in one process, after each step, with logical ranks and without.
std::vector<std::vector<std::byte>> quiet[2];
void train_alone(bool rows) {
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, net(rows), trainer_options(rows));
  Loader train(images.images(samples), loader_options(rows, 0, 1));
  FitOptions f = fit_options();
  quiet[rows].push_back(bits_of(trainer));
  f.after_step = [&](const FitStep&) { quiet[rows].push_back(bits_of(trainer)); };
  (void)fit(trainer, train, nullptr, f);
}
// Returns whether the trainer has the values that the quiet training had after the same step: the same bits, or with
// shares of rows, values that differ only by the order of sums.
bool is_right(Trainer& trainer) {
  const auto& right = quiet[plan.rows].at(static_cast<std::size_t>(trainer.counters().step));
  const std::vector<std::byte> bits = bits_of(trainer);
  if (!plan.rows) return bits == right;
  const auto value = [](const std::vector<std::byte>& of, std::size_t i) {
    float v = 0;
    std::memcpy(&v, of.data() + i, sizeof v);
    return v;
  };
  for (std::size_t i = 0; i < bits.size(); i += sizeof(float))
    if (!(std::abs(value(bits, i) - value(right, i)) < 1e-4F)) return false;
  return true;
}

struct Listener : FitListener {
  void shares(const SharesReport& r) override { reports.push_back(r); }
};

// Runs in the process of each worker. Returns the exit code.
int work(Job& job, Worker& me) {
  Elastic<MeshFactory> strategy(Job::channel(me), Job::elastic_options(me), MeshFactory{&job.meeting()});
  ReferenceBackend backend;
  Trainer trainer(backend, strategy, net(plan.rows), trainer_options(plan.rows));
  const int rank = strategy.rank(), size = strategy.size();
  if (plan.mode != Mode::faults && rank >= 0) place_of_rank[rank] = me.place;
  Loader train(
      SlowImages{images.images(samples), [&] { return plan.of(me.place % most_workers, trainer.counters().step + 1); }},
      loader_options(plan.rows, rank, size));
  Listener listener;
  Coordinator coordinator(trainer, {.listeners = {&listener}, .audit = "audit"});
  FitOptions f = fit_options();
  f.shares = plan.rows ? Shares::rows : Shares::measured;
  f.after_step = [&](const FitStep&) {
    me.holds = true;
    const std::int64_t step = trainer.counters().step;
    job.scheduler().note(me.process->name + " is at step " + std::to_string(step));
    if (!is_right(trainer))
      job.scheduler().fail(me.process->name + " has other weights after step " + std::to_string(step));
  };
  const FitResult result = fit(trainer, train, nullptr, coordinator, f);
  if (result.left) return 0;
  if (result.interrupted) return static_cast<int>(ExitCode::terminated);
  if (result.counters.step != steps)
    job.scheduler().fail(me.process->name + " has done " + std::to_string(result.counters.step) + " steps");
  return 0;
}

// ---- checks ----
int units() { return plan.rows ? static_cast<int>(batch) : logical; }
// Returns the shares of step `step` + 1.
std::vector<std::int32_t> shares_after(std::int64_t step, std::size_t world) {
  std::vector<std::int32_t> shares = tutti::detail::fastest_shares(units(), std::vector<std::int64_t>(world, 1));
  for (const SharesReport& r : reports)
    if (r.step <= step) shares = r.shares;
  return shares;
}
// Checks that the job was at its speed 20 steps after its begin and after a change of speed: a step takes at most 5 %
// more time than with the best shares. A process that is slow in three steps changes no share.
void check_speed(Job& job) {
  const std::size_t world = place_of_rank.size();
  if (world < 2) return;
  const auto text = [](const std::vector<std::int32_t>& shares) {
    std::string all;
    for (const std::int32_t s : shares) all += " " + std::to_string(s);
    return all;
  };
  for (const std::int64_t begin : {std::int64_t{0}, plan.change_step - 1}) {
    std::vector<std::int64_t> cost;
    for (const auto& [rank, place] : place_of_rank) cost.push_back(plan.usual(place, begin + 1));
    const auto shares = shares_after(begin + settled, world), best = tutti::detail::fastest_shares(units(), cost);
    if (tutti::detail::step_time(shares, cost) * 100 > tutti::detail::step_time(best, cost) * 105)
      job.scheduler().fail("20 steps after step " + std::to_string(begin) + " the shares are" + text(shares) + ", not" +
                           text(best));
  }
  const auto before = shares_after(plan.pause_step - 1, world);
  for (std::int64_t step = plan.pause_step; step < std::min(plan.pause_step + settled, steps); ++step)
    if (shares_after(step, world) != before)
      job.scheduler().fail("three slow steps from " + std::to_string(plan.pause_step) + " on change the shares" +
                           text(before) + " to" + text(shares_after(step, world)));
}

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  for (const bool rows : {false, true}) train_alone(rows);  // before the schedules, so that each has its results
  return run_schedules(argc, argv, [](Simulation& s) {
    plan = plan_of(s.options.seed);
    if (plan.mode != Mode::faults)
      for (std::size_t i = 0; i < most_faults; ++i) s.options.without.insert(i);
    std::filesystem::create_directory("audit");
    Job job(s, false, work);
    const auto founders = static_cast<int>(job.launcher().workers().size());
    plan.changes %= founders;
    plan.pauses %= founders;
    plan.victim %= founders;
    plan.kill_after %= static_cast<std::uint64_t>(founders);
    watcher.job = &job;
    tutti::span_watcher.store(&watcher);
    const bool done = job.run();
    if (done) check_audit_files(job.scheduler(), epochs, samples);
    if (plan.mode == Mode::calm) check_speed(job);
    if (plan.mode == Mode::killed_in_exchange && founders > 1 && !was_killed)
      s.scheduler.fail("no process was killed in an exchange of times");
  });
}
