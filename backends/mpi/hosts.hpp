// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Finds out which ranks share a host, and creates their communicators.
class MpiHosts {
 public:
  // A collective call of all ranks of `from`. ranks_per_host: if not 0, splits the ranks of a machine into simulated
  // hosts with this number of ranks each.
  MpiHosts(MPI_Comm from, int ranks_per_host) {
    mpi_check(MPI_Comm_dup(from, &world), "MPI_Comm_dup");
    mpi_check(MPI_Comm_dup(from, &closing), "MPI_Comm_dup");
    int rank = 0, node_rank = 0, local_rank = 0;
    MPI_Comm node = MPI_COMM_NULL;  // the ranks of this machine
    mpi_check(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    mpi_check(MPI_Comm_rank(node, &node_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_split(node, ranks_per_host > 0 ? node_rank / ranks_per_host : 0, node_rank, &host),
              "MPI_Comm_split");
    MPI_Comm_free(&node);
    mpi_check(MPI_Comm_rank(host, &local_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_split(world, local_rank == 0 ? 0 : MPI_UNDEFINED, rank, &leaders), "MPI_Comm_split");
    learn_topology(rank);
  }
  MpiHosts(const MpiHosts&) = delete;
  MpiHosts& operator=(const MpiHosts&) = delete;
  void release() noexcept {
    for (MPI_Comm* c : {&leaders, &host, &closing, &world})
      if (*c != MPI_COMM_NULL) MPI_Comm_free(c);
  }

  HostTopology topology;
  MPI_Comm world = MPI_COMM_NULL;    // all ranks
  MPI_Comm closing = MPI_COMM_NULL;  // all ranks, used only at the end
  MPI_Comm host = MPI_COMM_NULL;     // the ranks of this host
  MPI_Comm leaders = MPI_COMM_NULL;  // the first rank of each host; null on the other ranks

 private:
  void learn_topology(int rank) {
    struct Record {
      int leader = 0;
      std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    };
    int size = 1, length = 0;
    mpi_check(MPI_Comm_size(world, &size), "MPI_Comm_size");
    Record mine{rank, {}};
    mpi_check(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, host), "MPI_Bcast");
    mpi_check(MPI_Get_processor_name(mine.name.data(), &length), "MPI_Get_processor_name");
    std::vector<Record> all(static_cast<std::size_t>(size));
    mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world), "MPI_Allgather");
    std::vector<int> leader_of_rank;
    std::vector<std::string> names;
    for (const Record& r : all) {
      leader_of_rank.push_back(r.leader);
      names.emplace_back(r.name.data());
    }
    topology = HostTopology(rank, leader_of_rank, std::move(names));
  }
};

}  // namespace tutti
