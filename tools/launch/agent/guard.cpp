// SPDX-License-Identifier: MIT
#include "tools/launch/agent/guard.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>
#include <tutti/version.hpp>

#include "tools/launch/agent/agent.hpp"
#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/process.hpp"

namespace tutti::launch {

namespace {

// Watches a host on which mpirun starts the processes. Gives them the order in a file, reports their progress and exit
// codes, passes signals on at once, and ends the processes if the launcher says so or has ended. In an elastic job each
// generation is a new mpirun: "halt" ends the processes that remain of the last one. "members GENERATION WORKERS KEPT
// [NUMBER LOCAL_RANK LOCAL_SIZE RANK]..." lists the processes of the next generation (KEPT in base64, - if empty).
class ProcessGuard {
 public:
  explicit ProcessGuard(Order order) : order_(std::move(order)), link_(order_.host_timeout) {}

  int run(const std::string& frame) {
    SignalQueue signals{SIGTERM, SIGINT, SIGHUP};
    folder_ = make_job_folder(order_.job);
    if (order_.generation == 0) write_order(frame);
    link_.say("hello " + std::to_string(protocol) + " " + version + " " + own_node());
    std::error_code error;
    if (!fs::is_directory(order_.folder, error)) {
      link_.say("refuse the folder " + order_.folder + ", which does not exist");
      stopping_ = true;
    } else if (program_of(order_).empty()) {
      link_.say("refuse the program " + order_.command[0] + ", which does not exist or cannot be run");
      stopping_ = true;
    } else {
      link_.say("ready");
    }
    while (!stopping_) turn(signals);
    end_processes();
    clean();
    link_.say("bye");
    for (int i = 0; i < 50 && link_.out.size() > 0 && !link_.out.broken(); ++i) {
      pollfd fd{STDOUT_FILENO, POLLOUT, 0};
      if (::poll(&fd, 1, 100) > 0) link_.out.send();
    }
    return 0;
  }

 private:
  void turn(const SignalQueue& signals) {
    pollfd fds[] = {
        {signals.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}, {link_.out.size() > 0 ? STDOUT_FILENO : -1, POLLOUT, 0}};
    (void)::poll(fds, 3, 100);
    if (fds[0].revents != 0 && signals.next() != 0) stopping_ = true;
    if (fds[1].revents != 0)
      link_.hear([&](const std::vector<std::string>& words) { obey(words); });
    else
      link_.check_silence();
    if (fds[2].revents != 0) link_.out.send();
    if (!link_.open()) stopping_ = true;
    if (seconds_since(watched_) > 0.1) watch();
  }

  void obey(const std::vector<std::string>& words) {
    if (words.empty()) return;
    if (words[0] == "stop") stopping_ = told_ = true;
    if (words[0] == "signal" && (words.size() == 2 || words.size() == 4))
      for (const Record& r : read_records(folder_))
        if (words.size() == 2 || process_name(r.role, r.rank) == words[2] + " " + words[3])
          signal_group(r, std::atoi(words[1].c_str()));
    if (words[0] == "halt") {
      // This may take longer than the launcher's time-out for a silent host.
      const auto stay = [this] { link_.tell_alive(); };
      end_processes(stay);
      end_mpi_session(folder_, stay);
      link_.say("halted");
    }
    if (words[0] == "members" && words.size() >= 4 && words.size() % 4 == 0) begin_generation(words);
  }
  // Ends the processes that mpirun started, and reports how each process ended.
  void end_processes(const std::function<void()>& meanwhile = [] {}) {
    watch();
    end_recorded(read_records(folder_), stop_grace, meanwhile);
    watch();
  }
  // Writes the order, which is the first file of this host in the job's folder.
  void write_order(const std::string& frame) const {
    with_job_folder(order_.job, [&](const fs::path& folder) { write_aside(order_file(folder), frame); });
  }
  void begin_generation(const std::vector<std::string>& words) {
    const auto number = [&](std::size_t i) { return tutti::detail::number_between(words[i], 0, 1 << 30).value_or(0); };
    remove_files();
    known_.clear();
    order_.generation = number(1);
    order_.workers = number(2);
    order_.kept = words[3] == "-" ? "" : io::from_base64(words[3]).value_or("");
    order_.processes.clear();
    for (std::size_t i = 4; i < words.size(); i += 4)
      order_.processes.push_back({"worker", number(i), number(i + 1), number(i + 2), number(i + 3)});
    write_order(encode(order_));
    link_.say("members " + words[1]);
  }

  struct WatchedProcess {
    std::string last_news{};
    bool ended = false;
    std::optional<Clock::time_point> vanished{};
    std::optional<ProgressFile> slot{};
    std::string kept{};
  };

