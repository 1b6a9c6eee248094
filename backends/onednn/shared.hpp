// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>

namespace tutti::onednn {

// The state that all kernels of a backend share.
class Shared {
 public:
  Shared(const CpuOps& b, cpu::WorkerRoom& room)
      : engine(dnnl::engine::kind::cpu, 0),
        convolutions(engine, b.threads()),
        isa(b.isa()),
        amx(cpu::detect_amx()),
        threads(b.threads()),
        cpu_(b),
        room_(room) {}

  // Reserves memory for each worker: oneDNN's scratchpad, followed by the kernel's own data. tutti's CPU kernels use
  // the same memory.
  void reserve(std::size_t bytes) { room_.reserve(threads, bytes); }
  [[nodiscard]] std::byte* scratch(int worker) const { return room_.of(worker); }
  // Returns the number of threads that determines how work is divided.
  [[nodiscard]] int threads_of_division() const { return cpu_.threads_of_division(); }

  dnnl::engine engine;
  Convolutions convolutions;
  cpu::Isa isa;
  bool amx;  // whether kernels may use its tiles
  int threads;

 private:
  const CpuOps& cpu_;
  cpu::WorkerRoom& room_;
};

[[nodiscard]] inline std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace tutti::onednn
