// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/communicator.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/strategy/parameter_server/worker/exported_windows.hpp>
#include <tutti/strategy/parameter_server/worker/operations.hpp>
#include <tutti/strategy/parameter_server/worker/worker_options.hpp>
#include <tutti/strategy/parameter_server/worker/worker_thread.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::ps {

// A worker's communicator. Its operations run on the servers: the communicator pushes the worker's data and pulls the
// sums over all workers, part by part, on its own thread. Several operations run at once.
template <Transport T>
class ServerCommunicator {
 public:
  static constexpr CommunicatorTraits traits{};

  // Waits until all workers and servers have connected. Throws CommunicationError that names the processes that are
  // missing, or a server with other options.
  ServerCommunicator(std::unique_ptr<T> transport, WorkerOptions options)
      : o_(checked(std::move(options))), exported_(o_.windows, o_.neighbours), thread_(std::move(transport), o_) {
    try {
      exported_.begin(sender());
    } catch (...) {
      end(true);
      throw;
    }
  }
  // If it is destroyed while an exception propagates, it does not wait for other processes.
  ~ServerCommunicator() { end(std::uncaught_exceptions() > exceptions_); }
  ServerCommunicator(const ServerCommunicator&) = delete;
  ServerCommunicator& operator=(const ServerCommunicator&) = delete;

