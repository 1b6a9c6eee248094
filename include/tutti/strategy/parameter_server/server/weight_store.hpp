// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/server_part.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::ps {

// The data of a server of asynchronous training: its part of the weights and of the optimizer's state and, on server 0,
// the other state that workers share. Used by one thread.
class WeightStore {
 public:
  using Update = std::function<void(const ServerPart&)>;
  // slots: number of slots of the optimizer. facts: must be the same on each worker. update: applies a push to weights.
  WeightStore(ArenaLayout layout, int slots, JobFacts facts, Update update)
      : layout_(std::move(layout)), update_(std::move(update)), slots_(slots), facts_(std::move(facts)) {}

  // Returns how the facts of a worker differ from those of the server. Compares only facts that both have. Returns an
  // empty text if all are equal.
  [[nodiscard]] std::string compare(std::span<const std::byte> text) const {
    const auto named_here = [&](const std::string& name) {
      return std::any_of(facts_.facts().begin(), facts_.facts().end(), [&](const auto& f) { return f.first == name; });
    };
    JobFacts theirs;
    const JobFacts all = JobFacts::parse({reinterpret_cast<const char*>(text.data()), text.size()});
    for (const auto& [name, value] : all.facts())
      if (named_here(name)) theirs.add(name, value);
    const auto d = facts_.first_difference(theirs);
    return d.name.empty() ? "" : d.name + " is " + d.mine + " on the servers and " + d.other + " on this worker";
  }

  // Returns why the operation of a frame cannot be executed, or an empty text.
  [[nodiscard]] std::string_view refusal(const Frame& f) const {
    if (f.root == arena::at_work)
      return f.operation != Operation::fetch || f.bytes != sizeof steps_ ? "an invalid operation" : "";
    if (f.root == arena::began || f.root == arena::steps)
      return f.operation == Operation::apply || (f.root == arena::began && f.operation != Operation::fetch) ||
                     f.bytes != sizeof steps_
                 ? "an invalid operation"
                 : "";
    if (f.root == arena::facts || f.root == arena::seal)
      return f.operation != Operation::store                     ? "an invalid operation"
             : f.root == arena::seal && f.bytes != sizeof steps_ ? "an invalid step number"
                                                                 : "";
    if (f.root >= arena::most) return "an unknown arena";
    if (f.operation == Operation::apply && (f.root != arena::weights || !sealed_)) return "gradients before weights";
    const bool divided = f.root < arena::others;
    if (divided && f.root > static_cast<std::uint32_t>(slots_)) return "an unknown arena";
    const std::uint64_t room = divided ? layout_.bytes() : 2 * layout_.bytes() + max_data;
    if (f.offset > room || f.bytes > room - f.offset) return "a part outside of the arena";
    if (divided && (f.dtype != layout_.dtype || f.offset % 64 != 0))
      return "a part with another element type or alignment";
    if (!divided && f.operation == Operation::fetch && sealed_ && !holds(f)) return "a part that has not been stored";
    return "";
  }
  // Only the first store of a value has an effect.
  void store(const Frame& f, std::span<const std::byte> data) {
    if (f.root == arena::text ? holds(f) : sealed_) return;
    if (f.root == arena::seal) {
      std::memcpy(&steps_, data.data(), sizeof steps_);
      sealed_ = true;
      return;
    }
    std::memcpy(room(f), data.data(), data.size());
    note(f.root, f.offset, f.offset + f.bytes);
  }
  // Returns whether the data to fetch is stored.
  [[nodiscard]] bool ready(const Frame& f) const noexcept { return f.root == arena::text ? holds(f) : sealed_; }
  [[nodiscard]] std::span<const std::byte> fetch(const Frame& f) { return {room(f), f.bytes}; }
  // Begins a step of a worker. Returns its number for update().
  [[nodiscard]] std::int64_t begin_step() noexcept { return steps_++; }
  // Updates the weights by a part of a step's gradients. Returns the updated weights.
  std::span<const std::byte> apply(const Frame& f, std::span<const std::byte> gradients, std::int64_t step) {
    const std::size_t unit = size_of(layout_.dtype);
    ServerPart p;
    p.dtype = layout_.dtype;
    p.begin = f.offset / unit;
    p.end = (f.offset + f.bytes) / unit;
    p.weights = room(f);
    for (int i = 0; i < slots_; ++i) {
      Frame of_slot = f;
      of_slot.root = arena::slots + static_cast<std::uint32_t>(i);
      p.slots[static_cast<std::size_t>(i)] = room(of_slot);
    }
    // Kernels need aligned elements, but the data of a message may be unaligned.
    aligned_.resize(f.bytes / sizeof(std::max_align_t) + 1);
    if (f.packed)
      two_bit::unpack(gradients, {reinterpret_cast<float*>(aligned_.data()), f.bytes / sizeof(float)});
    else
      std::memcpy(aligned_.data(), gradients.data(), gradients.size());
    p.gradients = aligned_.data();
    p.step = step;
    update_(p);
    return {static_cast<const std::byte*>(p.weights), f.bytes};
  }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  // Counts steps that other servers have applied and this server has lost.
  void skip(std::int64_t steps) noexcept { steps_ += steps; }

