// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cuda {

// A table on the device with the addresses of a model's weights and of their packed forms, so that one launch packs all
// weights.
class PackTable {
 public:
  // Weights are f32. Weights of convolutions are OIHW; other weights keep their order.
  PackTable(DeviceMemory& memory, DType t, std::span<const PackTarget> targets) {
    std::vector<Job> jobs;
    std::vector<Chunk> chunks;
    for (const PackTarget& target : targets) {
      const Shape& s = target.weights.shape;
      Job j{static_cast<const float*>(target.weights.data),
            target.to,
            1,
            static_cast<int>(s.numel()),
            1,
            1,
            static_cast<int>(s.numel()),
            0};
      if (s.rank() == 4) {
        const PackedWeights p(t, s);
        j.rows = static_cast<int>(p.rows);
        j.columns = static_cast<int>(p.columns);
        j.taps = static_cast<int>(p.taps);
        j.padded_rows = static_cast<int>(p.padded_rows);
        j.padded_columns = static_cast<int>(p.padded_columns);
      }
      const std::int64_t all = std::int64_t{j.padded_rows} * j.padded_columns;
      for (std::int64_t at = 0; at < all; at += chunk)
        chunks.push_back(
            {at, static_cast<std::int32_t>(jobs.size()), static_cast<std::int32_t>(std::min(chunk, all - at))});
      jobs.push_back(j);
    }
    blocks_ = static_cast<unsigned>(chunks.size());
    jobs_ = Buffer(memory, std::max<std::size_t>(jobs.size(), 1) * sizeof(Job));
    chunks_ = Buffer(memory, std::max<std::size_t>(chunks.size(), 1) * sizeof(Chunk));
    memory.copy_in(jobs_.data(), jobs.data(), jobs.size() * sizeof(Job));
    memory.copy_in(chunks_.data(), chunks.data(), chunks.size() * sizeof(Chunk));
  }
  void run(Launcher& l, DType t) const {
    if (blocks_ > 0) l.op(t, OpKernel::pack_table, dim3(blocks_), Launcher::block, jobs_.data(), chunks_.data());
  }

 private:
  static constexpr std::int64_t chunk = 256;  // positions of packed weights in a block: each thread packs all taps
                                              // of one position

  // The structs PackJob and PackChunk of kernels/elementwise.hpp.
  struct Job {
    const float* from;
    void* to;
    int rows, columns, taps, padded_rows, padded_columns, unused;
  };
  struct Chunk {
    std::int64_t begin;
    std::int32_t job, count;
  };

  Buffer jobs_, chunks_;
  unsigned blocks_ = 0;
};

}  // namespace tutti::cuda
