// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/batch_source.hpp>

namespace tutti {

struct FitOptions;  // fit_options.hpp

// The batches of a rank. Without `test` there is no evaluation.
struct Sources {
  std::unique_ptr<BatchSource> train, test{};
};

// Makes the sources of one rank of `size`; their placements must match. Called on each rank when a run begins and after
// each change of members. arguments: those of fit(), with the global batch at the beginning; fit() sets later batches
// (batch_per_worker). The function should only refer to large data, which the program loads before.
using MakeSources = std::function<Sources(const FitOptions& arguments, int rank, int size)>;

namespace detail {

// The sources of a run: the caller's, which are placed again when the members change, or those that a function makes.
class RunSources {
 public:
  // logical_ranks: of the trainer. All placements get this number.
  RunSources(BatchSource* train, BatchSource* test, const MakeSources* make, int logical_ranks)
      : make_(make), train_(train), test_(test), logical_ranks_(logical_ranks) {
    if (train != nullptr) remember();
  }

  [[nodiscard]] BatchSource* train() const noexcept { return train_; }
  [[nodiscard]] BatchSource* test() const noexcept { return test_; }
  // Returns the global batch that the training source had at first.
  [[nodiscard]] std::int64_t first_batch() const noexcept { return batch_; }
  // Returns the rows of a step of an evaluation for each rank, or for each logical rank.
  [[nodiscard]] std::int64_t test_rows() const noexcept { return test_rows_; }
  // Returns whether the sources divide their batches among the trainer's logical ranks.
  [[nodiscard]] bool have_logical_ranks() const {
    const auto has = [&](const BatchSource* s) {
      return s == nullptr || s->placement().logical_ranks == logical_ranks_;
    };
    return has(train_) && has(test_);
  }

  // Makes the sources for one rank of `size`, if a function makes them.
  void make(const FitOptions& arguments, int rank, int size) {
    if (make_ == nullptr) return;
    made_ = (*make_)(arguments, rank, size);
    train_ = made_.train.get();
    test_ = made_.test.get();
    if (train_ == nullptr) fail<UsageError>("sources", "training batches", "no batches");
    for (const BatchSource* s : {train_, test_}) {
      if (s == nullptr) continue;
      const Placement& p = s->placement();
      if (p.rank != rank || p.world != size)
        fail<UsageError>("sources", {"batches of rank ", rank, " of ", size},
                         {"batches of rank ", p.rank, " of ", p.world},
                         "use the rank and size that the function gets for the placement of the batches");
    }
    remember();
  }
  // Continues at p as one rank of `size`, in steps of this global batch. test_rows: the same on all ranks. bounds: as
  // in Placement. Without logical ranks the shares of an evaluation are equal: each rank has the memory for as many
  // rows.
  void start(Position p, int rank, int size, std::int64_t global_batch, std::int64_t test_rows,
             const std::vector<std::int32_t>& bounds = {}) {
    const auto place = [&](const BatchSource& s, std::int64_t batch) {
      Placement to = s.placement();
      to.global_batch = batch;
      to.rank = rank;
      to.world = size;
      to.logical_ranks = logical_ranks_;
      to.bounds = logical_ranks_ > 0 || &s == train_ ? bounds : std::vector<std::int32_t>();
      return to;
    };
    train_->start(p, place(*train_, global_batch));
    // Keeps the rows per rank or logical rank: an evaluation with fewer ranks then needs no more memory.
    if (test_ != nullptr) test_->start({}, place(*test_, test_rows * (logical_ranks_ > 0 ? logical_ranks_ : size)));
  }

 private:
  void remember() {
    if (batch_ == 0) batch_ = train_->placement().global_batch;
    if (test_ == nullptr) return;
    const Placement& p = test_->placement();
    const int ranks = logical_ranks_ > 0 ? logical_ranks_ : p.world;
    test_rows_ = (p.global_batch + ranks - 1) / ranks;
  }

  const MakeSources* make_;
  Sources made_;
  BatchSource *train_, *test_;
  int logical_ranks_;
  std::int64_t batch_ = 0, test_rows_ = 1;
};

}  // namespace detail
}  // namespace tutti
