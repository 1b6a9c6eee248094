// SPDX-License-Identifier: MIT
#include "tools/generate_trainer/scripts.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/host/quote.hpp"

namespace tutti::generate_trainer {

namespace {

constexpr int server_port = 2222, first_worker_port = 2230;

[[nodiscard]] Job plan_job(const Options& o) {
  Job job;
  job.hosts = read_hosts_file(o.workers_file);
  job.workers_of_host = std::max(1, o.gpus);
  if (static_cast<int>(job.hosts.size()) != o.worker_count)
    fail<UsageError>("--worker_count", std::to_string(job.hosts.size()) + ", the number of hosts in " + o.workers_file,
                     std::to_string(o.worker_count));
  for (const Host& h : job.hosts) {
    if (h.slots != 1 && h.slots != job.workers_of_host)
      fail<UsageError>(o.workers_file + " line " + std::to_string(h.line),
                       "no slots=, or the value of --worker_gpu_count, " + std::to_string(job.workers_of_host),
                       std::to_string(h.slots));
    job.servers.append(job.servers.empty() ? "" : ",").append(host_and_port(h.name, server_port));
    for (int w = 0; w < job.workers_of_host; ++w)
      job.workers.append(job.workers.empty() ? "" : ",").append(host_and_port(h.name, first_worker_port + w));
  }
  return job;
}

}  // namespace

namespace detail {

std::string quoted(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& w : words) line.append(line.empty() ? "" : " ").append(launch::shell_quoted(w));
  return line;
}

void replace_file(const io::Path& path, std::string_view text, mode_t mode) {
  const io::Path aside = path.string() + "." + std::to_string(::getpid());
  ::unlink(aside.c_str());
  {
    const io::Descriptor file = io::Descriptor::open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, "make", mode);
    // Sets the mode although a umask may restrict it.
    if (::fchmod(file.get(), mode) != 0) io::fail_file("set the mode of", aside, errno);
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(file.get(), text.data() + at, text.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) io::fail_file("write", aside, errno);
      at += static_cast<std::size_t>(n);
    }
    if (::fsync(file.get()) != 0) io::fail_file("write", aside, errno);
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) io::fail_file("make", path, errno);
}

}  // namespace detail

namespace detail {

namespace {

// Returns whether the program's arguments contain one of these options, written with - or _.
[[nodiscard]] bool has_option(const std::vector<std::string>& command, std::initializer_list<std::string_view> names) {
  return std::any_of(command.begin(), command.end(), [&](const std::string& argument) {
    std::string word = argument.substr(0, argument.find('='));
    std::replace(word.begin(), word.end(), '_', '-');
    return std::find(names.begin(), names.end(), word) != names.end();
  });
}

[[nodiscard]] bool has_own_key(const std::vector<std::string>& command) {
  return has_option(command, {"--ps-key-file", "--ps-plain"});
}

// Returns whether the user chooses the processor or GPU of workers. --gpus '' means the processor.
[[nodiscard]] bool says_backend(const std::vector<std::string>& command) {
  return has_option(command, {"--backend", "--gpus"});
}

}  // namespace

}  // namespace detail

namespace {

// Returns the script of a host. key: the key file; empty: there is no key.
[[nodiscard]] std::string script_of(const Options& o, const Job& job, std::size_t host, const std::string& key) {
  const std::string here = std::filesystem::current_path().string(), logs = detail::absolute(o.log_dir);
  std::vector<std::string> command = o.command;
  // A program without a folder is searched on the host's PATH.
  if (command[0].find('/') != std::string::npos) command[0] = detail::absolute(command[0]);
  const auto start = [&](const std::string& gpu, const std::string& kind, std::size_t index) {
    std::vector<std::string> words = command;
    // With this option, a worker on a host without a GPU fails. Without it, the worker would train on the CPU and slow
    // down the other workers. Servers get the option too: all processes of a job have the same options.
    if (o.gpus > 0 && !detail::says_backend(o.command)) words.emplace_back("--backend=cuda");
    words.push_back("--ps_hosts=" + job.servers);
    words.push_back("--worker_hosts=" + job.workers);
    words.push_back("--job_name=" + kind);
    words.push_back("--task_index=" + std::to_string(index));
    if (!key.empty()) words.push_back("--ps_key_file=" + key);
    const std::string log = (std::filesystem::path(logs) / (kind + std::to_string(index))).string();
    return "CUDA_VISIBLE_DEVICES='" + gpu + "' " + detail::quoted(words) + " </dev/null >" + launch::shell_quoted(log) +
           " 2>&1 &\n";
  };
  std::string text = "#!/bin/bash\n# The processes of " + job.hosts[host].name +
                     ", written by generate-trainer: a parameter server and its workers.\n";
  text += "[ ! -r /etc/profile ] || . /etc/profile\n";
  // Relative paths refer to the current folder, if that also exists on the host.
  text += "[ ! -d " + launch::shell_quoted(here) + " ] || cd " + launch::shell_quoted(here) + " || exit\n";
  text += "mkdir -p " + launch::shell_quoted(logs) + " || exit\n";
  text += start("", "ps", host);
  for (int w = 0; w < job.workers_of_host; ++w)
    text += start(o.gpus > 0 ? std::to_string(w) : "", "worker",
                  host * static_cast<std::size_t>(job.workers_of_host) + static_cast<std::size_t>(w));
  return text;
}

}  // namespace

void write_scripts(const Options& o) {
  const Job job = plan_job(o);
  const io::Path folder = detail::absolute(o.script_dir);
  const bool own_key = detail::has_own_key(o.command);
  const std::string key = own_key ? "" : (folder / "job.key").string();
  std::vector<std::string> scripts;
  for (std::size_t h = 0; h < job.hosts.size(); ++h) scripts.push_back(script_of(o, job, h, key));
  io::make_directories(folder);
  if (!own_key) detail::replace_file(key, new_secret() + "\n", 0600);
  for (std::size_t h = 0; h < job.hosts.size(); ++h) {
    const io::Path path = folder / (job.hosts[h].name + ".sh");
    detail::replace_file(path, scripts[h], 0755);
    std::printf("%s\n", path.c_str());
  }
  const auto count = job.hosts.size() * static_cast<std::size_t>(job.workers_of_host);
  std::printf("%zu %s and %zu %s, logs in %s\n", job.hosts.size(), job.hosts.size() == 1 ? "server" : "servers", count,
              count == 1 ? "worker" : "workers", detail::absolute(o.log_dir).c_str());
  if (!own_key) std::printf("the key of the job: %s\n", key.c_str());
}

}  // namespace tutti::generate_trainer
