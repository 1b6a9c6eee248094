// SPDX-License-Identifier: MIT
// header-only
// Stands in for a rank that trains: reports the given number of steps of three buckets, with a pause between them.
// Other ranks follow rank 0 through a file as they would through a collective, so a rank that is stopped delays the
// rest.
//   progress_rank FOLDER STEPS MILLISECONDS [exit code]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/progress_report.hpp>

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::filesystem::path folder = argv[1];
  const int steps = std::atoi(argv[2]), pause = std::atoi(argv[3]);
  const auto env = tutti::read_launch_environment();
  tutti::ProgressReporter reporter;
  if (!reporter.active()) return 4;
  const auto file = [&](int rank) { return folder / ("at-" + std::to_string(rank)); };
  const auto tell = [&](int at) {
    const auto aside = file(env.rank).string() + ".new";
    std::ofstream(aside) << at << '\n';
    std::filesystem::rename(aside, file(env.rank));
  };
  const auto heard = [&](int rank) {
    int at = -1;
    std::ifstream(file(rank)) >> at;
    return at;
  };
  std::ofstream(folder / ("pid-" + std::to_string(env.rank))) << ::getpid() << '\n';
  for (int at = 0; at < 3 * steps; ++at) {
    reporter.begin(static_cast<std::uint64_t>(at / 3), at % 3);
    tell(at);
    for (int rank = 0; rank < env.size; ++rank)
      while (heard(rank) < at) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    reporter.end(static_cast<std::uint64_t>(at / 3), at % 3);
  }
  std::printf("rank %d of %d done\n", env.rank, env.size);
  return argc > 4 ? std::atoi(argv[4]) : 0;
}
