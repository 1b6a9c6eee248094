// SPDX-License-Identifier: MIT
// header-only
// Stands in for a worker of an elastic job. A step is a sleep that ends when all members have
// begun it; they tell each other by texts of the channel.
//   elastic_rank [WHAT]...   steps=MS: of a step; epoch=N: steps; epochs=N; load=MS: before a newcomer asks for
//   admission;
//                            after=FILE: a first worker that does not die asks for admission when the file exists, and
//                            prints that it waits;
//                            dies=N:HOW: worker N of the first ones, may be repeated; HOW: an exit code, kill, or
//                            asked: killed after it has asked for admission; facts=TEXT: of a newcomer; die: a newcomer
//                            dies at once; rigid: reports that its members cannot change; out=FILE: "GENERATION STEP
//                            NUMBER TIME_NS" for each step of each member; writes=FILE: "NUMBER TIME_NS", as long as it
//                            may write
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>

namespace {

using namespace tutti;
using std::chrono::milliseconds;

std::atomic<bool> terminated{false};

// The vote of a member in a step. The result is the largest vote.
enum : int { nothing = 0, at_epoch = 1, at_step = 2, stop = 3, broken = 9 };

[[nodiscard]] long long time_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns HOW of the argument "dies=N:HOW" for this worker.
[[nodiscard]] std::string death_of(int number, int argc, char** argv) {
  const std::string begin = "dies=" + std::to_string(number) + ":";
  for (int i = 1; i < argc; ++i)
    if (const std::string_view word(argv[i]); word.starts_with(begin)) return std::string(word.substr(begin.size()));
  return "";
}

class Worker {
 public:
  Worker(ControlChannel& channel, milliseconds step, int epoch, int epochs, const std::string& out)
      : channel_(channel), pause_(step), epoch_(epoch), last_(epoch * epochs), out_(out, std::ios::app) {}

  int run(Assignment a) {
    for (;;) {
      a_ = std::move(a);
      std::printf("generation %d: rank %d of %zu, authority %d\n", static_cast<int>(a_.generation), a_.rank,
                  a_.workers.size(), static_cast<int>(a_.authority));
      std::fflush(stdout);
      const int why =
          channel_.await_group_ready(std::chrono::seconds(60)) && take_over() ? work() : static_cast<int>(broken);
      if (why == nothing) return std::printf("done at step %d\n", step_) < 0 ? 1 : 0;
      if (why == stop) {
        std::printf("saved at step %d\n", step_);
        return 143;
      }
      channel_.report(static_cast<std::uint64_t>(step_), why == broken, step_ % epoch_ == 0);
      auto next = channel_.next_assignment_unless_released(std::chrono::seconds(600));
      if (!next) return std::printf("let go at step %d\n", step_) < 0 ? 1 : 0;
      a = *std::move(next);
    }
  }

 private:
  [[nodiscard]] std::string key(const std::string& what, int place) const {
    return what + "/" + std::to_string(a_.generation) + "/" + std::to_string(place);
  }
  [[nodiscard]] bool lost() const {
    const auto change = channel_.change();
    return change && (change->broken || change->generation > a_.generation);
  }
  // Returns the text of a member, or an empty text after a loss.
  [[nodiscard]] std::string wait_for(const std::string& name) {
    for (; !lost(); std::this_thread::sleep_for(milliseconds(2)))
      if (auto value = channel_.find(name)) return *value;
    return "";
  }
  // Takes the step number of the authority.
  [[nodiscard]] bool take_over() {
    if (a_.id == a_.authority) channel_.publish(key("state", 0), std::to_string(step_));
    const std::string state = wait_for(key("state", 0));
    if (!state.empty()) step_ = std::atoi(state.c_str());
    return !state.empty();
  }
  // Does steps, and returns the reason for the end.
  [[nodiscard]] int work() {
    const int mine = a_.workers.at(static_cast<std::size_t>(a_.rank)).place;
    while (step_ < last_) {
      if (a_.rank == 0 && step_ % epoch_ == 0) channel_.epoch_begins(static_cast<std::uint64_t>(step_ / epoch_));
      if (terminated.exchange(false)) channel_.ask_to_leave();
      const auto change = channel_.change();
      int most = channel_.stop_requested() ? static_cast<int>(stop)
                 : !change                 ? static_cast<int>(nothing)
                 : change->at_epoch        ? static_cast<int>(at_epoch)
                                           : static_cast<int>(at_step);
      const std::string step = "step/" + std::to_string(step_);
      channel_.publish(key(step, mine), std::to_string(most));
      for (const auto& m : a_.workers) {
        const std::string word = wait_for(key(step, m.place));
        if (word.empty()) return broken;
        most = std::max(most, std::atoi(word.c_str()));
      }
      std::this_thread::sleep_for(pause_);
      ++step_;
      if (channel_.may_write()) out_ << a_.generation << ' ' << step_ << ' ' << mine << ' ' << time_ns() << std::endl;
      if (most == stop || most == at_step || (most == at_epoch && step_ % epoch_ == 0)) return most;
    }
    return nothing;
  }

