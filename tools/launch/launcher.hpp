// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic_job.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/link.hpp"

namespace tutti::launch {

// Starts a job and stays until it has ended. Nothing runs before every host has said that it can; when a process fails
// all are stopped; when the launcher is gone its agents end theirs.
class Launcher : ElasticJob {
 public:
  explicit Launcher(const Options& options) : ElasticJob(options) {}

  // The exit code.
  int run();

 private:
  // ---- one round ----
  void turn(const SignalQueue& signals);

  // ---- what the agents say ----
  void hear(Link& l, std::string_view line);
  void complain(Link& l, std::string_view line);

  void go_when_all_are_ready();
  void ended(Link& l, const std::string& name, const End& end);

  [[nodiscard]] bool may_start_again(const ProcessExit& e) const;

  void add_problem(Link& l, Problem p);

  // An agent's connection has closed.
  void settle(Link& l);

  // ---- stopping ----
  void interrupt(int signal);
  void watch();
  void watch_progress();

  // Once mpirun has ended, its guards may still have to tell how the processes did.
  void watch_mpirun();
  // Servers serve workers. One that has a channel is told when they are done, and saves what it has.
  void watch_servers();
};

}  // namespace tutti::launch
