// SPDX-License-Identifier: MIT
// optimised
// Tests the cases for every communicator in each configuration of MpiCommunicator, with as many ranks as mpirun
// started.
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/comm/ring_chunks.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/strategy/all_reduce.hpp>

#include "comm/conformance.hpp"

using namespace tutti;
using conformance::bytes_of;
using conformance::patience;
using conformance::require;

namespace {

using Wire = MpiOptions::Wire;

template <class T>
void check_nan(MpiCommunicator& c) {
  const auto n = static_cast<std::size_t>(c.size());
  for (const std::size_t count : {n + 1, n + 5000}) {
    std::vector<T> v(count, static_cast<T>(1.F));
    v[static_cast<std::size_t>(c.rank())] = static_cast<T>(std::nanf(""));
    c.all_reduce(dtype_of<T>, bytes_of(v), ReduceOp::max, "nan").wait();
    for (std::size_t r = 0; r < n; ++r)
      require(std::isnan(static_cast<float>(v[r])), "the maximum lost the NaN of rank " + std::to_string(r));
    require(static_cast<float>(v[n]) == 1.F, "the maximum found a NaN");
  }
}

// Reduces a value that bf16 cannot represent: the loss shows whether and where the value was rounded.
void check_wire(MpiCommunicator& c, Wire wire) {
  const auto n = static_cast<float>(c.size());
  const bool crosses = c.name() == "mpi" && c.size() > 1;
  std::vector<float> f(1000, 1.001F);
  c.all_reduce(DType::f32, bytes_of(f), ReduceOp::sum, "wire").wait();
  if (crosses && wire == Wire::bf16)
    require(f[500] == n, "f32 did not travel as bf16: " + std::to_string(f[500]));
  else if (c.name().find("hosts") == std::string::npos)
    require(std::abs(f[500] - 1.001F * n) < 1e-5F * n, "f32 lost digits: " + std::to_string(f[500]));

  // 256 + 1 + 1 + ...: in bf16 each 1 is lost. In f32, with one rounding at the end, no 1 is lost.
  std::vector<bf16> b(70, bf16(c.rank() == 0 ? 256.F : 1.F));
  c.all_reduce(DType::bf16, bytes_of(b), ReduceOp::sum, "wire").wait();
  if (!crosses || wire == Wire::f32)
    require(
        static_cast<float>(b[69]) == static_cast<float>(bf16(255.F + n)) || c.name().find("hosts") != std::string::npos,
        "bf16 was rounded on the way: " + std::to_string(static_cast<float>(b[69])));

  // A maximum is always sent in its own type, not in a shorter one.
  std::vector<float> m(3, 1.001F + static_cast<float>(c.rank()));
  c.all_reduce(DType::f32, bytes_of(m), ReduceOp::max, "wire").wait();
  require(m[1] == 1.001F + static_cast<float>(c.size() - 1), "the maximum lost digits");
  // A maximum keeps the NaN of any rank, in any order of comparison.
  check_nan<float>(c);
  check_nan<double>(c);
  check_nan<bf16>(c);
  std::vector<std::uint8_t> u(9, static_cast<std::uint8_t>(c.rank()));
  c.all_reduce(DType::u8, bytes_of(u), ReduceOp::max, "wire").wait();
  require(u[8] == c.size() - 1, "the maximum of u8 is wrong");
}

// Checks all_reduce() on two buffers from allocate(), used in turn.
void check_memory(MpiCommunicator& c, bool expected) {
  constexpr std::size_t n = 50'000;
  const std::array<std::span<std::byte>, 2> own{c.allocate(n * 4), c.allocate(n * 4 + 4)};
  for (const auto& o : own) {
    require(o.empty() != expected, expected ? "no memory of its own" : "memory that is of no use");
    if (o.empty()) return;
    require(reinterpret_cast<std::uintptr_t>(o.data()) % 4096 == 0, "memory is not aligned");
  }
  for (int turn = 0; turn < 4; ++turn) {
    const auto v = conformance::values<float>(c.rank() + turn, n);
    const auto data = own[static_cast<std::size_t>(turn % 2)].first(n * 4);
    std::memcpy(data.data(), v.data(), n * 4);
    // In the last turn rank 0 passes memory of a vector, so that no rank can access the data of all ranks.
    std::vector<float> elsewhere = v;
    const bool other = turn == 3 && c.rank() == 0;
    c.all_reduce(DType::f32, other ? bytes_of(elsewhere) : data, ReduceOp::sum, "turn").wait();
    std::vector<float> got(n);
    std::memcpy(got.data(), other ? reinterpret_cast<std::byte*>(elsewhere.data()) : data.data(), n * 4);
    for (std::size_t i = 0; i < n; ++i) {
      int want = 0;
      for (int r = 0; r < c.size(); ++r) want += conformance::value_of(r + turn, i);
      if (got[i] != static_cast<float>(want))
        require(false, "turn " + std::to_string(turn) + " element " + std::to_string(i));
    }
  }
  require(c.allocate(std::size_t{1} << 55).empty(), "memory that no machine has");
}

// Checks the order of the additions of a large sum: the ring's, from the rank before a chunk's number downwards.
void check_ring(MpiCommunicator& c, const MpiOptions& o) {
  constexpr std::size_t count = 100'003;
  if (c.name() != "mpi" || c.size() == 1 || o.wire == Wire::bf16 || o.piece_bytes < count * sizeof(float)) return;
  const auto n = static_cast<std::size_t>(c.size());
  Rng rng(6, Purpose::user, 0, static_cast<std::uint64_t>(c.rank()));
  std::vector<float> v(count), all(count * n);
  for (float& x : v) x = static_cast<float>(rng.normal());
  c.all_gather(std::as_bytes(std::span(v)), bytes_of(all), "ring").wait();
  c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "ring").wait();
  const std::size_t chunk = RingChunks(c.rank(), c.size(), count, sizeof(float)).largest();
  for (std::size_t i = 0; i < count; ++i) {
    float want = all[(i / chunk + n - 1) % n * count + i];
    for (std::size_t r = 2; r <= n; ++r) want += all[(i / chunk + n - r) % n * count + i];
    require(v[i] == want, "element " + std::to_string(i) + " has other bits than the sum in a ring");
  }
}

