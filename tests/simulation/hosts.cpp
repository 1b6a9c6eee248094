// SPDX-License-Identifier: MIT
// Simulates the files through which launchers, agents and users of one host or of a shared folder meet: the watcher of
// the hosts file of an elastic job and its table of hosts, `tutti-launch --launch-worker`, and the folders of jobs.
// Every fourth seed runs a whole elastic job with its launcher (elastic_launch.hpp).
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "elastic_launch.hpp"
#include "file_processes.hpp"
#include "interposed_files.hpp"
#include "interposed_hosts.hpp"
#include "interposed_threads.hpp"
#include "random.hpp"
#include "simulation.hpp"
#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/elastic/elastic_log.hpp"
#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/job/job_folder.hpp"

namespace tutti::simulation {
namespace {

namespace fs = std::filesystem;

// The hosts of a file with their slots, as the launcher uses them.
using Hosts = std::vector<std::pair<std::string, int>>;

[[nodiscard]] Hosts hosts_of(const std::vector<launch::ListedHost>& listed) {
  Hosts hosts;
  for (const auto& l : listed) hosts.emplace_back(l.key, l.host.slots);
  return hosts;
}

class Files : private FileProcesses {
 public:
  explicit Files(Simulation& simulation) : FileProcesses(simulation), files_(simulation.network) {
    fs::create_directory("job");
    file_ = fs::path("job") / "host_worker";
  }

  void run() {
    const auto kind = plan_.below(4);
    if (kind == 0) return jobs();
    watch(kind == 1);
  }

 private:
  static constexpr const char* hosts_at_begin = "h1\n";

  // ---- the hosts file ----
  // by_hand: several processes add a line each; otherwise a user edits the file in all ways.
  void watch(bool by_hand) {
    const std::size_t editors = by_hand ? 1 + plan_.below(4) : 1;
    const bool early = by_hand && plan_.one_in(2);  // the job starts while hosts are added
    const Nanos spread = early ? short_time() : 0;
    // The files of an earlier job.
    old_files_ = early && Random(simulation_.options.seed, 9).one_in(2);
    if (old_files_) {
      launch::replace_hosts_file(file_, "h9\n");
      std::ofstream(file_.parent_path() / "host_worker_log") << "0 ADDED h9 1\n";
    }
    start("launcher", [this, spread](Process&) {
      sleep(0, spread);
      launch();
    });
    if (!early) await([this] { return ready_; }, "the launcher's start");
    std::vector<Process*> edits;
    for (std::size_t i = 0; i < editors; ++i)
      edits.push_back(&start("editor" + std::to_string(i), [this, by_hand, early, spread, i](Process&) {
        if (!by_hand) return edit_file();
        sleep(0, early ? spread : s_.noise().one_in(2) ? 2 * ms : second);
        // A script may look for the job until it runs, or for a shorter time.
        const auto log = file_.parent_path() / "host_worker_log";
        const bool patient = Random(simulation_.options.seed, 30 + i).one_in(2);
        for (int tries = !early ? 0 : patient ? 300 : 20; tries > 0 && !launch::MembershipLog::in_use(log); --tries)
          sleep(0, patient ? std::max(spread, ms) : spread);
        add_by_hand("h" + std::to_string(20 + i));
      }));
    if (!by_hand) made_.resize(1);  // a user is not disturbed
    disturb(8 * second, false);
    await([&] { return std::none_of(edits.begin(), edits.end(), [](const Process* p) { return p->runs(); }); },
          "the end of the edits");
    for (const Process* p : edits) {
      const bool too_early = early && p->error.find("expected a running job") != std::string::npos;
      if (p->code != 0 && !too_early) s_.fail(p->name + " failed: " + p->error);
    }
    await([this] { return ready_ || !made_.front()->runs(); }, "the launcher's start");
    if (!made_.front()->runs()) s_.fail("the launcher failed: " + made_.front()->error);
    // The launcher then has the content of the file, if it is valid.
    Hosts last = versions_.back();
    if (by_hand) last = hosts_of(launch::with_keys(read_hosts_file(file_)));
    if (by_hand) added_.insert("h1");  // the job begins with it
    for (const std::string& host : added_)
      if (std::none_of(last.begin(), last.end(), [&](const auto& h) { return h.first == key(host); }))
        s_.fail(host + " was added, and the hosts file does not have it");
    versions_.push_back(last);
    await([&] { return accepted_ == last; }, "the last edit of the hosts file");
    over_ = true;
    await([this] { return !launcher_runs_; }, "the launcher's end");
  }
  void launch() {
    launcher_runs_ = true;
    launch::MembershipLog log(file_.parent_path() / "host_worker_log");
    // The launcher asks for the addresses of its hosts before it writes them.
    if (old_files_) (void)launch::with_keys(parse_hosts(hosts_at_begin, "job"));
    launch::replace_hosts_file(file_, hosts_at_begin);
    log.hosts_are_written();
    accepted_ = {{key("h1"), 1}};
    versions_.push_back(accepted_);
    launch::HostsWatch watch(file_, hosts_at_begin);
    ready_ = true;
    while (!over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const auto update = watch.take();
      if (!update.problem.empty()) {
        // After the hosts that the update also has, the same problem is a new one.
        if (update.problem == problem_ && !update.hosts) s_.fail("a problem is reported twice: " + problem_);
        problem_ = update.problem;
        s_.note("problem: " + problem_);
      }
      if (!update.hosts) continue;
      problem_.clear();
      accepted_ = hosts_of(*update.hosts);
      std::string text;
      for (const auto& [name, slots] : accepted_) text += " " + name + "*" + std::to_string(slots);
      s_.note("the hosts are" + text);
      if (!is_version(accepted_)) s_.fail("the launcher takes hosts that no complete file had:" + text);
    }
    launcher_runs_ = false;
  }
  [[nodiscard]] bool is_version(const Hosts& hosts) const {
    return !added_.empty() || adding_ > 0 || std::find(versions_.begin(), versions_.end(), hosts) != versions_.end();
  }
  [[nodiscard]] static std::string key(const std::string& host) { return "10.9.8." + host.substr(1); }

