// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/float/f16.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/arenas.hpp>

namespace tutti::detail {

// Adds weight times `count` values of type t to sums.
template <class Sum>
void add_values(DType t, const std::byte* from, std::size_t count, double weight, Sum* sums) {
  const auto add = [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) {
      T v;
      std::memcpy(&v, from + i * sizeof v, sizeof v);
      sums[i] += static_cast<Sum>(weight * static_cast<double>(v));
    }
  };
  if (t == DType::f16)
    add(f16{});
  else
    with_float_type(t, add);
}

// Fetches the logits of the last batch as f32 to the host.
class LogitsOnHost {
 public:
  explicit LogitsOnHost(Executor& e) : e_(e) {}

  // Returns [rows, classes], valid until the next call. Waits for the batch.
  [[nodiscard]] std::span<const float> of_last_run(std::int64_t rows) {
    const Graph& g = e_.graph();
    const TensorRef z = e_.value(g.logits);
    const auto count = static_cast<std::size_t>(rows * g[g.logits].shape.row_numel());
    raw_.resize(count * size_of(z.dtype));
    e_.backend().memory().copy_out(raw_.data(), z.data, raw_.size());
    values_.assign(count, 0.F);
    add_values(z.dtype, raw_.data(), count, 1, values_.data());
    return span_of(values_);
  }

 private:
  Executor& e_;
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

// Collects the logits of batches in the backend's memory until that is full, so that the host rarely waits for a device
// that evaluates.
class LogitBuffer {
 public:
  struct Batch {
    DType type = DType::f32;
    std::int64_t classes = 0;
    std::span<const std::byte> logits;  // [runs, rows, classes]
    std::span<const std::int32_t> labels;
    std::span<const std::int64_t> indices;

    // Adds weight times the logits of a run, [rows, classes].
    template <class Sum>
    void add_run(std::size_t run, double weight, Sum* sums) const {
      const std::size_t count = labels.size() * static_cast<std::size_t>(classes);
      add_values(type, logits.data() + run * count * size_of(type), count, weight, sums);
    }
    // Returns the logits of the first run.
    [[nodiscard]] std::vector<float> as_floats() const {
      std::vector<float> values(labels.size() * static_cast<std::size_t>(classes));
      add_run(0, 1, values.data());
      return values;
    }
  };

  // e: must outlive this object. runs: number of runs for each batch, one for each view. kept_bytes: size of the
  // memory, unless a batch needs more. then: called with each batch, in the order of the batches.
  LogitBuffer(Executor& e, std::size_t runs, std::size_t kept_bytes, std::function<void(const Batch&)> then)
      : e_(e),
        runs_(runs),
        kept_bytes_(kept_bytes),
        classes_(e.graph()[e.graph().logits].shape.row_numel()),
        then_(std::move(then)) {}

  // Adds the logits of the last run, for a batch with these labels and indices. Call it in the order of the runs.
  void add(std::size_t run, std::span<const std::int32_t> labels, std::span<const std::int64_t> indices) {
    const TensorRef z = e_.value(e_.graph().logits);
    const std::size_t bytes = labels.size() * static_cast<std::size_t>(classes_) * size_of(z.dtype);
    if (run == 0) {
      type_ = z.dtype;
      if (used_ + runs_ * bytes > memory_.bytes()) {
        take();
        Arenas::grow(e_.backend().memory(), memory_, std::max(runs_ * bytes, kept_bytes_));
      }
      batches_.push_back({{labels.begin(), labels.end()}, {indices.begin(), indices.end()}});
    }
    e_.backend().memory().copy(memory_.at(used_), z.data, bytes);
    used_ += bytes;
  }
  // Fetches the stored logits and passes them to `then`.
  void take() {
    std::vector<std::byte> host(std::exchange(used_, 0));
    const auto batches = std::exchange(batches_, {});
    if (batches.empty()) return;
    e_.backend().memory().copy_out(host.data(), memory_.data(), host.size());
    std::span<const std::byte> rest(host);
    for (const Rows& b : batches) {
      const std::size_t bytes = runs_ * b.labels.size() * static_cast<std::size_t>(classes_) * size_of(type_);
      then_({type_, classes_, rest.first(bytes), b.labels, b.indices});
      rest = rest.subspan(bytes);
    }
  }

 private:
  struct Rows {
    std::vector<std::int32_t> labels;
    std::vector<std::int64_t> indices;
  };

  Executor& e_;
  std::size_t runs_, kept_bytes_;
  std::int64_t classes_;
  std::function<void(const Batch&)> then_;
  DType type_ = DType::f32;
  Buffer memory_;
  std::size_t used_ = 0;
  std::vector<Rows> batches_;
};

}  // namespace tutti::detail