  [[nodiscard]] int rank() const noexcept { return o_.rank; }
  [[nodiscard]] int size() const noexcept { return o_.workers; }
  [[nodiscard]] std::string name() const {
    const auto all = static_cast<std::size_t>(o_.servers);
    const std::string servers = std::to_string(all) + (all == 1 ? " server" : " servers");
    if (exported_.servers() == all && o_.one_host) return "parameter server over windows, " + servers;
    const std::string over = "parameter server over " + thread_.transport() + ", " + servers;
    const std::string& reason = exported_.why().empty() ? o_.no_windows : exported_.why();
    const std::string why = reason.empty() ? "" : " (no windows: " + reason + ")";
    return over +
           (exported_.servers() > 0 ? ", windows to " + std::to_string(exported_.servers()) + " on this host" : "") +
           why;
  }
  [[nodiscard]] std::string rank_name(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < thread_.names().size() ? thread_.names()[i] : "rank " + std::to_string(r);
  }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return o_.deadline; }
  [[nodiscard]] WireType wire() const noexcept { return o_.bf16_wire ? WireType::bf16 : WireType::same; }

  Work all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const std::string& name) {
    return post({data, t, op == ReduceOp::max ? Operation::max : Operation::sum}, name, o_.deadline);
  }
  // wants: whether this rank lacks the root's data; otherwise it already has it in `data`.
  Work broadcast(std::span<std::byte> data, int root, const std::string& name, bool wants = true) {
    Request r{data, DType::u8, Operation::take, static_cast<std::uint32_t>(root)};
    r.has = !wants || root == rank();
    return post(r, name, o_.deadline);
  }
  // A sum to which each worker contributes zeros in place of the other workers' data: gathered data is small.
  Work all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const std::string& name) {
    if (all.size() != mine.size() * static_cast<std::size_t>(size()))
      fail<UsageError>(name, {"room for ", size(), " times ", mine.size(), " bytes"}, all.size());
    if (!mine.empty()) {
      const std::size_t at = mine.size() * static_cast<std::size_t>(rank());
      std::memmove(all.data() + at, mine.data(), mine.size());
      std::memset(all.data(), 0, at);
      std::memset(all.data() + at + mine.size(), 0, all.size() - at - mine.size());
    }
    return post({all, DType::u8, Operation::sum}, name, o_.deadline);
  }
  void barrier(std::chrono::milliseconds deadline) {
    std::byte one{1};
    post({std::span(&one, 1), DType::u8, Operation::max}, "barrier", deadline).wait();
  }
  // Sums a piece of a step; frames and the servers' messages name the step. kept: if gradients are sent in two bits,
  // the rest that two_bit::pack() keeps for all but the first `plain` bytes; otherwise empty.
  Work reduce(DType t, std::span<std::byte> data, std::uint64_t key, std::uint64_t step, std::uint32_t bucket,
              const std::string& name, std::span<float> kept = {}, std::size_t plain = 0) {
    Request r{data, t, Operation::sum, 0, key, step, bucket};
    compress(r, kept, plain);
    return post(r, name, o_.deadline);
  }

  // ---- for servers that own weights ----
  // Operations on the data at `base`, in bytes, of an arena (frames.hpp). apply(): changes the weights there by
  // gradients, and returns the weights. fetch(), store(): read and write the data. `where` lists the servers of the
  // parts and must outlive the work.
  Work apply(DType t, std::span<const std::byte> gradients, std::span<std::byte> weights_there, std::uint64_t base,
             std::span<const ServerRange> where, std::uint64_t step, std::uint32_t bucket, const std::string& name,
             std::span<float> kept = {}) {
    Request r;
    r.data = unsafe_writable(gradients);
    r.answer = weights_there;
    r.dtype = t;
    r.operation = Operation::apply;
    r.root = arena::weights;
    r.step = step;
    r.bucket = bucket;
    r.base = base;
    r.where = where;
    compress(r, kept, 0);
    return post(r, name, o_.deadline);
  }
  Work fetch(DType t, std::span<std::byte> to, std::uint32_t from, std::span<const ServerRange> where,
             const std::string& name, std::uint64_t step = 0) {
    Request r;
    r.step = step;
    r.data = to;
    r.dtype = t;
    r.operation = Operation::fetch;
    r.root = from;
    r.where = where;
    return post(r, name, o_.deadline);
  }
  Work store(DType t, std::span<const std::byte> data, std::uint32_t to, std::span<const ServerRange> where,
             const std::string& name) {
    Request r;
    r.data = unsafe_writable(data);
    r.dtype = t;
    r.operation = Operation::store;
    r.root = to;
    r.where = where;
    return post(r, name, o_.deadline);
  }
  // Returns the number of steps of all workers that the servers have applied, as far as they have reported it.
  [[nodiscard]] std::uint64_t progress() const noexcept { return thread_.progress(); }

  void interrupt() noexcept { thread_.interrupt(); }
  void abort(const std::string& reason, ExitCode) noexcept { thread_.abort(reason); }
  // Servers of this host read the memory directly. It is sent to other servers without a copy.
  std::span<std::byte> allocate(std::size_t bytes) {
    if (const ExportedWindow* const w = export_window(nullptr, bytes)) return w->memory->bytes().first(bytes);
    own_.emplace_back(host_memory_, bytes);
    return {static_cast<std::byte*>(own_.back().data()), bytes};
  }
  // Exports a window of this process that outlives the communicator, for the same use as memory from allocate().
  // Returns whether any server has it; false for null.
  bool share(const std::shared_ptr<HostWindow>& window) {
    return window != nullptr && export_window(window, window->bytes().size()) != nullptr;
  }

 private:
  static WorkerOptions checked(WorkerOptions o) {
    if (o.workers < 0 || o.rank < 0 || (o.workers > 0 && o.rank >= o.workers) || o.servers < 1)
      fail<UsageError>("parameter server", "a rank of a job with servers",
                       {"rank ", o.rank, " of ", o.workers, ", ", o.servers, " servers"});
    two_bit::require_threshold(o.threshold);
    if (o.threshold > 0 && o.bf16_wire) fail<UsageError>("gradient compression", "either two bits or bf16", "both");
    return o;
  }
  void end(bool failed) noexcept {
    thread_.end(failed);
    if (thread_.failed()) exported_.abandon();
  }
  // For memory that is never written to.
  static std::span<std::byte> unsafe_writable(std::span<const std::byte> s) {
    return {const_cast<std::byte*>(s.data()), s.size()};
  }
  void compress(Request& r, std::span<float> kept, std::size_t plain) const {
    if (kept.empty()) return;
    if (r.dtype != DType::f32 || kept.size() * sizeof(float) + plain != r.data.size())
      fail<UsageError>("gradient compression", "f32 gradients, and memory for their quantization errors",
                       name_of(r.dtype));
    r.threshold = o_.threshold;
    r.kept = kept;
    r.plain = plain;
  }
  Work post(Request r, const std::string& name, std::chrono::milliseconds deadline) {
    if (r.data.empty()) return {};
    r.exported = may_lie_in_window(r.operation) ? exported_.find(r.data, r.place) : nullptr;
    r.has = r.has && r.exported == nullptr;  // with a window, no data is sent anyway
    r.stays = r.exported != nullptr;
    for (const Buffer& b : own_) {
      const auto* begin = static_cast<const std::byte*>(b.data());
      r.stays = r.stays || (r.data.data() >= begin && r.data.data() + r.data.size() <= begin + b.bytes());
    }
    return thread_.post(r, name, deadline);
  }
  // If `window` is null, makes a new one.
  const ExportedWindow* export_window(std::shared_ptr<HostWindow> window, std::size_t bytes) {
    const std::size_t before = exported_.servers();
    const ExportedWindow* const w = exported_.add(std::move(window), bytes, sender());
    if (exported_.servers() < before)
      std::fprintf(stderr, "tutti: rank %d: gradients are sent over sockets: %s\n", o_.rank, exported_.why().c_str());
    const ExportedWindow* const narrow =
        w != nullptr && o_.bf16_wire ? exported_.add(nullptr, (bytes + 1) / 2, sender()) : nullptr;
    if (narrow != nullptr) exported_.pair(*w, *narrow);
    return w;
  }
  // Returns a function that sends each server its part, and waits until the answers have replaced it.
  auto sender() {
    return [this](std::span<std::byte> records, std::span<const ServerRange> where) {
      Request r;
      r.data = records;
      r.operation = Operation::offer_window;
      r.where = where;
      post(r, "windows", o_.deadline).wait();
    };
  }

  WorkerOptions o_;
  int exceptions_ = std::uncaught_exceptions();
  HostMemory host_memory_;
  std::vector<Buffer> own_;
  ExportedWindows exported_;
  WorkerThread<T> thread_;  // destroyed first: it reads the members above
};

}  // namespace tutti::ps
