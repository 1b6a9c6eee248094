// SPDX-License-Identifier: MIT
// Tests ControlChannel with an arbiter in this process, over pairs of sockets like those of tutti-launch's agents.
#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/channel_store.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "arbiter_harness.hpp"
#include "data/temp_folder.hpp"
#include "silent_arbiter.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using test::contains;
using test::message_of;
using testing::ArbiterHarness;
using testing::SilentAfterAssignment;

namespace {

[[nodiscard]] control::ArbiterOptions options(int workers, int servers = 0, bool elastic = false) {
  control::ArbiterOptions o;
  o.workers = workers;
  o.servers = servers;
  o.elastic = elastic;
  return o;
}
[[nodiscard]] JobFacts facts(const std::string& model) {
  JobFacts f;
  f.add("model", model);
  return f;
}

// Enrols several members at once, as processes do.
[[nodiscard]] std::vector<Assignment> enrol(std::vector<std::unique_ptr<ControlChannel>>& channels, int workers) {
  std::vector<Assignment> all(channels.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < channels.size(); ++i)
    threads.emplace_back([&, i] {
      const bool worker = static_cast<int>(i) < workers;
      all[i] = channels[i]->enrol(worker ? control::Role::worker : control::Role::server,
                                  static_cast<int>(i) - (worker ? 0 : workers), "h", facts("a"), 20s);
    });
  for (auto& t : threads) t.join();
  return all;
}

template <class F>
void wait_until(F&& f) {
  for (int i = 0; i < 20000 && !f(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(f());
}

}  // namespace

TEST_CASE("processes are admitted, and each can read the texts that others publish") {
  ArbiterHarness harness(options(3, 1));
  std::vector<std::unique_ptr<ControlChannel>> c;
  for (int i = 0; i < 4; ++i) c.push_back(harness.channel());
  const auto all = enrol(c, 3);
  for (int i = 0; i < 4; ++i) {
    CHECK(all[static_cast<std::size_t>(i)].generation == 1);
    CHECK(all[static_cast<std::size_t>(i)].rank == i % 3);
    CHECK(all[static_cast<std::size_t>(i)].workers.size() == 3);
    CHECK(all[static_cast<std::size_t>(i)].servers.size() == 1);
    CHECK(all[static_cast<std::size_t>(i)].rank_timeout == 10s);
  }
  CHECK(all[3].role == control::Role::server);
  CHECK_FALSE(c[0]->find("where").has_value());
  std::thread waits([&] { CHECK(c[1]->lookup("where", 20s) == std::string("a\0b", 3)); });
  c[3]->publish("where", std::string("a\0b", 3));
  waits.join();
  CHECK(c[3]->find("where") == std::string("a\0b", 3));
  c[3]->publish("where", "c");
  CHECK(c[0]->lookup("where", 20s) == "c");
  CHECK(contains(message_of<CommunicationError>([&] { (void)c[0]->lookup("nowhere", 50ms); }),
                 "[control channel] expected 'nowhere' within 50 ms, got no value."));
  CHECK_THROWS_AS(c[0]->publish(std::string(257, 'k'), "x"), UsageError);
  CHECK_THROWS_AS(c[0]->publish("", "x"), UsageError);
  // Runs all operations at once, from several threads of one process.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        c[0]->publish(key, std::string(40000, static_cast<char>('a' + t)));
        const std::string found = c[1]->lookup(key, 20s);
        CHECK((found.size() == 40000 && found.back() == 'a' + t));
      }
    });
  for (auto& t : threads) t.join();
  wait_until([&] { return c[0]->may_write() && c[3]->may_write(); });
  // The arbiter releases the server when all workers have finished.
  for (int i = 0; i < 3; ++i) c[static_cast<std::size_t>(i)]->leave();
  CHECK_FALSE(c[0]->may_write());
  wait_until([&] { return c[3]->released(); });
  // A released process may not write: another process may already have its tasks.
  CHECK_FALSE(c[3]->may_write());
}

