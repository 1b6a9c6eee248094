// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/comm/host/host_group.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Collective operations of ranks on one host or several hosts. Ranks of a host communicate through shared memory. Hosts
// communicate through a network, with one rank for each host. A Network has all_reduce(dtype, data, op, deadline,
// what), and broadcast, all_gather and barrier as in HostGroup.
template <class Network>
class HostRoutes {
 public:
  enum class Route : std::uint8_t { alone, host, tree, plain };

  // The leader of a host reports first what is missing on other hosts; the ranks that wait for the leader report later.
  static constexpr std::chrono::seconds after_leader{5};

  // Chooses whether ranks of one host share memory, and whether the leader of a host communicates for all of its ranks.
  [[nodiscard]] static Route choose(const HostTopology& places, bool shared_memory, bool hierarchical) noexcept {
    if (places.size() == 1) return Route::alone;
    if (shared_memory && places.hosts() == 1) return Route::host;
    if (shared_memory && hierarchical && places.hosts() < places.size()) return Route::tree;
    return Route::plain;
  }

  // group: the ranks of this host; null if the rank is alone on its host or no memory is shared. all: the network of
  // all ranks, for Route::plain. leaders: the network of the leaders, for Route::tree; null on other ranks. These
  // objects must outlive this one.
  HostRoutes(const HostTopology& places, Route route, HostGroup* group, Network* all, Network* leaders)
      : topology_(places), route_(route), group_(group), all_(all), leaders_(leaders) {}

  [[nodiscard]] Route route() const noexcept { return route_; }
  // Returns whether data in memory that a host's ranks share is used without a copy.
  [[nodiscard]] bool in_shared_memory() const noexcept { return route_ == Route::host || route_ == Route::tree; }
  // Describes how the ranks communicate, for start-up lines.
  [[nodiscard]] std::string name(const std::string& network) const {
    if (!in_shared_memory()) return network;
    return network + ", shared memory" +
           (route_ == Route::tree ? " in " + std::to_string(topology_.hosts()) + " hosts" : "");
  }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    if (data.size() % size_of(t) != 0)
      fail<UsageError>(what, {"whole values of ", name_of(t)}, {data.size(), " bytes"});
    switch (route_) {
      case Route::alone:
        return;
      case Route::host:
        return group_->all_reduce(t, data, op, deadline, what);
      case Route::tree:
        if (group_) group_->reduce_to_first(t, data, op, deadline, what);
        if (leaders_) leaders_->all_reduce(t, data, op, deadline, what);
        if (group_) group_->broadcast(data, 0, deadline.extended(after_leader), what);
        return;
      case Route::plain:
        gather_host(deadline, what);
        return all_->all_reduce(t, data, op, deadline, what);
    }
  }

  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    if (root < 0 || root >= topology_.size()) fail<UsageError>(what, {"a rank from 0 to ", topology_.size() - 1}, root);
    const auto from = topology_.place(root);
    switch (route_) {
      case Route::alone:
        return;
      case Route::host:
        return group_->broadcast(data, from.local, deadline, what);
      case Route::tree: {
        const bool at_home = from.host == topology_.my_host();
        if (group_ && at_home) group_->broadcast(data, from.local, deadline, what);
        if (leaders_) leaders_->broadcast(data, from.host, deadline, what);
        if (group_ && !at_home) group_->broadcast(data, 0, deadline.extended(after_leader), what);
        return;
      }
      case Route::plain:
        gather_host(deadline, what);
        return all_->broadcast(data, root, deadline, what);
    }
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    if (all.size() != mine.size() * static_cast<std::size_t>(topology_.size()))
      fail<UsageError>(what, {mine.size(), " bytes for each rank"}, all.size());
    if (mine.empty()) return;
    switch (route_) {
      case Route::alone:
        std::copy(mine.begin(), mine.end(), all.begin());
        return;
      case Route::host:
        return group_->all_gather(mine, all, deadline, what);
      case Route::tree:
        return gather_hosts(mine, all, deadline, what);
      case Route::plain:
        gather_host(deadline, what);
        return all_->all_gather(mine, all, deadline, what);
    }
  }

  void barrier(const Deadline& deadline, std::string_view what) {
    switch (route_) {
      case Route::alone:
        return;
      case Route::host:
        return group_->barrier(deadline, what);
      case Route::tree:
        if (group_) group_->barrier(deadline, what);
        if (leaders_) leaders_->barrier(deadline, what);
        if (group_) group_->barrier(deadline.extended(after_leader), what);
        return;
      case Route::plain:
        gather_host(deadline, what);
        return all_->barrier(deadline, what);
    }
  }

 private:
  // Waits in shared memory, which is cheap, for the ranks of this host before the network is used.
  void gather_host(const Deadline& deadline, std::string_view what) {
    if (group_) group_->barrier(deadline, what);
  }

  // Gathers one block for each host. All blocks have the size that the host with the most ranks needs.
  void gather_hosts(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                    std::string_view what) {
    const std::size_t n = mine.size(), block = n * static_cast<std::size_t>(topology_.most_of_a_host());
    std::vector<std::byte> home(block), blocks(block * static_cast<std::size_t>(topology_.hosts()));
    if (group_)
      group_->all_gather(mine, std::span(home).first(n * static_cast<std::size_t>(topology_.local_size())), deadline,
                         what);
    else
      std::copy(mine.begin(), mine.end(), home.begin());
    if (leaders_) leaders_->all_gather(home, blocks, deadline, what);
    if (group_) group_->broadcast(blocks, 0, deadline.extended(after_leader), what);
    for (int r = 0; r < topology_.size(); ++r) {
      const auto at = topology_.place(r);
      const std::size_t from = block * static_cast<std::size_t>(at.host) + n * static_cast<std::size_t>(at.local);
      std::memcpy(all.data() + n * static_cast<std::size_t>(r), blocks.data() + from, n);
    }
  }

  const HostTopology& topology_;
  Route route_;
  HostGroup* group_;
  Network *all_, *leaders_;
};

}  // namespace tutti
