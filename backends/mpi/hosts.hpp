// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Which ranks share a host, and the communicators that follow from it.
class MpiHosts {
 public:
  // A collective call of all ranks of `from`. ranks_per_host: 0, or the ranks of a machine are split into pretended
  // hosts of so many.
  MpiHosts(MPI_Comm from, int ranks_per_host) {
    mpi_check(MPI_Comm_dup(from, &world), "MPI_Comm_dup");
    mpi_check(MPI_Comm_dup(from, &closing), "MPI_Comm_dup");
    mpi_check(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(world, &size), "MPI_Comm_size");
    mpi_check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    int node_rank = 0;
    mpi_check(MPI_Comm_rank(node, &node_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_split(node, ranks_per_host > 0 ? node_rank / ranks_per_host : 0, node_rank, &host),
              "MPI_Comm_split");
    mpi_check(MPI_Comm_rank(host, &local_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(host, &local_size), "MPI_Comm_size");
    mpi_check(MPI_Comm_split(world, local_rank == 0 ? 0 : MPI_UNDEFINED, rank, &leaders), "MPI_Comm_split");
    learn_places();
  }
  MpiHosts(const MpiHosts&) = delete;
  MpiHosts& operator=(const MpiHosts&) = delete;
  void release() noexcept {
    for (MPI_Comm* c : {&leaders, &host, &node, &closing, &world})
      if (*c != MPI_COMM_NULL) MPI_Comm_free(c);
  }

  [[nodiscard]] bool leader() const noexcept { return local_rank == 0; }
  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(leader_of.size()); }
  [[nodiscard]] std::string name(int r) const {
    return "rank " + std::to_string(r) + " on " + names[static_cast<std::size_t>(r)];
  }
  [[nodiscard]] std::vector<std::string> all_names() const {
    std::vector<std::string> list;
    list.reserve(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) list.push_back(name(r));
    return list;
  }
  [[nodiscard]] std::vector<std::string> local_names() const {
    std::vector<std::string> list(static_cast<std::size_t>(local_size));
    for (std::size_t r = 0; r < places.size(); ++r)
      if (places[r].host == my_host()) list[static_cast<std::size_t>(places[r].local)] = name(static_cast<int>(r));
    return list;
  }
  [[nodiscard]] std::vector<std::string> leader_names() const {
    std::vector<std::string> list;
    for (const int r : leader_of) list.push_back(name(r));
    return list;
  }
  [[nodiscard]] int my_host() const noexcept { return places[static_cast<std::size_t>(rank)].host; }

  struct Place {
    int host = 0;  // number of the host, in the order of their first ranks
    int local = 0;
  };
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::vector<Place> places;         // of every rank
  std::vector<int> leader_of;        // the first rank of every host
  std::vector<std::string> names;    // of every rank's host
  MPI_Comm world = MPI_COMM_NULL;    // all ranks
  MPI_Comm closing = MPI_COMM_NULL;  // all ranks, for the end alone
  MPI_Comm node = MPI_COMM_NULL;     // ranks of this machine
  MPI_Comm host = MPI_COMM_NULL;     // ranks of this host
  MPI_Comm leaders = MPI_COMM_NULL;  // first ranks of the hosts; null on others

 private:
  void learn_places() {
    struct Record {
      int leader = 0, local = 0;
      std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    };
    const auto n = static_cast<std::size_t>(size);
    Record mine{rank, local_rank, {}};
    mpi_check(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, host), "MPI_Bcast");
    int length = 0;
    mpi_check(MPI_Get_processor_name(mine.name.data(), &length), "MPI_Get_processor_name");
    std::vector<Record> all(n);
    mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world), "MPI_Allgather");
    for (std::size_t r = 0; r < n; ++r)
      if (all[r].leader == static_cast<int>(r)) leader_of.push_back(static_cast<int>(r));
    for (const Record& r : all) {
      const auto at = std::lower_bound(leader_of.begin(), leader_of.end(), r.leader) - leader_of.begin();
      places.push_back({static_cast<int>(at), r.local});
      names.emplace_back(r.name.data());
    }
  }
};

}  // namespace tutti
