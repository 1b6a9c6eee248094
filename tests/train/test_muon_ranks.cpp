// SPDX-License-Identifier: MIT
// Muon's matrices, shared out to the ranks of a job: the shares, and the same bits as without.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/engine/step/matrix_shares.hpp>

#include "logical_job.hpp"
#include "strategy/broken_step.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

// Counts the matrices that are orthogonalised. Divides steps unless `whole`.
class CountingBackend : public CpuBackend {
 public:
  explicit CountingBackend(bool whole) : CpuBackend({1}), whole_(whole) {}
  void update(const UpdateOp& op, const UpdateCall& u) override {
    if (u.rows > 0 && (u.orthogonal == nullptr || u.only_orthogonal)) ++matrices;
    CpuBackend::update(op, u);
  }
  [[nodiscard]] bool divides_muon() const override { return !whole_; }
  int matrices = 0;

 private:
  bool whole_;
};

// A net with three matrices that are worth an exchange.
Graph wide_net() {
  Builder b(3, size, size);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 48, .stride = 2}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 64, .stride = 2}, {.relu = true});
  x = nn::conv_bn(b, "conv3", "bn3", x, {.out = 64}, {.relu = true});
  x = nn::conv_bn(b, "conv4", "bn4", x, {.out = 80}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

UpdateRules rules_of(const std::vector<std::pair<std::size_t, std::size_t>>& matrices) {
  UpdateRules r;
  r.op = MuonUpdate{};
  for (const auto& [rows, cols] : matrices) r.runs.push_back({0, rows * cols, 1, 0, rows, cols});
  r.runs.push_back({0, 64, 1, 0});  // a parameter that is not a matrix
  return r;
}

struct Trained {
  std::vector<std::byte> state;
  int matrices = 0;
};

// Trains on threads, and returns what each rank has.
std::vector<Trained> train(const LogicalJob& job, int world, bool whole) {
  std::vector<Trained> all(static_cast<std::size_t>(world));
  const auto run = [&](auto& strategy, int rank) {
    CountingBackend backend(whole);
    Trainer t(backend, strategy, wide_net(), job.options);
    run_steps(t, job, 0, job.rows.size());
    all[static_cast<std::size_t>(rank)] = {logical_state(t), backend.matrices};
  };
  if (world == 1) {
    Solo solo;
    run(solo, 0);
  } else {
    run_ranks(world, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      run(strategy, c.rank());
    });
  }
  return all;
}

}  // namespace

TEST_CASE("shares are balanced, the same on all ranks, and fall with their number") {
  // The weights of ResNet-18's convolutions.
  std::vector<std::pair<std::size_t, std::size_t>> all{{64, 147}};
  for (const auto& [channels, from] :
       {std::pair<std::size_t, std::size_t>{64, 64}, {128, 64}, {256, 128}, {512, 256}}) {
    all.emplace_back(channels, 9 * from);
    for (int i = 0; i < 3; ++i) all.emplace_back(channels, 9 * channels);
    if (channels != from) all.emplace_back(channels, from);
  }
  const UpdateRules rules = rules_of(all);
  double alone = 0;
  for (const auto& [rows, cols] : all) alone += MatrixShares::operations(MuonUpdate{}, rows, cols);
  const auto cost = [&](std::size_t i) { return MatrixShares::operations(MuonUpdate{}, all[i].first, all[i].second); };
  CHECK_FALSE(MatrixShares(rules, 1).any());
  for (int ranks = 2; ranks <= 5; ++ranks) {
    const MatrixShares shares(rules, ranks);
    REQUIRE(shares.any());
    double most = 0;
    for (int r = 0; r < ranks; ++r) {
      double own = 0;  // of this rank; -1 is computed by each rank
      for (std::size_t i = 0; i < all.size(); ++i)
        if (shares.owner(i) == r || shares.owner(i) == -1) own += cost(i);
      most = std::max(most, own);
    }
    CHECK(most < 1.25 * alone / ranks);
    CHECK(shares.owner(all.size()) == -1);
    CHECK(shares.elements() == MatrixShares(rules, 2).elements());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(shares.owner(i) < ranks);
  }
}

