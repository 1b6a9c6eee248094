// SPDX-License-Identifier: MIT
#include "tools/launch/job/link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

namespace tutti::launch {

Child::Child(Start start, bool with_input) {
  Pipe out = make_pipe(), err = make_pipe(), in;
  if (with_input) {
    in = make_pipe();
    start.in = in.read.get();
    ::fcntl(in.write.get(), F_SETFL, O_NONBLOCK);
  }
  start.out = out.write.get();
  start.err = err.write.get();
  const Started started = start_process(start);
  if (started.error != 0)
    fail<UsageError>(
        "command line", "the program " + start.argv[0], error_text(started.error),
        start.argv[0] == "mpirun" ? "Debian: apt-get install openmpi-bin" : "Debian: apt-get install openssh-client");
  pid_ = started.pid;
  pipes_[0] = std::move(out.read);
  pipes_[1] = std::move(err.read);
  in_ = std::move(in.write);
  input_ = OutputQueue(in_.get());
}

void Child::close_input() {
  input_.close();
  in_ = io::Descriptor();
}

void Child::read(std::size_t stream, const Sink& sink) {
  std::string bytes;
  const ReadResult result = read_some(pipes_[stream].get(), bytes);
  if (result == ReadResult::bytes) lines_[stream].feed(bytes, sink);
  if (result == ReadResult::end) finish(stream, sink);
}

void Child::look(const Sink& out, const Sink& err) {
  if (!exited_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
    exited_ = true;
    exited_at_ = Clock::now();
  }
  // Another process, such as a master connection of ssh, may hold the pipes open without writing.
  if (exited_ && seconds_since(exited_at_) > 0.5)
    for (const std::size_t stream : {0U, 1U}) {
      pollfd waiting{fd(stream), POLLIN, 0};
      if (open(stream) && ::poll(&waiting, 1, 0) == 0) finish(stream, stream == 0 ? out : err);
    }
}

void Child::poll_and_read(const Sink& out, const Sink& err) {
  for (const std::size_t stream : {0U, 1U}) {
    pollfd waiting{fd(stream), POLLIN, 0};
    if (open(stream) && ::poll(&waiting, 1, 0) > 0) read(stream, stream == 0 ? out : err);
  }
  look(out, err);
}

void Child::finish(std::size_t stream, const Sink& sink) {
  lines_[stream].finish(sink);
  pipes_[stream] = io::Descriptor();
}

Link::Link(Plan::Site where, const Options& o)
    : site(std::move(where)),
      child(start_on(site.host, site.here, o, {"--exec-ranks"}, site.order.joins && !o.elastic.accept_new_hosts),
            true) {
  child.input().put(encode(site.order));
}

bool Link::has(const std::string& name) const {
  return std::any_of(site.order.processes.begin(), site.order.processes.end(),
                     [&](const ProcessOrder& p) { return process_name(p.role, p.rank) == name; });
}

void Link::cut() {
  child.close_input();
  child.signal(SIGKILL);
  child.hang_up();
}

void Link::cut_off(double since) {
  if (since > 3 && !child.exited()) {
    lost = lost || hello;
    child.close_input();
    child.signal(SIGKILL);
  }
  if (since > 5) child.hang_up();
}

Problem lost_host(const Link& l, const std::map<std::string, const Link*>& unended, const ProgressBoard& board,
                  const std::string& how) {
  std::string who;
  std::size_t shown = 0;
  for (const auto& [name, link] : unended) {
    if (link != &l) continue;
    if (++shown > 4) break;
    who += (who.empty() ? ", and its processes " : "; ") + name + board.last_report(name);
  }
  return {static_cast<int>(ExitCode::communication),
          error_message("host " + l.host(), "its tutti-launch to stay connected", how + who, "")};
}

}  // namespace tutti::launch