  void add_by_hand(const std::string& host) {
    launch::Options o;
    o.elastic.folder = file_.parent_path();
    o.elastic.host = host;
    ++adding_;
    if (launch::add_host_by_hand(o) == 0) added_.insert(host);
    files_.moved(file_);
  }
  // Edits the file several times. In most of these edits a reader can see a half-written file.
  void edit_file() {
    Random r(simulation_.options.seed, 7);
    for (std::size_t i = 0, n = 1 + r.below(6); i < n; ++i) {
      if (simulation_.options.without.contains(100 + i)) continue;
      const std::string text = random_text(r);
      const auto way = r.below(6);
      Nanos pause = r.one_in(3) ? r.between(950 * ms, 1100 * ms) : r.between(0, 3 * second);
      // The next edit may begin while the launcher reads this one.
      if (Random at_once(simulation_.options.seed, 200 + i); at_once.one_in(3)) pause = at_once.between(ms, 4 * ms);
      s_.note("fault " + std::to_string(100 + i) + ": edit " + std::to_string(way));
      if (way == 0) {
        rename_to(r.one_in(2) ? "h1 slots=many\n" : "# nothing\n\n");  // the hosts stay
      } else if (way == 1) {
        (void)::unlink(file_.c_str());
        sleep(0, 2 * second);
        complete(text);
        rename_to(text);
      } else if (way <= 3) {
        complete(text);
        rename_to(text);
      } else {
        complete(text);
        write_in_place(r, text);
      }
      sleep(pause, pause);
    }
    const std::string text = random_text(r);
    complete(text);
    r.one_in(3) ? write_in_place(r, text) : rename_to(text);
  }
  // The launcher may take this content from now on.
  void complete(const std::string& text) {
    versions_.push_back(hosts_of(launch::with_keys(parse_hosts(text, "edit"))));
  }
  void rename_to(const std::string& text) {
    launch::replace_hosts_file(file_, text);
    files_.moved(file_);
  }
  // No pause is as long as a second: after that a reader may take the file as complete.
  void write_in_place(Random& r, const std::string& text) {
    const int file = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    files_.touch(file_);
    for (std::size_t at = 0; at < text.size();) {
      sleep(0, r.one_in(2) ? 900 * ms : ms);
      const std::size_t size = std::min<std::size_t>(1 + r.below(12), text.size() - at);
      if (::write(file, text.data() + at, size) != static_cast<ssize_t>(size)) s_.fail("no room for the hosts file");
      files_.touch(file_);
      at += size;
    }
    (void)::close(file);
  }
  [[nodiscard]] static std::string random_text(Random& r) {
    std::string text;
    for (std::size_t i = 0, n = 1 + r.below(5); i < n; ++i) {
      const std::string number = std::to_string(1 + i + 3 * r.below(9));
      const std::string line = (r.one_in(4) ? "node" : "h") + number +
                               (r.one_in(2) ? " slots=" + std::to_string(1 + r.below(4)) : "") +
                               (r.one_in(4) ? "  # a comment" : "") + (r.one_in(6) ? "\r\n" : "\n");
      bool other = false;  // equal names with other slots are an error
      for (const char* name : {"h", "node"}) other = other || text.find(name + number) != std::string::npos;
      if (other) continue;
      text += line;
      if (r.one_in(5)) text += line;
    }
    return text;
  }