TEST_CASE("a wait for a text in the store can be interrupted, and ends when the channel ends") {
  ArbiterHarness harness(options(1));
  const auto c = harness.channel();
  ChannelStore store(*c);
  std::atomic<bool> stopped{false};
  const auto in = [](auto time) { return Deadline(time); };
  store.publish("there", "x");
  CHECK(store.lookup("there", in(20s), stopped) == "x");
  CHECK(store.find("there") == "x");
  CHECK_FALSE(store.find("nowhere").has_value());
  CHECK_FALSE(store.lookup("nowhere", in(50ms), stopped).has_value());
  CHECK_FALSE(store.lookup("nowhere", in(-1s), stopped).has_value());
  // The lookups of an operation share its time.
  const Deadline of_both(50ms);
  CHECK_FALSE(store.lookup("nowhere", of_both, stopped).has_value());
  CHECK(of_both.left() == 0ms);
  CHECK_FALSE(store.lookup("nowhere", of_both, stopped).has_value());
  const auto start = std::chrono::steady_clock::now();
  std::thread waits([&] { CHECK_FALSE(store.lookup("nowhere", in(60s), stopped).has_value()); });
  std::this_thread::sleep_for(50ms);
  stopped = true;
  store.wake();
  waits.join();
  CHECK(std::chrono::steady_clock::now() - start < 20s);
  std::mutex mutex;
  std::string why;
  const auto heard = [&](const std::string& w) {
    const std::lock_guard lock(mutex);
    why = w;
  };
  c->on_end(heard);
  harness.close(0);
  wait_until([&] {
    const std::lock_guard lock(mutex);
    return contains(why, "the end of the connection");
  });
  why.clear();
  c->on_end(heard);  // the end is already known, so the call is immediate
  CHECK(contains(why, "the end of the connection"));
  CHECK_THROWS_AS(store.publish("x", "y"), CommunicationError);
}

TEST_CASE("a refused process, a missing process and a lost arbiter are errors") {
  ArbiterHarness harness(options(2));
  auto first = harness.channel(), again = harness.channel();
  CHECK(contains(
      message_of<CommunicationError>([&] { (void)first->enrol(control::Role::worker, 1, "h", facts("a"), 100ms); }),
      "expected all processes of the job within 100 ms, got no message yet from worker 0"));
  CHECK(contains(message_of<UsageError>([&] { (void)again->enrol(control::Role::worker, 1, "h", facts("a"), 20s); }),
                 "[worker 1 on h] expected an unused number"));
  CHECK_THROWS_AS((void)again->find("x"), UsageError);

  harness.close(0);
  CHECK(contains(message_of<CommunicationError>([&] { (void)first->next_assignment(20s); }),
                 "expected a connection to the job's arbiter"));
  CHECK_THROWS_AS((void)first->find("x"), CommunicationError);
  CHECK_FALSE(first->may_write());
}

TEST_CASE("a loss is reported, and the next generation forms") {
  ArbiterHarness harness(options(3, 0, true));
  std::vector<std::unique_ptr<ControlChannel>> c;
  for (int i = 0; i < 3; ++i) c.push_back(harness.channel());
  (void)enrol(c, 3);
  std::atomic<int> told{0};
  c[0]->on_change([&](const control::MembershipChange& change) { told += static_cast<int>(change.lost.size()); });
  std::thread other([&] { CHECK(c[1]->await_group_ready(20s)); });
  std::thread third([&] { CHECK(c[2]->await_group_ready(20s)); });
  CHECK(c[0]->await_group_ready(20s));
  other.join();
  third.join();
  CHECK_FALSE(c[0]->change().has_value());
  harness.ended(2);
  for (int i = 0; i < 2; ++i) wait_until([&] { return c[static_cast<std::size_t>(i)]->change().has_value(); });
  wait_until([&] { return told == 1; });
  CHECK(c[0]->change()->lost.at(0).name() == "worker 2 on h");
  c[0]->report(4, true, false);
  c[1]->report(5, true, false);
  const Assignment a = c[0]->next_assignment(20s);
  CHECK(a.generation == 2);
  CHECK(a.authority == 1);
  CHECK(a.workers.size() == 2);
  CHECK_FALSE(c[0]->change().has_value());
  // A further member is lost while the group forms.
  (void)c[1]->next_assignment(20s);
  std::thread dies([&] { harness.ended(1); });
  CHECK_FALSE(c[0]->await_group_ready(20s));
  dies.join();
  c[0]->report(5, true, false);
  CHECK(c[0]->next_assignment(20s).workers.size() == 1);
  CHECK(c[0]->await_group_ready(20s));
  // A late message of an old generation must not end a process that continues with the next generation.
  c[0]->publish(generation_key(3, "door"), "x");
  CHECK_THROWS_AS(c[0]->publish(generation_key(1, "door"), "x"), CommunicationError);
  CHECK_FALSE(c[0]->find(generation_key(1, "door")).has_value());
  // A process that the arbiter removed from the job gets a message.
  wait_until([&] {
    try {
      (void)c[2]->find("x");
      return false;
    } catch (const CommunicationError& e) {
      return contains(e.what(), "got one that was removed from the job: SIGKILL");
    }
  });
}

