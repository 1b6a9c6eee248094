// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

#include "comm/thread_ranks.hpp"
#include "small_trainer.hpp"

// A small training with logical ranks, and what must be the same on any number of processes.
namespace tutti::testing {

struct LogicalJob {
  TrainerOptions options{};                          // with logical ranks
  std::vector<std::int64_t> rows{13, 13, 13, 5, 2};  // of each step, on all processes together
  bool norm = true;
  double drop = 0;  // rate of small_net()'s dropouts
  double lr = 0.1;
  std::vector<std::vector<std::int32_t>> shares{};  // bounds of each step, one after another; empty: equal shares
};

// Everything that a training leaves.
struct LogicalResult {
  std::vector<std::byte> state;  // weights, statistics, optimizer, levels, counters
  std::vector<double> metrics;   // of each step and all processes
  std::vector<std::int64_t> pieces;

  friend bool operator==(const LogicalResult& a, const LogicalResult& b) {
    return a.state == b.state && a.metrics == b.metrics;
  }
};

// AllReduce that counts the pieces that it sums.
class Counting : public AllReduce<ThreadCommunicator> {
 public:
  using AllReduce::AllReduce;
  Work reduce(const Piece& piece) {
    ++pieces;
    return AllReduce::reduce(piece);
  }
  std::int64_t pieces = 0;
};

inline std::vector<std::byte> logical_state(Trainer& t) {
  t.commit();
  std::vector<std::byte> all;
  const auto take = [&](std::span<const std::byte> bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
  for (const bool optimizer : {false, true})
    for (const StateSpan& s : t.committed_tensors(optimizer)) take(s.bytes);
  take(std::as_bytes(std::span(&t.committed().counters(), 1)));
  return all;
}

// Returns the rows of a process in step n.
inline Batch logical_batch(const Data& all, const Placement& placement, std::int64_t count) {
  const Part part = placement.rows(count);
  constexpr std::int64_t bytes = 3 * size * size;
  Batch b;
  b.images = std::span(all.images)
                 .subspan(static_cast<std::size_t>(part.begin * bytes), static_cast<std::size_t>(part.count * bytes));
  b.labels = std::span(all.labels).subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.count));
  b.count = part.count;
  b.global_count = count;
  return b;
}

// Steps [first, last) of a job. Returns the metrics of each step.
inline std::vector<double> run_steps(Trainer& t, const LogicalJob& job, std::size_t first, std::size_t last) {
  std::vector<double> all;
  for (std::size_t n = first; n < last; ++n) {
    const Data data(job.rows[n], n + 1);
    if (!job.shares.empty() && t.strategy().size() > 1) t.set_shares(job.shares[n % job.shares.size()]);
    const Batch b = logical_batch(data, t.placement(), job.rows[n]);
    Metrics m = t.step(b, job.lr).wait().metrics;
    if (t.options().logical_ranks == 0) m = t.reduce(m);
    all.insert(all.end(), {m.loss, m.top1_hits, m.rows});
  }
  return all;
}

template <class Backend, class S>
LogicalResult train_logical(Backend& backend, S& strategy, const LogicalJob& job) {
  Trainer t(backend, strategy, small_net(job.norm, job.drop), job.options);
  LogicalResult r;
  r.metrics = run_steps(t, job, 0, job.rows.size());
  r.state = logical_state(t);
  return r;
}

// Runs the job on so many processes, which are threads with `threads` threads each. All must have the same result.
inline LogicalResult train_world(const LogicalJob& job, int world, int threads = 1) {
  std::vector<LogicalResult> all(static_cast<std::size_t>(world));
  if (world == 1) {
    CpuBackend backend({threads});
    Solo solo;
    return train_logical(backend, solo, job);
  }
  run_ranks(world, [&](ThreadCommunicator& c) {
    CpuBackend backend({threads});
    Counting strategy(c);
    auto& mine = all[static_cast<std::size_t>(c.rank())];
    mine = train_logical(backend, strategy, job);
    mine.pieces.push_back(strategy.pieces);
  });
  for (const LogicalResult& r : all) CHECK(r == all[0]);
  return all[0];
}

}  // namespace tutti::testing