  // Returns whether the text on which workers agree before there are weights is stored.
  [[nodiscard]] bool has_text() const noexcept { return arenas_.contains(arena::text); }
  // Returns whether the workers have brought the complete state.
  [[nodiscard]] bool sealed() const noexcept { return sealed_; }
  // Copies the state.
  void save(ServerState& to) const {
    to.steps = steps_;
    for (const auto& [number, pieces] : stored_)
      for (const auto& [begin, end] : pieces) {
        const std::byte* const at = static_cast<const std::byte*>(arenas_.at(number).data());
        to.pieces.push_back({number, begin, {at + begin, at + end}});
      }
  }
  // Takes a state that save() copied, before workers connect. Throws DataError if it does not fit these weights.
  void restore(const ServerState& from) {
    for (const ServerState::Piece& p : from.pieces) {
      Frame f;
      f.root = p.arena;
      f.offset = p.begin;
      f.dtype = p.arena < arena::others ? layout_.dtype : DType::u8;
      const std::uint64_t most = p.arena < arena::others ? layout_.bytes() : 2 * layout_.bytes() + max_data;
      if (p.arena >= arena::most || (p.arena < arena::others && p.arena > static_cast<std::uint32_t>(slots_)) ||
          p.begin > most || p.bytes.size() > most - p.begin)
        fail<DataError>("saved state of a server", "parts of these weights", "parts of other weights");
      // Asks for the last byte first, so that memory for all bytes is allocated.
      f.offset += p.bytes.size();
      std::memcpy(room(f) - p.bytes.size(), p.bytes.data(), p.bytes.size());
      note(p.arena, p.begin, p.begin + p.bytes.size());
    }
    steps_ = from.steps;
    sealed_ = true;
  }

 private:
  // Records stored bytes; neighbouring ranges are merged.
  void note(std::uint32_t number, std::uint64_t begin, std::uint64_t end) {
    auto& pieces = stored_[number];
    auto next = pieces.lower_bound(begin);
    if (next != pieces.begin() && std::prev(next)->second >= begin) {
      begin = std::prev(next)->first;
      end = std::max(end, std::prev(next)->second);
    }
    while (next != pieces.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = pieces.erase(next);
    }
    pieces[begin] = end;
  }
  [[nodiscard]] bool holds(const Frame& f) const noexcept {
    const auto found = arenas_.find(f.root);
    return found != arenas_.end() && f.offset + f.bytes <= found->second.bytes();
  }
  // Returns the memory of a frame's data in its arena. Allocates the arena at its first use.
  std::byte* room(const Frame& f) {
    Buffer& b = arenas_[f.root];
    const std::size_t bytes = f.root < arena::others ? layout_.bytes() : f.offset + f.bytes;
    if (b.bytes() < bytes) {
      Buffer larger(memory_, bytes);
      memory_.zero(larger.data(), bytes);
      if (b.bytes() > 0) std::memcpy(larger.data(), b.data(), b.bytes());
      b = std::move(larger);
    }
    return static_cast<std::byte*>(b.data()) + f.offset;
  }

  HostMemory memory_;
  ArenaLayout layout_;
  Update update_;
  int slots_;
  std::map<std::uint32_t, Buffer> arenas_;
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> stored_;  // ranges, end by begin, for each arena
  JobFacts facts_;
  std::vector<std::max_align_t> aligned_;
  std::int64_t steps_ = 0;
  bool sealed_ = false;
};

}  // namespace tutti::ps
