// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/tensor/memory.hpp>

#include "comm/conformance.hpp"

// The cases for every communicator, run on NCCL's communicator, and the same operations on device memory.
namespace tutti::conformance {

// Values in the device's memory.
template <class T>
struct OnDevice {
  OnDevice(cuda::DeviceMemory& m, const std::vector<T>& v) : memory(m), buffer(m, v.size() * sizeof(T)), n(v.size()) {
    set(v);
  }
  void set(const std::vector<T>& v) {
    memory.copy_in(buffer.data(), v.data(), n * sizeof(T));
    memory.synchronise();
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(buffer.data()), n * sizeof(T)}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> v(n);
    memory.copy_out(v.data(), buffer.data(), n * sizeof(T));
    return v;
  }
  cuda::DeviceMemory& memory;
  Buffer buffer;
  std::size_t n;
};

// Runs these operations on device memory.
inline void device_cases(cuda::DeviceMemory& m, NcclCommunicator& c) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{4096}, std::size_t{1'000'003}}) {
    OnDevice<float> v(m, values<float>(c.rank(), n));
    Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "sum");
    require(w.name() == "sum", "its name");
    w.wait_device();
    expect(v.values(), 0, n, c.size(), ReduceOp::sum, "sum, waited for by the device");
    require(w.done(), "done after the stream was waited for");

    v.set(values<float>(c.rank(), n));
    c.all_reduce(DType::f32, v.bytes(), ReduceOp::max, "max").wait();
    expect(v.values(), 0, n, c.size(), ReduceOp::max, "max");

    for (int root = 0; root < c.size(); ++root) {
      v.set(values<float>(c.rank(), n));
      c.broadcast(v.bytes(), root, "broadcast").wait();
      require(v.values() == values<float>(root, n), "broadcast");
    }
    v.set(values<float>(c.rank(), n));
    OnDevice<float> all(m, std::vector<float>(n * static_cast<std::size_t>(c.size())));
    c.all_gather(v.bytes(), all.bytes(), "gather").wait();
    const auto got = all.values();
    for (int r = 0; r < c.size(); ++r) {
      const auto want = values<float>(r, n);
      require(std::equal(want.begin(), want.end(),
                         got.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * n)),
              "all_gather");
    }
    OnDevice<bf16> b(m, values<bf16>(c.rank(), n));
    c.all_reduce(DType::bf16, b.bytes(), ReduceOp::sum, "bf16").wait();
    expect(b.values(), 0, n, c.size(), ReduceOp::sum, "bf16");
  }
}

inline void all_cases(cuda::DeviceMemory& m, NcclCommunicator& c) {
  std::string at;
  try {
    for (const auto& one : cases<NcclCommunicator>()) {
      at = one.name;
      one.run(c);
    }
    at = "data of the device";
    device_cases(m, c);
  } catch (const std::exception& e) {
    throw std::runtime_error(at + ": " + e.what());
  }
}

}  // namespace tutti::conformance
