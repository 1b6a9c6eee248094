// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/host/ssh.hpp"
#include "tools/launch/job/plan.hpp"

// Short commands on many hosts: the copy of the working folder, and --kill.
namespace tutti::launch {

struct CommandResult {
  int code = -1;  // -1: not started, or out of time
  std::string out, err;
};

// Runs commands, `parallel` at a time, none longer than `timeout` seconds. SIGINT and SIGTERM end them all.
[[nodiscard]] std::vector<CommandResult> run_commands(std::vector<Start> starts, std::size_t parallel, double timeout,
                                                      const SignalQueue& signals);

// The error for a host on which ssh, or what it was to run, failed.
struct Problem {
  int code;
  std::string message;
};

[[nodiscard]] Problem connection_problem(const Host& host, bool here, int code, const std::string& errors,
                                         const std::string& program);

[[nodiscard]] SshSettings ssh_settings(const Options& o);

// The path of this program on other hosts: where the working folder is copied, that of the copy.
[[nodiscard]] std::string remote_program(const Options& o);

// How a mode of this program is started on a host.
[[nodiscard]] Start start_on(const Host& host, bool here, const Options& o, const std::vector<std::string>& mode,
                             bool known_only = false);

// The copy of the working folder to a host.
[[nodiscard]] Start copy_of_folder(const Host& host, bool here, const Options& o,
                                   const std::filesystem::path& job_folder);

[[nodiscard]] Problem copy_problem(const Host& host, const Options& o, int code, const std::string& errors);

// Copies the working folder to every host that is not this one, and here too if it lies elsewhere. Throws the first
// host's problem.
void sync_folder(const Plan& plan, const Options& o, const std::filesystem::path& job_folder,
                 const SignalQueue& signals);

// `tutti-launch --kill-here [JOB]`: ends what is recorded on this host.
int kill_here(const std::string& job);

// Ends what is recorded on these hosts; returns a problem for each that could not be asked.
[[nodiscard]] std::vector<Problem> kill_on(const std::vector<Host>& hosts, const Options& o, const std::string& job,
                                           double timeout, bool print, const SignalQueue& signals);

// Ends what hosts that are not heard of any more may still run of a job; what went wrong with that.
[[nodiscard]] std::vector<std::string> end_left_over(const std::vector<Host>& hosts, Options o, const std::string& job,
                                                     const SignalQueue& signals);

}  // namespace tutti::launch
