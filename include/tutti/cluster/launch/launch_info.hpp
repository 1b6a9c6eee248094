// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

// Before tutti-launch starts a program N times, it asks the program how to start them. It runs the program once with
// its arguments, the environment of rank 0, and TUTTI_ASK set. The program reads its command line, answers and stops:
//     if (is_launcher_query()) return answer_launcher_query({"mpi", true});
// Only a program file that contains the text of is_launcher_query() is asked. So no other program runs an additional
// time.
namespace tutti {

struct LaunchInfo {        // how a program wants to be started
  std::string strategy{};  // its name in messages
  bool over_mpi = false;   // its ranks find each other only if mpirun starts them
  bool servers = false;    // it needs servers, and can run as one
  // A server that is started again continues from the state that it saved.
  bool servers_restart = false;
  // Its workers may join and leave while it trains.
  bool elastic = false;
  // Its servers have the trained state, and no worker waits for another worker.
  bool servers_hold = false;
};

// Returns whether this is the run in which the launcher asks.
[[nodiscard]] inline bool is_launcher_query() {
  // The launcher searches the program's file for this.
  [[gnu::used]] static const char text[] = "tutti-launch may ask this program by TUTTI_ASK";
  return std::getenv(text + sizeof text - sizeof "TUTTI_ASK") != nullptr;
}

// Prints the answer. Returns the value for main to return.
inline int answer_launcher_query(const LaunchInfo& a) {
  std::printf("TUTTI-ANSWER 1 strategy=%s mpi=%d servers=%d%s%s%s\n", a.strategy.c_str(), a.over_mpi ? 1 : 0,
              a.servers ? 1 : 0, a.servers_restart ? " restart=1" : "", a.elastic ? " elastic=1" : "",
              a.servers_hold ? " hold=1" : "");
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// For the launcher: returns the answer in a line, or no value if the line is not an answer.
[[nodiscard]] inline std::optional<LaunchInfo> parse_launch_info(std::string_view line) {
  const auto take = [&](std::string_view start) {
    const bool there = line.starts_with(start);
    if (there) line.remove_prefix(start.size());
    return there;
  };
  LaunchInfo a;
  if (!take("TUTTI-ANSWER 1 strategy=")) return {};
  const std::size_t end = line.find(' ');
  if (end == 0 || end == std::string_view::npos) return {};
  a.strategy = line.substr(0, end);
  if (a.strategy.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
      std::string::npos)
    return {};
  line.remove_prefix(end);
  if (!take(" mpi=") || line.empty()) return {};
  a.over_mpi = line.front() == '1';
  line.remove_prefix(1);
  if (!take(" servers=") || line.empty()) return {};
  a.servers = line.front() == '1';
  line.remove_prefix(1);
  a.servers_restart = take(" restart=1");
  a.elastic = take(" elastic=1");
  a.servers_hold = take(" hold=1");
  return a;
}

}  // namespace tutti
