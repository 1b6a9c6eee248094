// SPDX-License-Identifier: MIT
// header-only
// Stands in for a process of a job that opens its channel: it is admitted, publishes its address, looks up all other
// processes, and follows its arguments.
//   control_rank [WHAT]...   facts=TEXT: states these facts; wait: waits for the loss of another process; exit=CODE;
//                            sleep=MS; enrol=MS: waits for the other processes; serve=MS: serves until the workers
//                            are done, and then saves for this time; generations=N: a worker waits for N generations;
//                            nonsense: sends unknown messages
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>

int main(int argc, char** argv) {
  using namespace tutti;
  using std::chrono::milliseconds;
  try {
    std::string fact = "same";
    int code = 0, sleep = 0, enrol = 20000, serve = -1, generations = 1;
    bool wait = false, nonsense = false;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word(argv[i]);
      const std::string value(word.substr(word.find('=') + 1));
      if (word.starts_with("facts=")) fact = value;
      if (word.starts_with("exit=")) code = std::atoi(value.c_str());
      if (word.starts_with("sleep=")) sleep = std::atoi(value.c_str());
      if (word.starts_with("enrol=")) enrol = std::atoi(value.c_str());
      if (word.starts_with("serve=")) serve = std::atoi(value.c_str());
      if (word.starts_with("generations=")) generations = std::atoi(value.c_str());
      if (word == "wait") wait = true;
      if (word == "nonsense") nonsense = true;
    }
    // SIGTERM arrives immediately after the update.
    if (wait) std::signal(SIGTERM, SIG_IGN);
    const LaunchEnvironment e = read_launch_environment();
    if (nonsense) {
      const auto link = control::link_of_environment();
      for (int i = 0; i < 3; ++i) link->send("nonsense");
      std::this_thread::sleep_for(milliseconds(500));
      return 0;
    }
    const auto channel = ControlChannel::open();
    if (channel == nullptr) {
      std::puts("no channel");
      return 4;
    }
    JobFacts facts;
    facts.add("model", fact);
    const Assignment a = channel->enrol(e, facts, milliseconds(enrol));
    std::printf("generation %d: %s %d of %zu workers and %zu servers\n", static_cast<int>(a.generation),
                control::name_of(a.role), a.rank, a.workers.size(), a.servers.size());
    // The text has bytes of all kinds, and is larger than a frame.
    std::string text = "secret-of-" + e.role + std::to_string(e.rank) + std::string("\0\n\xff", 3);
    text.resize(60000, 'x');
    channel->publish("where/" + e.role + "/" + std::to_string(e.rank), text);
    std::size_t bytes = 0;
    for (const auto* list : {&a.workers, &a.servers})
      for (const auto& m : *list) {
        const std::string key = std::string("where/") + control::name_of(m.role) + "/" + std::to_string(m.place);
        const std::string found = channel->lookup(key, milliseconds(20000));
        if (found.find("secret-of-" + std::string(control::name_of(m.role))) == 0) bytes += found.size();
      }
    std::printf("found %zu bytes, %s\n", bytes, channel->find("nothing") ? "and nothing" : "no nothing");
    std::fflush(stdout);
    if (a.role == control::Role::server && serve >= 0) {
      while (!channel->released()) std::this_thread::sleep_for(milliseconds(5));
      std::this_thread::sleep_for(milliseconds(serve));
      std::puts("saved");
      return code;
    }
    for (Assignment b = a; b.generation < static_cast<std::uint64_t>(generations);) {
      b = channel->next_assignment(milliseconds(20000));
      std::printf("generation %d: server 0 has id %d, its text begins with %s\n", static_cast<int>(b.generation),
                  static_cast<int>(b.servers.at(0).id),
                  channel->find("where/server/0").value_or("").substr(0, 9).c_str());
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(milliseconds(sleep));
    if (wait)
      for (;;) {
        if (const auto c = channel->change(); c && !c->lost.empty()) {
          std::printf("lost %s\n", c->lost.front().name().c_str());
          return 5;
        }
        std::this_thread::sleep_for(milliseconds(5));
      }
    return code;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