TEST_CASE("a group that loses a member as soon as it is ready was ready") {
  control::MembershipChange loss{};
  loss.generation = 1;
  loss.broken = true;
  ControlChannel c(std::make_unique<SilentAfterAssignment>(std::vector<control::Message>{control::Start{1}, loss}));
  CHECK(c.enrol(control::Role::worker, 0, "h", facts("a"), 20s).generation == 1);
  wait_until([&] { return c.change().has_value(); });
  CHECK(c.await_group_ready(20s));
}

TEST_CASE("setting or removing a callback waits until the previous callback has returned") {
  std::atomic<bool> begun{false}, goes_on{false}, over{false};
  ArbiterHarness harness(options(2, 0, true));
  std::vector<std::unique_ptr<ControlChannel>> c;
  for (int i = 0; i < 2; ++i) c.push_back(harness.channel());
  (void)enrol(c, 2);
  c[0]->on_change([&](const control::MembershipChange&) {
    begun = true;
    wait_until([&] { return goes_on.load(); });
    over = true;
  });
  harness.ended(1);
  wait_until([&] { return begun.load(); });
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);  // a wait that returns too early would return within this time
    goes_on = true;
  });
  c[0]->on_change({});
  CHECK(over);
  other.join();
}

TEST_CASE("a process that asks to leave is released, and the last process stops the job") {
  auto o = options(2, 0, true);
  o.at_epoch = true;
  ArbiterHarness harness(o);
  std::vector<std::unique_ptr<ControlChannel>> c;
  for (int i = 0; i < 2; ++i) c.push_back(harness.channel());
  (void)enrol(c, 2);
  std::thread other([&] { CHECK(c[1]->await_group_ready(20s)); });
  CHECK(c[0]->await_group_ready(20s));
  other.join();
  c[0]->epoch_begins(7);
  wait_until([&] { return harness.ask([](control::Arbiter& a) { return a.epoch(); }) == 7; });
  c[0]->ask_to_leave();
  for (auto& channel : c) wait_until([&] { return channel->change().has_value(); });
  CHECK(c[1]->change()->leaving == 1);
  CHECK_FALSE(c[1]->change()->broken);
  CHECK_FALSE(c[1]->change()->at_epoch);
  for (auto& channel : c) channel->report(4, false, false);
  CHECK_FALSE(c[0]->next_assignment_unless_released(20s).has_value());
  CHECK(c[0]->released());
  CHECK_THROWS_AS((void)c[0]->next_assignment(20s), CommunicationError);
  CHECK(c[1]->next_assignment(20s).workers.size() == 1);

  // A worker that joins at the end of the epoch must not prevent the group from forming.
  std::unique_ptr<ControlChannel> joins = harness.channel();
  std::thread waits([&] {
    CHECK(joins->enrol(control::Role::worker, 2, "h", facts("a"), 20s).generation == 3);
    CHECK(joins->await_group_ready(20s));
  });
  wait_until([&] { return c[1]->change().has_value(); });
  CHECK(c[1]->change()->at_epoch);
  CHECK(c[1]->await_group_ready(20s));
  c[1]->report(5, false, true);
  CHECK(c[1]->next_assignment(20s).workers.size() == 2);
  CHECK(c[1]->await_group_ready(20s));
  waits.join();

  joins->ask_to_leave();
  for (auto* channel : {c[1].get(), joins.get()}) {
    wait_until([&] { return channel->change().has_value(); });
    channel->report(6, false, false);
  }
  CHECK(c[1]->next_assignment(20s).workers.size() == 1);
  CHECK_FALSE(c[1]->stop_requested());
  c[1]->ask_to_leave();
  wait_until([&] { return c[1]->stop_requested(); });
  CHECK_FALSE(c[1]->change().has_value());
}

