// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

// Which ranks of a job share a host. The first rank of a host is its leader.
class HostTopology {
 public:
  struct Location {  // position of a rank
    int host = 0;    // number of the host, in the order of their first ranks
    int local = 0;   // number of the rank among the ranks of its host
  };

  HostTopology() = default;  // a single rank
  // leaders: for each rank, the first rank of its host. names: for each rank, the name of its host, for messages.
  HostTopology(int rank, const std::vector<int>& leaders, std::vector<std::string> names)
      : rank_(rank), names_(std::move(names)) {
    leader_of_.clear();
    places_.clear();
    for (std::size_t r = 0; r < leaders.size(); ++r)
      if (leaders[r] == static_cast<int>(r)) leader_of_.push_back(static_cast<int>(r));
    std::vector<int> ranks_of(leader_of_.size(), 0);
    for (const int leader : leaders) {
      const auto host = std::lower_bound(leader_of_.begin(), leader_of_.end(), leader) - leader_of_.begin();
      places_.push_back({static_cast<int>(host), ranks_of[static_cast<std::size_t>(host)]++});
    }
    most_ = *std::max_element(ranks_of.begin(), ranks_of.end());
    local_size_ = ranks_of[static_cast<std::size_t>(my_host())];
  }
  // hosts: for each rank, the name of its host. Ranks with the same name share a host.
  HostTopology(int rank, const std::vector<std::string>& hosts) : HostTopology(rank, leaders_of(hosts), hosts) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(places_.size()); }
  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(leader_of_.size()); }
  [[nodiscard]] Location place(int r) const noexcept { return places_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] int my_host() const noexcept { return place(rank_).host; }
  [[nodiscard]] int local_rank() const noexcept { return place(rank_).local; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] int most_of_a_host() const noexcept { return most_; }
  [[nodiscard]] bool is_leader() const noexcept { return local_rank() == 0; }
  // Returns the first rank of every host.
  [[nodiscard]] const std::vector<int>& leaders() const noexcept { return leader_of_; }

  [[nodiscard]] const std::string& host_name(int r) const noexcept { return names_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] std::string name(int r) const { return "rank " + std::to_string(r) + " on " + host_name(r); }
  [[nodiscard]] std::vector<std::string> all_names() const {
    std::vector<std::string> list;
    list.reserve(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) list.push_back(name(r));
    return list;
  }
  // Returns the names of this host's ranks, in the order of the ranks.
  [[nodiscard]] std::vector<std::string> local_names() const {
    std::vector<std::string> list;
    for (int r = 0; r < size(); ++r)
      if (place(r).host == my_host()) list.push_back(name(r));
    return list;
  }
  [[nodiscard]] std::vector<std::string> leader_names() const {
    std::vector<std::string> list;
    list.reserve(leader_of_.size());
    for (const int r : leader_of_) list.push_back(name(r));
    return list;
  }

 private:
  static std::vector<int> leaders_of(const std::vector<std::string>& hosts) {
    std::vector<int> leaders;
    leaders.reserve(hosts.size());
    for (const std::string& h : hosts)
      leaders.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), h) - hosts.begin()));
    return leaders;
  }

  int rank_ = 0, local_size_ = 1, most_ = 1;
  std::vector<Location> places_{{}};
  std::vector<int> leader_of_{0};
  std::vector<std::string> names_{"localhost"};
};

}  // namespace tutti