  ControlChannel& channel_;
  milliseconds pause_;
  int epoch_, last_, step_ = 0;
  Assignment a_{};
  std::ofstream out_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string out = "/dev/null", writes = "/dev/null", fact = "same", after;
    int steps = 20, epoch = 5, epochs = 3, load = 0;
    bool rigid = false, die = false;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word(argv[i]);
      const std::string value(word.substr(word.find('=') + 1));
      if (word.starts_with("steps=")) steps = std::atoi(value.c_str());
      if (word.starts_with("epoch=")) epoch = std::atoi(value.c_str());
      if (word.starts_with("epochs=")) epochs = std::atoi(value.c_str());
      if (word.starts_with("out=")) out = value;
      if (word.starts_with("after=")) after = value;
      if (word.starts_with("writes=")) writes = value;
      if (word.starts_with("load=")) load = std::atoi(value.c_str());
      if (word.starts_with("facts=")) fact = value;
      if (word == "rigid") rigid = true;
      if (word == "die") die = true;
    }
    if (is_launcher_query()) {
      LaunchInfo answer;
      answer.strategy = "test";
      answer.elastic = !rigid;
      return answer_launcher_query(answer);
    }
    std::signal(SIGTERM, [](int) { terminated = true; });
    const LaunchEnvironment e = read_launch_environment();
    if (e.new_worker) {
      std::printf("joins as %d of %d in epoch %d, elastic %d\n", e.rank, e.workers, e.epoch_begin, e.elastic ? 1 : 0);
      std::fflush(stdout);
      if (die) return 7;
      std::this_thread::sleep_for(milliseconds(load));
    }
    const std::string death = e.new_worker ? "" : death_of(e.rank, argc, argv);
    if (death == "kill") (void)std::raise(SIGKILL);
    if (!death.empty() && death != "asked") return std::atoi(death.c_str());
    if (death.empty() && !e.new_worker && !after.empty()) {
      std::printf("waits\n");
      std::fflush(stdout);
      while (!std::ifstream(after)) std::this_thread::sleep_for(milliseconds(20));
    }
    const auto channel = ControlChannel::open();
    if (channel == nullptr) return 4;
    JobFacts facts;
    facts.add("model", e.new_worker ? fact : "same");
    if (death == "asked") {
      channel->ask_to_enrol(control::Role::worker, e.rank, e.host, facts);
      std::this_thread::sleep_for(milliseconds(300));
      (void)std::raise(SIGKILL);
    }
    Worker worker(*channel, milliseconds(steps), epoch, epochs, out);
    const std::jthread writer([&](const std::stop_token& over) {
      std::ofstream file(writes, std::ios::app);
      for (; !over.stop_requested(); std::this_thread::sleep_for(milliseconds(20)))
        if (channel->may_write()) file << e.rank << ' ' << time_ns() << std::endl;
    });
    return worker.run(channel->enrol(e, facts, std::chrono::seconds(600)));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
