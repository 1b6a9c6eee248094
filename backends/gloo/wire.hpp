// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/mesh.hpp>
#include <tutti/backends/gloo/ring/connections.hpp>
#include <tutti/backends/gloo/ring/sum.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/xxh64.hpp>

namespace tutti {

// Collective operations over a mesh, in the form that HostRoutes needs for a network. Throws ::gloo::Exception.
class GlooWire {
 public:
  // ring: sums use it instead of the mesh; may be null.
  GlooWire(std::shared_ptr<GlooMesh> mesh, std::shared_ptr<RingConnections> ring, std::vector<std::string> names,
           WireType wire)
      : mesh_(std::move(mesh)), ring_(std::move(ring)), names_(std::move(names)), conversion_(wire) {
    if (ring_ != nullptr) ring_sum_.emplace(*ring_);
  }

  [[nodiscard]] GlooMesh& mesh() noexcept { return *mesh_; }
  [[nodiscard]] const std::shared_ptr<GlooMesh>& shared_mesh() const noexcept { return mesh_; }
  [[nodiscard]] const std::shared_ptr<RingConnections>& shared_ring() const noexcept { return ring_; }
  // Makes current and later operations throw. Any thread may call it.
  void stop() {
    if (ring_ != nullptr) ring_->stop();
    mesh_->stop();
  }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  // Describes the current operation of this rank. The text is the same on all ranks at the same operation.
  [[nodiscard]] std::string position() const {
    return kind_ + " of " + std::to_string(bytes_) + " bytes, operation " + std::to_string(number_);
  }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view) {
    // The ring converts f32 to bf16 in the same passes in which it adds.
    if (ring_sum_ && t == DType::f32 && op == ReduceOp::sum && conversion_.type() == WireType::bf16)
      return reduce_in_ring(t, DType::bf16, data, op, deadline);
    constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();
    conversion_.run(t, op, data, whole, [&](DType w, std::span<std::byte> piece) { reduce(w, piece, op, deadline); });
  }
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view) {
    if (data.empty()) return;
    const StartedOperation started = begin("broadcast", data.size(), deadline);
    ::gloo::BroadcastOptions o(started.mesh);
    o.setOutput(reinterpret_cast<std::uint8_t*>(data.data()), data.size());
    o.setRoot(root);
    o.setTag(tag_);
    ::gloo::broadcast(o);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view) {
    if (mine.empty()) return;
    const StartedOperation started = begin("all_gather", mine.size(), deadline);
    ::gloo::AllgatherOptions o(started.mesh);
    o.setInput(reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(mine.data())), mine.size());
    o.setOutput(reinterpret_cast<std::uint8_t*>(all.data()), all.size());
    o.setTag(tag_);
    ::gloo::allgather(o);
  }
  void barrier(const Deadline& deadline, std::string_view) {
    const StartedOperation started = begin("barrier", 0, deadline);
    ::gloo::BarrierOptions o(started.mesh);
    o.setTag(tag_);
    ::gloo::barrier(o);
  }

 private:
  struct StartedOperation {
    std::shared_ptr<::gloo::Context> mesh;
    GlooMesh::Operation operation;
  };
  // Gives each operation its own tag, so that messages of different operations do not match: Gloo ends the process if a
  // message is too long.
  void number(const char* kind, std::size_t bytes) {
    kind_ = kind;
    bytes_ = bytes;
    ++number_;
    tag_ = static_cast<std::uint32_t>(xxh64(position()));
  }
  StartedOperation begin(const char* kind, std::size_t bytes, const Deadline& deadline) {
    number(kind, bytes);
    return {mesh_, {*mesh_, deadline}};
  }

  void reduce_in_ring(DType t, DType sent, std::span<std::byte> data, ReduceOp op, const Deadline& deadline) {
    number("all_reduce", data.size());
    if (!data.empty()) ring_sum_->run(t, sent, data, op, deadline, tag_);
  }
  void reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline) {
    if (ring_sum_) return reduce_in_ring(t, t, data, op, deadline);
    const StartedOperation started = begin("all_reduce", data.size(), deadline);
    ::gloo::AllreduceOptions o(started.mesh);
    const auto set = [&]<class T>(T) { o.setOutput(reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)); };
    switch (size_of(t)) {
      case 1:
        set(std::uint8_t{});
        break;
      case 2:
        set(std::uint16_t{});
        break;
      case 4:
        set(std::uint32_t{});
        break;
      default:
        set(std::uint64_t{});
    }
    o.setReduceFunction([t, op](void* to, const void* a, const void* b, std::size_t n) {
      const auto bytes = [](const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); };
      const std::array<std::byte*, 2> from{bytes(a), bytes(b)};
      const std::array<std::byte*, 1> out{bytes(to)};
      combine(t, op, from, out, 0, n);
    });
    o.setTag(tag_);
    ::gloo::allreduce(o);
  }

  std::shared_ptr<GlooMesh> mesh_;
  std::shared_ptr<RingConnections> ring_;
  std::optional<RingSum> ring_sum_;
  std::vector<std::string> names_;
  WireConversion conversion_;
  std::string kind_ = "nothing";
  std::size_t bytes_ = 0;
  std::uint64_t number_ = 0;
  std::uint32_t tag_ = 0;
};

}  // namespace tutti
