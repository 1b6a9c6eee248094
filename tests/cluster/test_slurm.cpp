// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/slurm.hpp>
#include <tutti/core/error.hpp>

using namespace tutti;

namespace {

using Variables = std::map<std::string, std::string>;
using Nodes = std::vector<std::string>;

LaunchEnvironment environment(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

// The variables of task 3 of 4, started by an srun over two nodes with Slurm's PMIx.
Variables of_srun() {
  return {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
          {"SLURM_NODEID", "1"}, {"PMIX_RANK", "3"},     {"PMIX_NAMESPACE", "slurm.pmix.7.2"}};
}

}  // namespace

TEST_CASE("lists of nodes are parsed in Slurm's format") {
  const auto nodes = [](const char* list) { return expand_slurm_nodes(list, "SLURM_JOB_NODELIST"); };
  CHECK(nodes("a[01-03,7],b") == Nodes{"a01", "a02", "a03", "a7", "b"});
  CHECK(nodes("n") == Nodes{"n"});
  CHECK(nodes("n[9-11]") == Nodes{"n9", "n10", "n11"});
  CHECK(nodes("n[099-101]") == Nodes{"n099", "n100", "n101"});
  CHECK(nodes("r[0-1]n[1-2]-ib,x.y") == Nodes{"r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib", "x.y"});
  CHECK(nodes("n[1-65536]").size() == 65536);
  for (const char* bad : {"",
                          ",",
                          "a,",
                          "a,,b",
                          "a[",
                          "a]",
                          "a[]",
                          "a[1",
                          "a[1-]",
                          "a[-1]",
                          "a[3-1]",
                          "a[1-2-3]",
                          "a[x]",
                          "a[1,]",
                          "a b",
                          "-oProxyCommand=x",
                          "a;b",
                          "$(x)",
                          "a\nb",
                          "a[[1]]",
                          "a[1-65537]",
                          "a[1-300][1-300]",
                          "a[0-999999999]",
                          "a[0-99999999999999999999]",
                          "a[+1]",
                          "a[0000000001]",
                          "[-1]x"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)nodes(bad), UsageError);
  }
  CHECK_THROWS_AS((void)nodes(std::string(5000, 'a').c_str()), UsageError);
  CHECK_THROWS_AS((void)nodes(("a[1-60000]" + std::string(5000, 'b')).c_str()), UsageError);
}

TEST_CASE("numbers of tasks per node are parsed in Slurm's format") {
  const auto tasks = [](const char* list) { return expand_slurm_tasks(list, "SLURM_TASKS_PER_NODE"); };
  CHECK(tasks("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(tasks("5") == std::vector<int>{5});
  for (const char* bad : {"", ",", "1,", "0", "-1", "x", "2(x0)", "2(x)", "2(x3", "2(3)", "2(x3)1", "2(x65537)",
                          "1(x65536),1", "4097", "99999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)tasks(bad), UsageError);
  }
}

TEST_CASE("a process that srun started is a rank if srun provides PMIx") {
  const auto e = environment(of_srun());
  CHECK((e.launched && e.mpi && e.srun && e.rank == 3 && e.size == 4 && e.workers == 4));
  CHECK((e.local_rank == 1 && e.local_size == 2 && e.starter_of_mpi() == "srun"));
  CHECK_NOTHROW(require_worker(e));

  // PMIx belongs to an outer step, or does not exist.
  for (const char* name : {"", "slurm.pmix.7.1", "slurm.pmix.8.2", "1234567"}) {
    CAPTURE(name);
    auto v = of_srun();
    v["PMIX_NAMESPACE"] = name;
    CHECK_FALSE(environment(v).launched);
    CHECK_THROWS_AS(require_worker(environment(v)), UsageError);
  }
  // The variables of another launcher have precedence over Slurm's.
  auto v = of_srun();
  v["TUTTI_RANK"] = "0";
  v["TUTTI_SIZE"] = "1";
  CHECK((!environment(v).mpi && environment(v).size == 1));
  v = of_srun();
  v["OMPI_COMM_WORLD_RANK"] = "1";
  v["OMPI_COMM_WORLD_SIZE"] = "2";
  CHECK((environment(v).rank == 1 && environment(v).size == 2 && !environment(v).srun));
  v = of_srun();
  v["DMLC_ROLE"] = "worker";
  CHECK_FALSE(environment(v).mpi);

  for (const std::pair<std::string, std::string>& wrong :
       std::vector<std::pair<std::string, std::string>>{{"SLURM_PROCID", "4"},
                                                        {"SLURM_STEP_NUM_TASKS", "x"},
                                                        {"SLURM_STEP_NUM_TASKS", "0"},
                                                        {"SLURM_LOCALID", "2"},
                                                        {"SLURM_NODEID", "2"},
                                                        {"SLURM_STEP_TASKS_PER_NODE", "2(x2"}}) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    auto broken = of_srun();
    broken[wrong.first] = wrong.second;
    CHECK_THROWS_AS((void)environment(broken), UsageError);
  }
  // Without one of these variables the process is still a rank.
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"}) {
    auto less = of_srun();
    less.erase(name);
    CHECK((environment(less).rank == 3 && environment(less).mpi));
  }
  // Without its number it is not.
  auto less = of_srun();
  less.erase("SLURM_PROCID");
  CHECK_FALSE(environment(less).mpi);
}