TEST_CASE("heartbeats keep a busy process in the job, and its lease ends if they are not answered") {
  auto o = options(1);
  o.rank_timeout = 1200ms;
  ArbiterHarness harness(o);
  auto c = harness.channel();
  (void)c->enrol(control::Role::worker, 0, "h", facts("a"), 20s);
  std::this_thread::sleep_for(2500ms);  // computes without a message to the arbiter
  CHECK(c->find("x") == std::nullopt);
  wait_until([&] { return c->may_write(); });
  harness.deaf(true);
  wait_until([&] { return !c->may_write(); });
}

TEST_CASE("a process without a lease waits until the arbiter answers or refuses, or until the time-out") {
  auto o = options(1);
  o.rank_timeout = 1200ms;
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    ArbiterHarness harness(o);
    auto c = harness.channel();
    (void)c->enrol(control::Role::worker, 0, "h", facts("a"), 20s);
    CHECK(c->await_lease());
    harness.deaf(true);
    wait_until([&] { return !c->may_write(); });
    auto right = std::async(std::launch::async, [&] { return c->await_lease(); });
    CHECK(right.wait_for(100ms) == std::future_status::timeout);
    if (answers) harness.deaf(false);
    CHECK(right.get() == answers);
    CHECK(c->may_write() == answers);
    harness.deaf(false);
  }
  ArbiterHarness harness(o);
  auto c = harness.channel();
  (void)c->enrol(control::Role::worker, 0, "h", facts("a"), 20s);
  CHECK(c->await_lease());
  harness.deaf(true);
  wait_until([&] { return !c->may_write(); });
  auto right = std::async(std::launch::async, [&] { return c->await_lease(); });
  harness.ask([](control::Arbiter& a) { a.tick(control::now() + 100s); });  // removes the process from the job
  CHECK_THROWS_WITH_AS(right.get(), doctest::Contains("removed from the job: no message"), CommunicationError);
}

TEST_CASE("a process detects an arbiter that is silent after the assignment") {
  ControlChannel c(std::make_unique<SilentAfterAssignment>());
  std::promise<std::string> ended;
  c.on_end([&](const std::string& why) { ended.set_value(why); });
  CHECK(c.enrol(control::Role::worker, 0, "h", facts("a"), 20s).generation == 1);
  auto why = ended.get_future();
  REQUIRE(why.wait_for(60s) == std::future_status::ready);
  CHECK(why.get() == "no answer");
}

TEST_CASE("a control channel is opened only if TUTTI_CONTROL names a socket that preserves message boundaries") {
  for (const char* none : {"", "2", "x", "999999"}) {
    ::setenv("TUTTI_CONTROL", none, 1);
    CHECK(ControlChannel::open() == nullptr);
  }
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  const io::Descriptor a(ends[0]), b(ends[1]);
  ::setenv("TUTTI_CONTROL", std::to_string(a.get()).c_str(), 1);
  CHECK(ControlChannel::open() == nullptr);
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) == 0);
  const io::Descriptor other(ends[1]);
  ::setenv("TUTTI_CONTROL", std::to_string(ends[0]).c_str(), 1);
  const auto channel = ControlChannel::open();
  CHECK(channel != nullptr);
  CHECK(ControlChannel::open() == nullptr);  // TUTTI_CONTROL is used once
  ::unsetenv("TUTTI_CONTROL");
}