TEST_CASE("what an exchange would not speed up is not shared out") {
  // Small matrices, whatever their number; and a single matrix.
  CHECK_FALSE(MatrixShares(rules_of(std::vector<std::pair<std::size_t, std::size_t>>(100, {16, 144})), 2).any());
  CHECK_FALSE(MatrixShares(rules_of({{512, 4608}}), 2).any());
  CHECK(MatrixShares(rules_of({{64, 576}, {64, 576}}), 2).any());
  CHECK_FALSE(MatrixShares(rules_of({{64, 576}, {64, 576}}), 1).any());
  UpdateRules sgd = rules_of({{512, 4608}, {512, 4608}});
  sgd.op = SgdUpdate{};
  CHECK_FALSE(MatrixShares(sgd, 2).any());
}

TEST_CASE("ranks that share the matrices out have the bits of ranks that do not") {
  LogicalJob job;
  job.rows = {12, 12, 6};
  job.lr = 0.02;
  const int steps = 3, shared = 3, own = 1;
  for (const AnyOptimizer& optimizer :
       {AnyOptimizer(Muon{}), AnyOptimizer(MuonAdamw{.rule = {.nesterov = false, .normalize = true, .bf16 = true}})})
    for (const double clip : {0.0, 0.1}) {
      job.options.optimizer = optimizer;
      job.options.clip_norm = clip;
      CAPTURE(clip);
      CAPTURE(optimizer.slots());
      for (const int world : {2, 3}) {
        const auto divided = train(job, world, false), whole = train(job, world, true);
        int sum = 0;
        for (std::size_t r = 0; r < divided.size(); ++r) {
          CHECK(divided[r].state == whole[r].state);
          CHECK(whole[r].matrices == steps * (shared + own));
          sum += divided[r].matrices;
        }
        CHECK(sum == steps * (shared + world * own));
      }
    }
}

TEST_CASE("logical ranks have the same bits however many processes share the matrices out") {
  LogicalJob job;
  job.rows = {12, 12, 6};
  job.lr = 0.02;
  job.options.optimizer = Muon{};
  job.options.logical_ranks = 3;
  const auto one = train(job, 1, false);
  for (const int world : {2, 3})
    for (const Trained& t : train(job, world, false)) CHECK(t.state == one[0].state);
}

TEST_CASE("a step that fails at any piece, also while matrices are exchanged, leaves the state before it") {
  for (const int logical : {0, 3}) {
    const auto at = [&](int piece) {
      int pieces = 0;
      run_ranks(2, [&](ThreadCommunicator& c) {
        CpuBackend backend({1});
        const bool breaks = piece >= 0;
        Breaking strategy(c, breaks && c.rank() == 1 ? 2 : 0, piece);
        LogicalJob job;
        job.rows = {12, 12};
        job.options.optimizer = Muon{};
        job.options.logical_ranks = logical;
        Trainer t(backend, strategy, wide_net(), job.options);
        run_steps(t, job, 0, 1);
        const auto before = logical_state(t);
        try {
          run_steps(t, job, 1, 2);
          CHECK_FALSE(breaks);
        } catch (const CommunicationError&) {
          CHECK(breaks);
          t.roll_back();
          CHECK(logical_state(t) == before);
        }
        if (c.rank() == 0) pieces = strategy.pieces();
      });
      return pieces;
    };
    const int pieces = at(-1);
    CHECK(pieces > 2);
    for (int piece = 0; piece < pieces; ++piece) {
      CAPTURE(logical);
      CAPTURE(piece);
      at(piece);
    }
  }
}

TEST_CASE("ranks that share matrices out do not train with ranks that do not") {
  Solo solo;
  const auto facts = [&](bool whole) {
    CountingBackend backend(whole);
    return Trainer(backend, solo, wide_net(), {.optimizer = Muon{}}).facts().facts();
  };
  CHECK(facts(true) == facts(true));
  CHECK(facts(true) != facts(false));
}
