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

// Runs short commands on many hosts: the copy of the working folder, and --kill.
namespace tutti::launch {

struct CommandResult {
  int code = -1;  // -1: the command was not started, or was killed at the time-out
  std::string out, err;
};

// Runs commands, `parallel` at a time, each for at most `timeout` seconds. SIGINT and SIGTERM end all of them.
[[nodiscard]] std::vector<CommandResult> run_commands(std::vector<Start> starts, std::size_t parallel, double timeout,
                                                      const SignalQueue& signals);

// The exit code and message for a host on which ssh, or the program that it should run, failed.
struct Problem {
  int code;
  std::string message;
};

[[nodiscard]] Problem connection_problem(const Host& host, bool here, int code, const std::string& errors,
                                         const std::string& program);

[[nodiscard]] SshSettings ssh_settings(const Options& o);

// Returns the path of this program on other hosts. If the working folder is copied, it is the path in the copy.
[[nodiscard]] std::string remote_program(const Options& o);

// Returns the command that starts this program on a host in the given mode.
[[nodiscard]] Start start_on(const Host& host, bool here, const Options& o, const std::vector<std::string>& mode,
                             bool known_only = false);

// Returns the command that copies the working folder to a host.
[[nodiscard]] Start copy_of_folder(const Host& host, bool here, const Options& o,
                                   const std::filesystem::path& job_folder);

[[nodiscard]] Problem copy_problem(const Host& host, const Options& o, int code, const std::string& errors);

// Copies the working folder to every other host, and to the destination on this host if that is another folder. Throws
// the problem of the first host that fails.
void sync_folder(const Plan& plan, const Options& o, const std::filesystem::path& job_folder,
                 const SignalQueue& signals);

// `tutti-launch --kill-here [JOB]`: ends the processes that are recorded on this host.
int kill_here(const std::string& job);

// Ends the recorded processes on these hosts. Returns a problem for each host that could not be reached.
[[nodiscard]] std::vector<Problem> kill_on(const std::vector<Host>& hosts, const Options& o, const std::string& job,
                                           double timeout, bool print, const SignalQueue& signals);

// Ends processes of a job that may still run on hosts with a lost connection. Returns the error messages.
[[nodiscard]] std::vector<std::string> end_left_over(const std::vector<Host>& hosts, Options o, const std::string& job,
                                                     const SignalQueue& signals);

}  // namespace tutti::launch
