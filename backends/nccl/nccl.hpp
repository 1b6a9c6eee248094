// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/gradient_memory.hpp>
#include <tutti/backends/nccl/group.hpp>
#include <tutti/cluster/rendezvous/rendezvous.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The communicator of one rank and its GPU. Data in device memory is sent directly, on a separate stream, after the
// work that is already on the device's stream. Data of the host passes through the device in pieces, within the call
// and in the same order. A CUDA graph may capture operations on device data after each of them has run once. Only one
// thread at a time may call it, but any thread may call interrupt() and abort().
class NcclCommunicator {
 public:
  static constexpr CommunicatorTraits traits{.reads_device_memory = true, .watches_ranks = true};

  // A collective call. Destruction is collective too, unless an operation failed. The device must outlive this object.
  explicit NcclCommunicator(const cuda::Device& device, const NcclOptions& options = {},
                            const Rendezvous& rendezvous = {})
      : options_(options), memory_(nccl_registration()), group_(device, options, rendezvous), hosts_(options.hosts) {
    if (hosts_.empty()) name_hosts();
  }
  ~NcclCommunicator() {
    // A rank that fails does not wait for other ranks. It aborts the group before it frees device memory, because
    // freeing waits for the device.
    if (group_.failed() || std::uncaught_exceptions() > exceptions_) group_.abort();
    // The destruction of a graph waits for its operations without a deadline, so operations end before it, or are
    // aborted at the deadline.
    try {
      if (!group_.failed()) wait_stream(group_.device().stream(), "the end of captured steps");
    } catch (const std::exception& e) {
      std::fprintf(stderr, "tutti: %s\n", e.what());
    }
    group_.device().forget_captured();
    memory_.leave(group_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] int rank() const { return options_.rank; }
  [[nodiscard]] int size() const { return options_.size; }
  [[nodiscard]] std::string name() const { return "nccl"; }
  [[nodiscard]] std::string rank_name(int r) const {
    return "rank " + std::to_string(r) + " on " + hosts_[static_cast<std::size_t>(r)];
  }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return options_.deadline; }

