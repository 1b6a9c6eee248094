// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The progress of a run. All of it is committed together with the tensors.
struct Counters {
  std::int64_t step = 0;      // updates done
  std::int64_t epoch = 0;     // from 0; the one of the next step
  std::int64_t consumed = 0;  // samples of that epoch that all ranks together have seen
  std::int64_t samples = 0;   // since the start
  std::int64_t batches = 0;   // that batch norm has seen: a step has one per micro-batch
  // Of a dynamic loss scale: its power of two, and the steps since its last change.
  std::int64_t scale_exponent = 16, scale_steps = 0;
  // Number of the generation, if the members change; grows over the whole run, also when it is resumed. 0: they have
  // not changed.
  std::int64_t generation = 0;
  // For a global batch that follows the number of workers: the batch of the schedule's rate, and the factor of the
  // rate: its start, its target, and the step of the change.
  std::int64_t rate_batch = 0;
  double rate_from = 1, rate_to = 1;
  std::int64_t rate_step = 0;
  // Sums over the steps of the current epoch so far and all ranks, which a run with logical ranks sets before it
  // commits the state: a resumed run then reports the means of the whole epoch. 0 rows: not known.
  double epoch_loss = 0, epoch_top1_hits = 0, epoch_topk_hits = 0, epoch_rows = 0, epoch_skipped = 0;
  // The same since the last report of a step.
  double report_loss = 0, report_top1_hits = 0, report_rows = 0;
  // Of the evaluations so far: the best value, the number since the one that had it, and the step of the last one. 0
  // steps: there was none.
  double best_value = 0;
  std::int64_t evaluations_since_best = 0, evaluated_step = 0;
  friend bool operator==(const Counters&, const Counters&) = default;
};

// Returns the counters as a tensor, for peers.
[[nodiscard]] inline StateSpan counters_span(Counters& c) {
  static_assert(std::is_trivially_copyable_v<Counters> && sizeof(Counters) % sizeof(std::int64_t) == 0);
  return {"counters",
          DType::i64,
          {static_cast<std::int64_t>(sizeof(Counters) / sizeof(std::int64_t))},
          std::as_writable_bytes(std::span(&c, 1))};
}

// The beginnings of the names of averaged weights in a checkpoint. Evaluations and exports take the first, if there are
// any, in place of the weights; the weights become the second from time to time.
inline const std::string average_prefix = "ema.", lookahead_prefix = "lookahead.";
[[nodiscard]] inline bool is_average(const std::string& tensor) {  // Returns whether it is an average of weights.
  return tensor.starts_with(average_prefix) || tensor.starts_with(lookahead_prefix);
}

// One arena of the training state, and the names of its slices in a checkpoint.
struct StateArena {
  const ArenaLayout* layout = nullptr;
  std::byte* data = nullptr;
  std::string prefix;      // before the slice's name
  bool optimizer = false;  // the file that it belongs to
};

// A second copy of the whole state that a run needs to continue. Recovery, late joiners and checkpoints read only this
// copy, because the arenas change while a step runs.
class CommittedState {
 public:
  CommittedState() = default;
  CommittedState(const CommittedState&) = delete;
  CommittedState& operator=(const CommittedState&) = delete;

  // Uses this memory from now on; its size must be that of the arenas together. Empty: allocates memory of its own now,
  // so that no later call allocates.
  void lie_in(std::span<std::byte> memory, std::size_t bytes);

  // Copies the arenas out of the backend's memory.
  void commit(Memory& memory, const std::vector<StateArena>& arenas, const Counters& counters);
  // Copies it back, counters included.
  Counters restore(Memory& memory, const std::vector<StateArena>& arenas) const;

  [[nodiscard]] bool valid() const noexcept { return valid_; }
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

  [[nodiscard]] StateSpan counters_span() { return tutti::counters_span(counters_); }

  // Returns the tensors by name, as views into this copy: those of the optimizer with `optimizer`, otherwise those of
  // the model.
  [[nodiscard]] std::vector<StateSpan> tensors(const std::vector<StateArena>& arenas, bool optimizer);
  // Allocates for tensors that come from outside, e.g. from a checkpoint or a peer; call restore() after filling them.
  void reserve(const std::vector<StateArena>& arenas, const Counters& counters);
  // The same, if all of it will be filled.
  void expect(const std::vector<StateArena>& arenas, const Counters& counters);

  [[nodiscard]] static std::size_t bytes_of(const std::vector<StateArena>& arenas) noexcept {
    std::size_t total = 0;
    for (const auto& a : arenas) total += a.layout->bytes();
    return total;
  }

 private:
  std::vector<std::byte> own_;
  std::span<std::byte> bytes_;
  Counters counters_;
  bool valid_ = false;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void CommittedState::lie_in(std::span<std::byte> memory, std::size_t bytes) {
  if (memory.size() != bytes) own_.resize(bytes);
  bytes_ = memory.size() == bytes ? memory : std::span(own_);
}
TUTTI_CORE_FUNCTION void CommittedState::commit(Memory& memory, const std::vector<StateArena>& arenas,
                                                const Counters& counters) {
  expect(arenas, counters);
  memory.synchronise();
  std::size_t at = 0;
  for (const auto& a : arenas) {
    memory.copy_out(bytes_.data() + at, a.data, a.layout->bytes());
    at += a.layout->bytes();
  }
}
TUTTI_CORE_FUNCTION Counters CommittedState::restore(Memory& memory, const std::vector<StateArena>& arenas) const {
  std::size_t at = 0;
  for (const auto& a : arenas) {
    memory.copy_in(a.data, bytes_.data() + at, a.layout->bytes());
    at += a.layout->bytes();
  }
  memory.synchronise();
  return counters_;
}
TUTTI_CORE_FUNCTION std::vector<StateSpan> CommittedState::tensors(const std::vector<StateArena>& arenas,
                                                                   bool optimizer) {
  std::vector<StateSpan> list;
  std::size_t at = 0;
  for (const auto& a : arenas) {
    const std::size_t unit = size_of(a.layout->dtype);
    if (a.optimizer == optimizer)
      for (const Slice& s : a.layout->slices)
        list.push_back(
            {a.prefix + s.name, a.layout->dtype, s.shape, {bytes_.data() + at + s.offset * unit, s.count * unit}});
    at += a.layout->bytes();
  }
  return list;
}
TUTTI_CORE_FUNCTION void CommittedState::reserve(const std::vector<StateArena>& arenas, const Counters& counters) {
  expect(arenas, counters);
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
}
TUTTI_CORE_FUNCTION void CommittedState::expect(const std::vector<StateArena>& arenas, const Counters& counters) {
  if (const std::size_t bytes = bytes_of(arenas); bytes_.size() != bytes) lie_in({}, bytes);
  counters_ = counters;
  valid_ = true;
}
#endif

}  // namespace tutti