  void watch() {
    watched_ = Clock::now();
    for (const Record& r : read_records(folder_)) {
      const auto [at, fresh] = known_.try_emplace(r.stem());
      WatchedProcess& known = at->second;
      const std::string name = process_name(r.role, r.rank);
      if (fresh) link_.say("start " + name + " " + std::to_string(r.pid));
      if (known.ended) continue;
      if (!known.slot) {
        known.slot = ProgressFile::open(folder_ / (r.stem() + ".progress"), order_.job);
      }
      if (const auto progress = known.slot ? known.slot->read() : std::nullopt) {
        const auto status = process_status(r.pid);
        const char state = status && status->start == r.start ? status->state == 'T' ? 'T' : 'R' : '-';
        std::string news = RankProcess::progress_line(r.role, r.rank, *progress, state);
        if (news != known.last_news) link_.say(news);
        known.last_news = std::move(news);
      }
      if (const fs::path kept = folder_ / (r.stem() + ".kept"); order_.generation > 0 && io::path_exists(kept)) {
        std::string text = known.kept;
        try {
          text = io::read_text_file(kept, 8192);
        } catch (const Error& e) {
          if (!known.ended) link_.err.put(std::string(e.what()) + "\n");
        }
        if (text != known.kept) link_.say("kept " + io::to_base64(text));
        known.kept = std::move(text);
      }
      std::ifstream in(folder_ / (r.stem() + ".end"));
      if (std::string line; std::getline(in, line)) {
        link_.say("end " + name + " " + line);
        known.ended = true;
      } else if (!lives(r.agent, r.agent_start) && !lives(r.pid, r.start)) {
        // The process and its agent were both killed before one of them could report it.
        if (!known.vanished) known.vanished = Clock::now();
        if (seconds_since(*known.vanished) > 0.3) {
          link_.say("end " + name + " signal 9 vanished");
          known.ended = true;
        }
      }
    }
  }

  void clean() {
    // Removes the order first: a process that mpirun starts later finds no order, or removes its files itself.
    std::error_code error;
    fs::remove(order_file(folder_), error);
    remove_files();
    end_mpi_session(folder_);
    if (!told_) remove_files_of_lost_launcher(folder_, std::chrono::milliseconds(500));
    remove_job_folder(folder_);
  }
  void remove_files() const {
    for (const ProcessOrder& p : order_.processes) {
      Record r;
      r.role = p.role;
      r.rank = p.rank;
      remove_process_files(folder_, r);
    }
    try {
      io::remove_stale_asides(folder_);
    } catch (const Error&) {
      // Another guard of this job has removed the folder.
    }
  }

  Order order_;
  LauncherLink link_;
  fs::path folder_;
  std::map<std::string, WatchedProcess> known_;
  bool stopping_ = false, told_ = false;  // told_: the launcher sent "stop"
  Clock::time_point watched_{};
};

}  // namespace

std::pair<std::string, Order> read_order() {
  std::string frame;
  const auto take = [&](std::size_t bytes) {
    char block[16384];
    while (bytes > 0) {
      const ssize_t n = ::read(STDIN_FILENO, block, std::min(bytes, sizeof block));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail<CommunicationError>("order", "the order from the launcher", "the end of standard input");
      frame.append(block, static_cast<std::size_t>(n));
      bytes -= static_cast<std::size_t>(n);
    }
  };
  while (frame.empty() || frame.back() != '\n') {
    if (frame.size() > 64) (void)frame_length(frame);
    take(1);
  }
  const std::size_t start = frame.size();
  take(frame_length(std::string_view(frame).substr(0, start - 1)));
  Order order = decode(std::string_view(frame).substr(start));
  if (!is_job(order.job) || order.command.empty())
    fail<CommunicationError>("order", "a job and its command", "neither");
  return {std::move(frame), std::move(order)};
}

int exec_ranks() {
  auto [frame, order] = read_order();
  return order.through_mpi ? ProcessGuard(std::move(order)).run(frame) : Agent(std::move(order), false).run();
}

int exec_rank(const std::string& job, const std::string& generation) {
  const char* number = std::getenv("OMPI_COMM_WORLD_RANK");
  const auto rank = tutti::detail::number_between(number == nullptr ? "" : number, 0, 1 << 24);
  if (!is_job(job) || !rank)
    fail<UsageError>("--exec-rank", "the number of a job, and OMPI_COMM_WORLD_RANK in the environment",
                     "something else", "do not call this mode: tutti-launch uses it internally");
  for (const fs::path& folder : job_folders(job)) {
    if (!io::path_exists(order_file(folder))) continue;
    const std::string frame = io::read_text_file(order_file(folder), max_frame + 64);
    Order order = decode(std::string_view(frame).substr(frame.find('\n') + 1));
    if (std::to_string(order.generation) != generation)
      fail<CommunicationError>("mpirun", "generation " + std::to_string(order.generation) + " of job " + job,
                               printable(generation), "this mpirun belongs to another generation or job");
    std::vector<ProcessOrder> mine;
    for (const ProcessOrder& p : order.processes)
      if (p.mpi_rank == *rank) mine.push_back(p);
    if (mine.size() != 1)
      fail<CommunicationError>("mpirun", "rank " + std::to_string(*rank) + " on another host than " + order.host,
                               "it on this host", "mpirun did not place the ranks as the hosts file says");
    order.processes = std::move(mine);
    return Agent(std::move(order), true).run();
  }
  fail<CommunicationError>("mpirun", "the guard of job " + job + " on " + own_node(), "none",
                           "was --exec-rank started by hand?");
}

}  // namespace tutti::launch
