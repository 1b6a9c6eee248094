// SPDX-License-Identifier: MIT
#include "tools/launch/host/ssh.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/launch/host/process.hpp"

namespace tutti::launch {

std::vector<std::string> ssh_arguments(const SshSettings& s, const Host& host) {
  if (!s.slurm_job.empty()) return srun_arguments(s.slurm_job, host);
  if (!is_host_name(host.name) && !is_ipv6_address(host.name))
    fail<UsageError>("ssh", "a host name", "'" + printable(host.name) + "'");
  if (!host.user.empty() && !is_user_name(host.user))
    fail<UsageError>("ssh", "a user's name", "'" + printable(host.user) + "'");
  const auto whole = [](double seconds) { return std::to_string(std::max(1L, static_cast<long>(seconds + 0.999))); };
  std::vector<std::string> argv{"ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=" + whole(s.connect_timeout)};
  // A job does not need the user's keys and tunnels on its hosts. The key of an unknown host is accepted if the job
  // begins with that host. A changed key is never accepted.
  for (const char* option : {s.known_only ? "StrictHostKeyChecking=yes" : "StrictHostKeyChecking=accept-new",
                             "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"}) {
    argv.emplace_back("-o");
    argv.emplace_back(option);
  }
  for (const std::string& option : {"ServerAliveInterval=" + whole(s.host_timeout / 3),
                                    std::string("ServerAliveCountMax=3"), std::string("LogLevel=ERROR")}) {
    argv.emplace_back("-o");
    argv.push_back(option);
  }
  if (!s.config.empty()) {
    argv.emplace_back("-F");
    argv.push_back(s.config);
  }
  if (host.port != 0) {
    argv.emplace_back("-p");
    argv.push_back(std::to_string(host.port));
  }
  if (!host.user.empty()) {
    argv.emplace_back("-l");
    argv.push_back(host.user);
  }
  argv.emplace_back("--");
  argv.push_back(host.name);
  return argv;
}

std::vector<std::string> ssh_environment() {
  constexpr std::string_view wanted[] = {
      "PATH",          "HOME",        "USER",    "LOGNAME",         "SHELL",      "TERM",       "TMPDIR",
      "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "XDG_RUNTIME_DIR", "KRB5CCNAME", "SLURM_CONF", "SLURM_JWT"};
  std::vector<std::string> kept;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    if (std::find(std::begin(wanted), std::end(wanted), entry.substr(0, entry.find('='))) != std::end(wanted))
      kept.emplace_back(entry);
  }
  kept.emplace_back("LC_ALL=C");
  return kept;
}

void write_rsh_agent(const std::filesystem::path& folder, const std::string& program, const SshSettings& s,
                     const std::vector<Host>& hosts) {
  std::ofstream out(folder / "rsh-agent.hosts");
  out << s.connect_timeout << ' ' << s.host_timeout << ' ' << (s.slurm_job.empty() ? "-" : s.slurm_job) << ' '
      << s.config << '\n';
  for (const Host& h : hosts) out << rsh_agent_line(h, false);
  if (!out.flush()) fail<Error>("rsh-agent", "to write " + folder.string(), error_text(errno));
  if (::symlink(program.c_str(), (folder / "rsh-agent").c_str()) != 0)
    fail<Error>("rsh-agent", "to make a link in " + folder.string(), error_text(errno));
}

void become_ssh(const std::filesystem::path& link, const std::vector<std::string>& arguments) {
  std::ifstream in(link.parent_path() / "rsh-agent.hosts");
  SshSettings s;
  if (!(in >> s.connect_timeout >> s.host_timeout >> s.slurm_job))
    fail<UsageError>("rsh-agent", "the file rsh-agent.hosts", "none");
  if (s.slurm_job == "-") s.slurm_job.clear();
  in.get();
  std::getline(in, s.config);
  if (arguments.empty()) fail<UsageError>("rsh-agent", "a host", "none");
  for (Host host; in >> host.name >> host.port >> host.user >> s.known_only;) {
    if (host.name != arguments[0]) continue;
    if (host.user == "-") host.user.clear();
    std::vector<std::string> argv = ssh_arguments(s, host);
    if (s.slurm_job.empty()) {
      argv.insert(argv.end(), arguments.begin() + 1, arguments.end());
    } else {
      // ssh passes its words to the shell as one line, so this does the same.
      argv.emplace_back();
      for (std::size_t i = 1; i < arguments.size(); ++i) argv.back() += (i > 1 ? " " : "") + arguments[i];
    }
    std::vector<std::string> environment = ssh_environment();
    std::vector<char*> words, entries;
    for (auto& w : argv) words.push_back(w.data());
    for (auto& e : environment) entries.push_back(e.data());
    words.push_back(nullptr);
    entries.push_back(nullptr);
    environ = entries.data();
    ::execvp(words[0], words.data());
    fail<UsageError>("rsh-agent", argv[0], error_text(errno),
                     s.slurm_job.empty() ? "Debian: apt-get install openssh-client" : "");
  }
  fail<UsageError>("rsh-agent", "a host that is in the hosts file", "'" + printable(arguments[0]) + "'");
}

}  // namespace tutti::launch
