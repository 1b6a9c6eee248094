// SPDX-License-Identifier: MIT
#include "tools/launch/program_query.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/job/commands.hpp"

namespace tutti::launch {

namespace {

constexpr double ask_limit = 30;  // longest time for the program's answer, in seconds

// Returns whether the file of an order's program contains the text that allows a query.
[[nodiscard]] bool can_be_queried(const fs::path& program) {
  const io::Descriptor file(::open(program.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat s {};
  if (file.get() < 0 || ::fstat(file.get(), &s) != 0 || s.st_size == 0) return false;
  const auto size = static_cast<std::size_t>(s.st_size);
  void* const bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return false;
  // The text is stored backwards: otherwise this program's own file would contain it.
  constexpr std::string_view text = "KSA_ITTUT yb margorp siht ksa yam hcnual-ittut";
  const std::string wanted(text.rbegin(), text.rend());
  const bool found = ::memmem(bytes, size, wanted.data(), wanted.size()) != nullptr;
  ::munmap(bytes, size);
  return found;
}

}  // namespace

int query_locally(const Order& order) {
  SignalQueue signals{SIGCHLD, SIGTERM, SIGINT, SIGHUP};
  if (order.processes.empty() || !can_be_queried(program_of(order))) return 0;
  Start s;
  s.argv = order.command;
  s.environment = environment_of(order, order.processes.front(), "", "");
  s.environment->emplace_back("TUTTI_ASK=launch");
  s.folder = order.folder;
  s.own_session = true;
  s.signal_at_parents_death = SIGKILL;
  std::vector<Start> starts;
  starts.push_back(std::move(s));
  const CommandResult result = run_commands(std::move(starts), 1, ask_limit, signals).at(0);
  const auto say = [](const std::string& line) { std::printf("%c%s\n", control_mark, line.c_str()); };
  say("asked " + std::to_string(result.code));
  const auto all = [&](const std::string& text, const std::string& word) {
    LineSplitter lines;
    const auto put = [&](std::string_view line) { say(word + " " + std::string(line)); };
    lines.feed(text, put);
    lines.finish(put);
  };
  all(result.out, "answer");
  all(result.err, "error");
  return 0;
}

ProgramQuery query_program(const Plan& plan, const Options& o, const SignalQueue& signals) {
  ProgramQuery asked;
  const Plan::Site& site = plan.first();
  // This host has the same program in most cases. If it cannot be queried, the query is not sent to the other host.
  Order local = site.order;
  if (!site.here) local.folder = fs::current_path().string();
  const fs::path program = program_of(local);
  if (!program.empty() && !can_be_queried(program)) return asked;

  const io::Descriptor order(::memfd_create("order", MFD_CLOEXEC));
  const std::string frame = encode(site.order);
  if (order.get() < 0 || ::write(order.get(), frame.data(), frame.size()) != static_cast<ssize_t>(frame.size()) ||
      ::lseek(order.get(), 0, SEEK_SET) != 0)
    fail<Error>("order", "a file in memory", error_text(errno));
  Start start = start_on(site.host, site.here, o, {"--ask"});
  start.in = order.get();
  start.signal_at_parents_death = SIGTERM;
  std::vector<Start> starts;
  starts.push_back(std::move(start));
  const CommandResult result = run_commands(std::move(starts), 1, ask_limit + o.connect_timeout + 5, signals).at(0);
  LineSplitter lines;
  const auto hear = [&](std::string_view line) {
    if (line.empty() || line.front() != control_mark) return;
    line.remove_prefix(1);
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, space), rest = line.substr(std::min(space + 1, line.size()));
    if (word == "asked") {
      asked.put = true;
      asked.code = std::atoi(std::string(rest).c_str());
    }
    if (word == "answer" && !asked.answer) asked.answer = parse_launch_info(rest);
    if (word == "error") asked.errors.emplace_back(rest);
  };
  lines.feed(result.out, hear);
  lines.finish(hear);
  return asked;
}

void require_answer(const ProgramQuery& asked, const Plan& plan) {
  if (asked.code <= 0 || asked.answer) return;
  for (const auto& line : asked.errors) std::fprintf(stderr, "[0] %s\n", line.c_str());
  throw Error(error_message("worker 0 on " + plan.first().host.name, "exit code 0",
                            "exit code " + std::to_string(asked.code) + ", before any process was started"),
              static_cast<ExitCode>(asked.code));
}

}  // namespace tutti::launch
