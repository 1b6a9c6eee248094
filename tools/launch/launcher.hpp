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

// Starts a job and runs until it has ended. No process starts before every host is ready. If a process fails, all
// processes are stopped. If the launcher ends, its agents end their processes.
class Launcher : ElasticJob {
 public:
  explicit Launcher(const Options& options) : ElasticJob(options) {}

  // Returns the exit code.
  int run();

 private:
  // ---- one round ----
  void turn(const SignalQueue& signals);

  // ---- messages of agents ----
  void hear(Link& l, std::string_view line);
  void complain(Link& l, std::string_view line);

  void go_when_all_are_ready();
  void ended(Link& l, const std::string& name, const End& end);

  [[nodiscard]] bool may_start_again(const ProcessExit& e) const;

  void add_problem(Link& l, Problem p);

  // Handles the end of an agent's connection.
  void settle(Link& l);

  // ---- stopping ----
  void interrupt(int signal);
  void watch();
  void watch_progress();

  // After mpirun has ended, waits for its guards to report how the processes ended.
  void watch_mpirun();
  // Ends servers when no worker is left. Servers with a channel get a message, and save their state first.
  void watch_servers();
};

}  // namespace tutti::launch
