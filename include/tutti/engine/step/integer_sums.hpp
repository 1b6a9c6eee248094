// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/step/gradient_sink.hpp>
#include <tutti/engine/step/integer_block.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The result of the sums of a step, equal on all processes.
enum class SumCheck : std::uint8_t {
  fits,       // the sums are exact
  repeat,     // the units were not right: repeat the whole step from the state before it
  not_finite  // a gradient or a statistic is not finite; the sums have no meaning
};

// Sums gradients and running statistics of logical ranks as integers, so that the result does not depend on the order
// of the sums nor on which process computes which logical rank. Each block of the gradient arena has a unit, a power of
// two (integer_block.hpp). The *tail* is summed after the gradients. It has a bound of every sum, so that all processes
// detect in the same way that a sum has left the range of 32 bits.
//
// An attempt at a step, on every process (V logical ranks):
//   sums.begin(false);                           // true: repeats the step before, because check() returned repeat
//   for each logical rank of this process, for each of its parts (micro-batches):
//     run the part, gradients [arena] in f32;
//     sums.add(gradients);                       // not for the last part of the process
//     sums.convert(first, last, gradients);      // for the last part only: slices [first, last) are final
//     sums.end_rank(states);                     // after the last part of each logical rank, one without rows included
//   sum the arena as i32 and tail() as i64 over all processes, in any order, modulo 2^32 and 2^64;
//   switch (sums.check()) ...                    // the last part's arena must be summed completely only for restore()
//   sums.restore(gradients);                     // if it fits: i32 to f32, in place
//   sums.take_states(states);                    // the mean of the running statistics
// A process without rows sets its arena to zero and calls convert() for all slices; one without logical ranks too, and
// has no call of end_rank(). Does not allocate memory after the first step, if add() was called in it.
//
// On the host, kernels may give gradients to the sums themselves (begin_part), tensor by tensor; add() and convert()
// then leave these out.
class IntegerSums final : public GradientSink {
 public:
  // parameters: the layout of the gradient arena, of f32; slices: the first ones, which are trained; states: the number
  // of elements of the statistics' arena, of f32. The backend outlives this object; the layout need not.
  IntegerSums(Backend& backend, const ArenaLayout& parameters, std::size_t slices, std::size_t states,
              int logical_ranks);

  // Begins an attempt. Not a repetition: the units are those of levels(), which may have been replaced from outside.
  void begin(bool repeats);
  // Begins a part whose gradients take() may get, in the host's memory, until it ends with add() or convert() of the
  // last slice. last: it is the last part of this process.
  void begin_part(bool last, void* gradients);
  TUTTI_CORE_FUNCTION void take(const float* place, const float* values, std::size_t count) override;
  // Adds the gradients of a part that is not the last of this process.
  void add(const void* gradients) { add(0, first_block_.size() - 1, gradients); }
  // The same for slices [first, last), which follow those of the call before; the last call of a part ends at the last
  // slice. So gradients are converted as soon as they are final, while they are in a cache.
  void add(std::size_t first, std::size_t last, const void* gradients);
  // Replaces the last part's gradients of slices [first, last) by the integers of all parts of this process.
  void convert(std::size_t first, std::size_t last, void* gradients);
  // Adds the running statistics after a logical rank, an arena in the backend's memory.
  void end_rank(const void* states);
  // Adds the metrics of a part: its loss, rounded to a multiple of 2^-24, top-1 and top-k hits, and rows.
  void add_metrics(const std::array<double, 4>& of_part);
  // Rows of this process that no step from now on counts in its metrics, because their records could not be read.
  void leave_out(std::int64_t rows) noexcept { left_out_ = rows; }
  // Returns the metrics of all processes, after check(): a process that is lost after a step takes none with it.
  [[nodiscard]] std::array<double, 4> metrics() const;

  // Returns the numbers to sum, in host memory, always at the same address: complete after convert() of all slices and
  // the last end_rank(). Replace them by their sum over the processes, then call check(). Waits for the backend.
  [[nodiscard]] std::span<std::int64_t> tail();
  // Changes the units for the repetition, or the levels for the next step. If it returns not_finite, neither. Throws
  // DeviceError if the step was repeated `most_attempts` times without result, which means that the repetitions differ.
  [[nodiscard]] SumCheck check();
  // Replaces the summed integers of all slices by floats.
  void restore(void* gradients);
  // The same for the blocks that begin in elements [begin, end) of the arena. Calls that follow one another restore
  // each block once, and all elements below `end` are then floats.
  void restore(std::size_t begin, std::size_t end, void* gradients);
  // Writes the mean of the statistics of all logical ranks into an arena in the backend's memory.
  void take_states(void* states);

  // The levels [blocks] of i32 in the backend's memory: state of the training, which belongs to checkpoints and to the
  // state that members receive. Zero: unset. They change in check() only.
  [[nodiscard]] void* levels() const noexcept { return levels_.data(); }
  // The layout of levels(): one slice, "levels".
  [[nodiscard]] const ArenaLayout& layout() const noexcept { return layout_; }

  static constexpr int most_attempts = 12;

 private:
  void reserve_earlier();
  void convert_blocks(std::size_t begin, std::size_t end, const void* gradients, std::int32_t* to);
  void use_levels();
  void upload_units();
  void collect_maxima();
  bool change_unit(std::size_t block);

  Backend& b_;
  int ranks_;
  std::size_t states_, elements_ = 0;  // elements_: of the slices
  ArenaLayout layout_;
  std::vector<IntegerBlock> blocks_;
  std::vector<std::size_t> first_block_;
  std::vector<std::int32_t> host_levels_;
  std::vector<std::uint8_t> provisional_;     // per block: its unit does not come from a bound yet
  Buffer levels_, units_, maxima_, earlier_;  // in the backend's memory; units_: blocks_
  std::vector<std::uint32_t> host_maxima_;
  std::vector<float> host_states_;
  std::vector<std::int64_t> tail_;   // values that are not finite, a bound per block, two limbs per statistic, metrics
  std::int64_t left_out_ = 0;        // rows
  bool added_ = false;               // earlier_ has integers of this attempt
  bool waiting_ = false;             // maxima_ has maxima that tail_ lacks
  std::vector<std::uint8_t> taken_;  // per block: take() has got its gradients in this part
  const float* taken_from_ = nullptr;  // the arena of the part whose gradients it gets
  std::int32_t* taken_to_ = nullptr;
  int attempts_ = 0;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/step/integer_sums_definitions.hpp>
#endif