struct Way {
  std::string name;
  MpiOptions options;
  std::string communicator;  // the beginning of the communicator's name
  bool memory;               // allocate() returns memory
};

std::vector<Way> ways(int size) {
  std::vector<Way> list;
  const auto add = [&](std::string name, MpiOptions o, bool memory) {
    o.deadline = std::chrono::seconds(120);
    for (const Wire w : {Wire::same, Wire::f32, Wire::bf16}) {
      o.wire = w;
      list.push_back({name + (w == Wire::same  ? ""
                              : w == Wire::f32 ? ", f32 on the wire"
                                               : ", bf16 on the wire"),
                      o, memory ? "mpi, shared memory" : "mpi", memory});
    }
  };
  add("plain", {.shared_memory = false}, false);
  add("plain in small pieces", {.shared_memory = false, .piece_bytes = 20'000}, false);
  add("plain in small messages", {.shared_memory = false, .ring_message_bytes = 5'000}, false);
  add("shared", {}, size > 1);
  add("one host a rank", {.ranks_per_host = 1}, false);
  if (size > 2) {
    add("hosts of 2", {.ranks_per_host = 2}, true);
    add("hosts of 2, flat", {.hierarchical = false, .ranks_per_host = 2}, false);
    add("hosts of 2 in small pieces", {.ranks_per_host = 2, .piece_bytes = 20'000}, true);
  }
  if (size > 3) add("hosts of 3 and the rest", {.ranks_per_host = 3}, true);
  return list;
}

int run(const std::shared_ptr<MpiSession>& session) {
  int size = 0, count = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  for (const Way& way : ways(size)) {
    MpiCommunicator c(way.options, session);
    std::string at = "names";
    try {
      require(c.name().starts_with(way.communicator) && (c.name() == "mpi") != way.memory,
              way.name + " is " + c.name());
      require(c.rank_name(0).starts_with("rank 0 on ") && c.rank_name(0).size() > 10, c.rank_name(0));
      for (const auto& one : conformance::cases<MpiCommunicator>()) {
        at = one.name;
        one.run(c);
        ++count;
      }
      at = "types on the wire";
      check_wire(c, way.options.wire);
      at = "order";
      check_ring(c, way.options);
      at = "memory";
      check_memory(c, way.memory);
    } catch (const std::exception& e) {
      const std::string what = way.name + ": " + at + ": " + e.what();
      std::fprintf(stderr, "FAILED: rank %d: %s\n", c.rank(), what.c_str());
      c.abort(what, ExitCode::internal);
      return 1;
    }
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::printf("%d cases with %d ranks\n", count, size);
  return 0;
}

}  // namespace

int main() {
  try {
    return run(MpiSession::open());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "FAILED: %s\n", e.what());
    return 1;
  }
}