  Work all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const std::string& name) {
    require_whole(t, data.size(), name);
    // NCCL's maximum of floating-point values may lose a NaN. Such maxima have few bytes, and the host computes them.
    const bool gathers = op == ReduceOp::max && is_float(t);
    if (on_device(data) && !gathers)
      return start(name, [&] { return reduce(t, data.data(), data.data(), data.size() / size_of(t), op); });
    by_host(data, name, [&](std::span<std::byte> piece) {
      if (gathers)
        combine_gathered(t, piece, op, name);
      else
        through_device(piece, piece.size(), name,
                       [&](void* p) { return reduce(t, p, p, piece.size() / size_of(t), op); });
    });
    return finished(name);
  }
  Work broadcast(std::span<std::byte> data, int root, const std::string& name) {
    if (root < 0 || root >= size()) fail<UsageError>(name, {"a rank from 0 to ", size() - 1}, root);
    const auto run = [&](void* p, std::size_t n) {
      return ncclBroadcast(p, p, n, ncclUint8, root, group_.comm(), group_.stream());
    };
    if (on_device(data)) return start(name, [&] { return run(data.data(), data.size()); });
    by_host(data, name, [&](std::span<std::byte> piece) {
      through_device(piece, piece.size(), name, [&](void* p) { return run(p, piece.size()); });
    });
    return finished(name);
  }
  Work all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const std::string& name) {
    const auto n = static_cast<std::size_t>(size());
    if (all.size() != mine.size() * n)
      fail<UsageError>(name, {"room for ", n, " times ", mine.size(), " bytes"}, all.size());
    if (on_device(all))
      return start(name, [&] {
        return ncclAllGather(mine.data(), all.data(), mine.size(), ncclUint8, group_.comm(), group_.stream());
      });
    std::vector<std::byte> gathered;
    for (std::size_t at = 0; at < mine.size(); at += gather_piece()) {
      const std::size_t bytes = std::min(gather_piece(), mine.size() - at);
      gather(mine.subspan(at, bytes), gathered, name);
      for (std::size_t r = 0; r < n; ++r)
        std::memcpy(all.data() + r * mine.size() + at, gathered.data() + r * bytes, bytes);
    }
    return finished(name);
  }
  void barrier(std::chrono::milliseconds deadline) {
    std::array<std::byte, 4> word{};
    const auto usual = std::exchange(host_deadline_, deadline);
    try {
      all_reduce(DType::i32, word, ReduceOp::sum, "barrier").wait();
    } catch (...) {
      host_deadline_ = usual;
      throw;
    }
    host_deadline_ = usual;
  }
  void interrupt() noexcept { group_.interrupt(); }
  // The other ranks notice it through NCCL, or at their deadline. The job's launcher ends them earlier.
  void abort(const std::string& reason, ExitCode) noexcept {
    if (size() == 1 || gave_up_.exchange(true)) return;
    std::fprintf(stderr, "tutti: %s ends the job: %s\n", my_name().c_str(), reason.c_str());
    group_.abort();
  }
  // Returns registered memory with zeros (NcclGradients), once, or an empty span: operations can use all device memory.
  std::span<std::byte> allocate(std::size_t bytes) {
    if (size() == 1 || memory_.any()) return {};
    auto memory = NcclMemory::allocate(memory_.functions(), group_.device(), bytes);
    if (memory == nullptr) return {};
    memory_.enter(group_, memory);
    return memory->bytes();
  }
  // Registers memory of this process that outlives the communicator, for the same use as memory from allocate().
  void share(const std::shared_ptr<NcclMemory>& memory) {
    if (size() > 1 && memory != nullptr && !memory_.any()) memory_.enter(group_, memory);
  }

  // Waits for the work on a stream, for example for a captured step that contains operations. Records the event again.
  // Throws if NCCL reports an error or the deadline passes.
  void wait_stream(void* stream, const std::string& what) {
    if (!marker_) marker_.emplace(group_.device());
    marker_->record(static_cast<cudaStream_t>(stream));
    group_.wait([&] { return marker_->happened(); }, host_deadline_, what);
  }
  // Returns data that the host can read: `data` itself or, if it is in device memory, a copy in `room`.
  std::span<const std::byte> on_host(std::span<const std::byte> data, std::vector<std::byte>& room) {
    if (!on_device(data)) return data;
    room.resize(data.size());
    wait_stream(group_.device().stream(), "data of the device");
    copy_now(room.data(), data.data(), data.size(), cudaMemcpyDeviceToHost, "data of the device");
    return room;
  }
  // Waits until done() returns true, for example because a captured step has ended. Throws if NCCL reports an error or
  // the deadline passes.
  void wait_until(const std::function<bool()>& done, const std::string& what) {
    group_.wait(done, group_.deadline(), what);
  }

 private:
  // An operation on the communication stream.
  struct Operation final : Work::State {
    explicit Operation(NcclGroup& g) : group(g), end(g.device()) {}
    [[nodiscard]] std::string name() const override { return text; }
    [[nodiscard]] bool done() const override { return end.happened(); }
    void wait_device() override { end.hold_up(group.device().stream()); }
    void wait() override {
      group.wait([this] { return end.happened(); }, group.deadline(), text);
    }
    NcclGroup& group;
    cuda::Event end;
    std::string text;
  };
  // An operation on host data, which has ended when the call returns.
  struct Finished final : Work::State {
    [[nodiscard]] std::string name() const override { return text; }
    [[nodiscard]] bool done() const override { return true; }
    void wait_device() override {}
    void wait() override {}
    std::string text;
  };

  static constexpr std::size_t staging_bytes = std::size_t{8} << 20;

  [[nodiscard]] static bool is_float(DType t) noexcept { return t != DType::u8 && t != DType::i32 && t != DType::i64; }
  static void require_whole(DType t, std::size_t bytes, const std::string& name) {
    if (bytes % size_of(t) != 0) fail<UsageError>(name, {"whole values of ", name_of(t)}, {bytes, " bytes"});
  }
  [[nodiscard]] std::string my_name() const {
    return hosts_.empty() ? "rank " + std::to_string(rank()) : rank_name(rank());
  }

  // Returns true if data is in device memory. While a graph is captured, all data is, because CUDA must not be asked
  // then.
  [[nodiscard]] bool on_device(std::span<const std::byte> data) const {
    if (group_.device().capturing()) return true;
    if (data.empty()) return false;
    cudaPointerAttributes a{};
    group_.device().use();
    cuda::check(cudaPointerGetAttributes(&a, data.data()), "the location of data");
    return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
  }

  [[nodiscard]] ncclResult_t reduce(DType t, const void* from, void* to, std::size_t count, ReduceOp op) {
    return ncclAllReduce(from, to, count, nccl_type(t), nccl_op(op), group_.comm(), group_.stream());
  }

  // Waits before an operation outside a capture until captured ones have ended, whatever their streams: NCCL requires
  // it with set_graph_usage(), and older versions require it if a user sets NCCL_GRAPH_MIXING_SUPPORT=0.
  void wait_for_captured(const std::string& name) {
    if (group_.device().capturing()) {
      has_captured_ = true;
    } else if (has_captured_) {
      wait_stream(group_.device().stream(), name);
    }
  }
  // Makes later operations on the communication stream wait for the work on the device's stream, for example for a
  // captured step with operations. This gives all ranks the same order of operations.
  void follow_device() {
    if (!before_) before_.emplace(group_.device());
    before_->record(group_.device().stream());
    before_->hold_up(group_.stream());
  }
  // Starts an operation on the communication stream, after the work that is already on the device's stream.
  template <class F>
  Work start(const std::string& name, F&& f) {
    group_.require_alive(name);
    group_.device().use();
    wait_for_captured(name);
    follow_device();
    group_.settle(f(), "an operation of NCCL", name);
    const std::shared_ptr<Operation> o =
        unused<Operation>(operations_, [&] { return std::make_shared<Operation>(group_); });
    o->text = name;
    o->end.record(group_.stream());
    return Work(o);
  }
  Work finished(const std::string& name) {
    const std::shared_ptr<Finished> f = unused<Finished>(finished_, [] { return std::make_shared<Finished>(); });
    f->text = name;
    return Work(f);
  }
  // Returns an object of the pool that is not in use, so that steady work allocates no memory.
  template <class T, class Make>
  static std::shared_ptr<T> unused(std::vector<std::shared_ptr<T>>& pool, Make&& make) {
    for (auto& p : pool)
      if (p.use_count() == 1) return p;
    return pool.emplace_back(make());
  }

  // Calls f for each piece of the data, on the host. Copies data that is in device memory.
  template <class F>
  void by_host(std::span<std::byte> data, const std::string& name, F&& f) {
    group_.require_alive(name);
    if (!on_device(data)) {
      for (std::size_t at = 0; at < data.size(); at += piece_bytes())
        f(data.subspan(at, std::min(piece_bytes(), data.size() - at)));
      return;
    }
    if (group_.device().capturing())
      fail<UsageError>(name, "a sum, or integers, inside a CUDA graph", "a maximum of floating-point values");
    wait_stream(group_.device().stream(), name);
    std::vector<std::byte> copy(data.size());
    copy_now(copy.data(), data.data(), data.size(), cudaMemcpyDeviceToHost, name);
    by_host(copy, name, f);
    copy_now(data.data(), copy.data(), data.size(), cudaMemcpyHostToDevice, name);
  }
  void copy_now(void* to, const void* from, std::size_t n, cudaMemcpyKind kind, const std::string& name) {
    cuda::check(cudaMemcpyAsync(to, from, n, kind, group_.stream()), "a copy");
    wait_stream(group_.stream(), name);
  }

  // Copies a piece to the staging memory, runs f, and copies `out_bytes` of the result back to the host.
  template <class F>
  void through_device(std::span<std::byte> piece, std::size_t out_bytes, const std::string& name, F&& f) {
    if (piece.empty()) return;
    std::byte* const device = staging();
    wait_for_captured(name);
    follow_device();
    cuda::check(cudaMemcpyAsync(device, piece.data(), piece.size(), cudaMemcpyHostToDevice, group_.stream()), "a copy");
    group_.settle(f(device), "an operation of NCCL", name);
    // A copy to memory that is not pinned would wait within the call, without a deadline.
    wait_stream(group_.stream(), name);
    copy_now(piece.data(), device, out_bytes, cudaMemcpyDeviceToHost, name);
  }
  // Gathers the data of every rank, in the order of the ranks.
  void gather(std::span<const std::byte> mine, std::vector<std::byte>& all, const std::string& name) {
    group_.require_alive(name);
    std::byte* const device = staging();
    wait_for_captured(name);
    follow_device();
    std::byte* const gathered = device + gather_piece();
    all.resize(mine.size() * static_cast<std::size_t>(size()));
    cuda::check(cudaMemcpyAsync(device, mine.data(), mine.size(), cudaMemcpyHostToDevice, group_.stream()), "a copy");
    group_.settle(ncclAllGather(device, gathered, mine.size(), ncclUint8, group_.comm(), group_.stream()),
                  "ncclAllGather", name);
    wait_stream(group_.stream(), name);
    copy_now(all.data(), gathered, all.size(), cudaMemcpyDeviceToHost, name);
  }
  void combine_gathered(DType t, std::span<std::byte> piece, ReduceOp op, const std::string& name) {
    std::vector<std::byte> all;
    for (std::size_t at = 0; at < piece.size(); at += gather_piece()) {
      const auto part = piece.subspan(at, std::min(gather_piece(), piece.size() - at));
      gather(part, all, name);
      std::vector<std::byte*> arrays;
      for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r) arrays.push_back(all.data() + r * part.size());
      const std::array<std::byte*, 1> to{part.data()};
      combine(t, op, arrays, to, 0, part.size() / size_of(t));
    }
  }
  [[nodiscard]] std::size_t piece_bytes() const noexcept { return staging_bytes; }
  // Returns the number of bytes of one rank for which all ranks' pieces and the rank's own piece fit into the staging
  // memory. It is a multiple of a cache line.
  [[nodiscard]] std::size_t gather_piece() const noexcept {
    return std::max<std::size_t>(staging_bytes / (static_cast<std::size_t>(size()) + 1) / 64 * 64, 64);
  }
  std::byte* staging() {
    group_.device().use();
    if (!staging_) {
      void* p = nullptr;
      const std::size_t bytes = std::max(staging_bytes, gather_piece() * (static_cast<std::size_t>(size()) + 1));
      const cudaError_t e = cudaMalloc(&p, bytes);
      cuda::check(e, cuda::size_text(bytes) + " of memory for communication on " + group_.device().name(),
                  e == cudaErrorMemoryAllocation ? "use a smaller --batch-size or --precision bf16" : "");
      staging_ = {p, [](void* q) { cudaFree(q); }};
    }
    return static_cast<std::byte*>(staging_.get());
  }

  void name_hosts() {
    std::array<char, 64> mine{};
    if (::gethostname(mine.data(), mine.size() - 1) != 0) mine = {'h', 'o', 's', 't'};
    std::vector<std::byte> all;
    gather(std::as_bytes(std::span(mine)), all, "names of the ranks");
    for (int r = 0; r < size(); ++r) {
      const char* text = reinterpret_cast<const char*>(all.data()) + static_cast<std::size_t>(r) * mine.size();
      hosts_.emplace_back(text, ::strnlen(text, mine.size()));
    }
  }

  int exceptions_ = std::uncaught_exceptions();
  NcclOptions options_;
  NcclGradients memory_;  // freed after the communicator
  NcclGroup group_;
  bool has_captured_ = false;
  std::chrono::milliseconds host_deadline_ = options_.deadline;
  std::shared_ptr<void> staging_;
  std::optional<cuda::Event> before_, marker_;
  std::vector<std::shared_ptr<Operation>> operations_;
  std::vector<std::shared_ptr<Finished>> finished_;
  std::vector<std::string> hosts_;
  std::atomic<bool> gave_up_{false};
};

static_assert(Communicator<NcclCommunicator>);

}  // namespace tutti