  // ---- job folders ----
  void jobs() {
    std::deque<std::string> names;
    const bool kills = plan_.one_in(2);
    spread_ = short_time();
    // Without a copy of the working folder and without mpirun, a launcher needs no files. Short jobs end at once.
    const bool launchers = plan_.one_in(2);
    short_ = plan_.one_in(2);
    for (std::size_t i = 0, n = 1 + plan_.below(3); i < n; ++i) names.push_back("00000000000000a" + std::to_string(i));
    for (const std::string& job : names) {
      if (launchers) start("launcher of " + job, [this, &job](Process&) { launcher_of(job); });
      for (std::uint64_t i = plan_.below(4); i > 0; --i)
        start("agent " + std::to_string(i) + " of " + job, [this, &job, i](Process& p) { agent_of(job, i, p); });
    }
    start("reader", [this](Process&) { read_all(); });
    disturb(200 * ms, kills);
    await([this] { return std::none_of(made_.begin(), made_.end(), [](const Process* p) { return p->runs(); }); },
          "the end of the jobs");
    for (const Process* p : made_)
      if (p->state == Process::State::exited && p->code != 0) s_.fail(p->name + " failed: " + p->error);
    if (!killed_) {
      if (fs::exists("state")) s_.fail("jobs that have ended leave a folder");
      return;
    }
    // The next job removes what killed launchers have left.
    start("next launcher", [this](Process&) {
      launcher_of("00000000000000ff");
      for (const auto& folder : launch::job_folders(""))
        if (fs::exists(folder / "rsh-agent.hosts")) s_.fail("files of a lost launcher are left");
    });
    await([this] { return !made_.back()->runs(); }, "the end of the next job");
    if (made_.back()->code != 0) s_.fail("the next job failed: " + made_.back()->error);
  }
  // Reads the records of all jobs, as --kill does.
  void read_all() {
    for (int i = 0; i < 10; ++i) {
      sleep(0, s_.noise().one_in(2) ? spread_ : 20 * ms);
      for (const auto& folder : launch::job_folders("")) {
        std::error_code gone;
        for (const auto& entry : fs::directory_iterator(folder, gone))
          if (entry.path().extension() == ".process" && !launch::read_record(entry.path()) && fs::exists(entry.path()))
            s_.fail("the record of a process is not complete");
      }
    }
  }
  void launcher_of(const std::string& job) {
    sleep(0, spread_);
    launch::JobFolder folder;
    launch::Plan plan;
    plan.job = job;
    folder.make(plan, launch::Options());
    for (std::uint64_t i = s_.noise().below(4); i > 0; --i) {
      sleep(0, 30 * ms);
      if (!fs::exists(folder.path() / "rsh-agent.hosts")) s_.fail("a running launcher has lost its files");
    }
    folder.remove();
  }
  void agent_of(const std::string& job, std::uint64_t rank, const Process& p) {
    sleep(0, spread_);
    const fs::path folder = launch::make_job_folder(job);
    launch::Record r;
    r.job = job;
    r.rank = static_cast<int>(rank);
    r.pid = r.agent = 1000 + p.number;
    r.start = r.agent_start = static_cast<std::uint64_t>(p.number);
    r.node = launch::own_node();
    r.host = "h1";
    const fs::path progress = folder / (r.stem() + ".progress");
    launch::with_job_folder(job, [&](const fs::path&) { launch::write_aside(progress, "0\n"); });
    launch::write_record(folder, r);
    for (std::uint64_t i = short_ ? 0 : s_.noise().below(4); i > 0; --i) {
      sleep(0, 30 * ms);
      const auto all = launch::read_records(folder);
      if (std::none_of(all.begin(), all.end(), [&](const auto& x) { return x.rank == r.rank; }) ||
          !fs::exists(progress))
        s_.fail("an agent has lost its files");
    }
    launch::remove_process_files(folder, r);
    launch::remove_files_of_lost_launcher(folder, std::chrono::milliseconds(50));
    launch::remove_job_folder(folder);
  }

  WatchedFiles files_;
  fs::path file_;
  std::vector<Hosts> versions_;  // complete contents of the hosts file
  Hosts accepted_;
  std::set<std::string> added_;
  std::string problem_;
  int adding_ = 0;
  Nanos spread_ = ms;
  bool old_files_ = false, ready_ = false, over_ = false, launcher_runs_ = false, short_ = false;
};

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  return run_schedules(argc, argv, [](Simulation& s) {
    if (s.options.seed % 4 == 3)
      ElasticLaunch(s).run();
    else
      Files(s).run();
  });
}
