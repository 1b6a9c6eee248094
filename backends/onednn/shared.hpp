// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::onednn {

// What the kernels of one backend share.
class Shared {
 public:
  explicit Shared(const CpuOps& b)
      : engine(dnnl::engine::kind::cpu, 0),
        convolutions(engine, b.threads()),
        isa(b.isa()),
        threads(b.threads()),
        scratch_(static_cast<std::size_t>(b.threads())) {}

  void reserve(std::size_t bytes) {
    for (auto& room : scratch_)
      if (room.bytes() < bytes) room = Buffer(host_, bytes);
  }
  [[nodiscard]] std::byte* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].at(0); }

  dnnl::engine engine;
  Convolutions convolutions;
  cpu::Isa isa;
  int threads;

 private:
  HostMemory host_;
  std::vector<Buffer> scratch_;  // per worker: oneDNN's scratchpad, then what a kernel lays behind it
};

[[nodiscard]] inline std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace tutti::onednn
