// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cpu {

// Times a convolution's kernel on its own operands, divided in the same way as in a plan.
class KernelBenchmark {
 public:
  KernelBenchmark(Backend& b, std::unique_ptr<Kernel> k, const NodeDesc& d, bool of_weights)
      : b_(b), kernel_(std::move(k)), d_(d), is_weight_gradient_(of_weights), cut_(kernel_->cut()) {
    shards_ = static_cast<int>(std::min<std::int64_t>(b.shards(), d.rows));
    std::size_t row_bytes = 1;
    for (std::size_t i = 0; i < operands; ++i) {
      data_[i] = room(desc(i).bytes());
      if (per_row(i)) row_bytes = std::max(row_bytes, desc(i).row_bytes());
    }
    const std::int64_t shard_rows = (d.rows + shards_ - 1) / shards_;
    chunk_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(b.chunk_bytes() / row_bytes), 1, shard_rows);
    stride_ = (cut_.partial_bytes + 63) / 64 * 64;
    partial_ = room(stride_ * static_cast<std::size_t>(shards_));
    if (const std::size_t bytes = of_weights ? 0 : kernel_->packed_bytes(); bytes > 0) packed_ = room(bytes);
    PrepareInfo info;
    info.desc = d;
    info.partition = cut_;
    info.workers = b.threads();
    if (cut_.division == Division::whole) {
      info.chunk_rows = {d.rows};
    } else {
      for (int s = 0; s < shards_; ++s)
        for (std::int64_t r = begin(s); r < begin(s + 1); r += chunk_) {
          const std::int64_t n = std::min(chunk_, begin(s + 1) - r);
          if (std::find(info.chunk_rows.begin(), info.chunk_rows.end(), n) == info.chunk_rows.end())
            info.chunk_rows.push_back(n);
        }
    }
    kernel_->prepare(info);
  }

  // Returns the milliseconds of one run, including packing of the weights.
  double run() {
    const Stopwatch clock;
    if (packed_.bytes() > 0) kernel_->pack({data_[1].data(), desc(1).dtype, desc(1).shape}, packed_.data());
    const bool whole = cut_.division == Division::whole, reduces = cut_.division == Division::reduce;
    const std::array<int, 2> loops{whole ? cut_.tasks : shards_, reduces ? cut_.tasks : 0};
    b_.parallel(loops, [&](int loop, int task, int worker) {
      if (loop == 1) return run_task(Phase::finish, task, worker);
      if (whole) return run_task(Phase::whole, task, worker);
      for (std::int64_t row = begin(task); row < begin(task + 1); row += chunk_) {
        Call c = call(row, std::min(chunk_, begin(task + 1) - row), worker);
        c.phase = reduces ? Phase::reduce : Phase::apply;
        c.shard = task;
        c.first_chunk = row == begin(task);
        c.partial = c.partial_of(task);
        kernel_->run(c);
      }
    });
    return 1e3 * clock.seconds();
  }

 private:
  static constexpr std::size_t operands = 3;  // two inputs and the output

  [[nodiscard]] const TensorDesc& desc(std::size_t i) const { return i < 2 ? d_.in[i] : d_.out[0]; }
  [[nodiscard]] bool per_row(std::size_t i) const { return i == 0 || (i == 1) == is_weight_gradient_; }
  [[nodiscard]] std::int64_t begin(int shard) const { return d_.rows * shard / shards_; }
  // Fills with small numbers, in f32 and in bf16: zeros that were never written would all be one page.
  [[nodiscard]] Buffer room(std::size_t bytes) {
    if (bytes == 0) return {};
    Buffer r(host_, bytes);
    std::memset(r.data(), 0x3c, bytes);
    return r;
  }

  [[nodiscard]] Call call(std::int64_t row, std::int64_t rows, int worker) const {
    Call c;
    c.inputs = 2;
    c.outputs = 1;
    for (std::size_t i = 0; i < operands; ++i) {
      TensorRef& t = i < 2 ? c.in[i] : c.out[0];
      t = {data_[i].data(), desc(i).dtype, desc(i).shape};
      if (!per_row(i)) continue;
      t.shape[0] = rows;
      t.data = data_[i].at(static_cast<std::size_t>(row) * desc(i).row_bytes());
    }
    if (packed_.bytes() > 0) c.in[1] = {packed_.data(), d_.compute, desc(1).shape};
    c.worker = worker;
    c.shards = shards_;
    c.first_row = row;
    c.count_rows = d_.rows;
    c.partial = partial_.at(0);
    c.partial_stride = stride_;
    return c;
  }
  void run_task(Phase phase, int task, int worker) {
    Call c = call(0, d_.rows, worker);
    c.phase = phase;
    c.task = task;
    c.tasks = cut_.tasks;
    kernel_->run(c);
  }

  Backend& b_;
  std::unique_ptr<Kernel> kernel_;
  NodeDesc d_;
  bool is_weight_gradient_;  // whether it computes the gradient of weights
  Partition cut_;
  int shards_;
  std::int64_t chunk_ = 1;
  std::size_t stride_ = 0;
  HostMemory host_;
  std::array<Buffer, operands> data_;
  Buffer partial_, packed_;
};

}  // namespace tutti::cpu
