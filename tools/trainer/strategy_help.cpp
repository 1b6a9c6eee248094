// SPDX-License-Identifier: MIT
#include "tools/trainer/strategy_help.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::trainer {

const std::string& strategy_help() {
  static const std::string text = [] {
    constexpr std::pair<std::string_view, std::string_view> meanings[] = {
        {"solo", "one process"},
        {"mpi", "the ranks of mpirun or tutti-launch"},
        {"nccl", "the same with a GPU each"},
        {"gloo", "the ranks of tutti-launch, without MPI"},
        {"ps", "with the servers of tutti-launch -s"},
        {"ps_async", "the same, workers do not wait for each other"}};
    const std::vector<std::string> built = built_strategies();
    std::string here, elsewhere;
    for (const KnownStrategy& s : known_strategies()) {
      if (std::find(built.begin(), built.end(), s.word) == built.end()) {
        elsewhere.append(elsewhere.empty() ? "" : ", ").append(s.word).append(" needs ").append(s.packages);
        continue;
      }
      here.append(here.empty() ? "" : ", ").append(s.word);
      for (const auto& [word, meaning] : meanings)
        if (word == s.word) here.append(" (").append(meaning).append(")");
    }
    return here + "; default: depends on the number of processes, on servers and on GPUs" +
           (elsewhere.empty() ? "" : "; not in this build: " + elsewhere);
  }();
  return text;
}

}  // namespace tutti::trainer
