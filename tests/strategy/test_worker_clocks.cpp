// SPDX-License-Identifier: MIT
// Tests the clocks of workers on a server that owns weights: with a limited staleness, a worker that joins while the
// server does not know how far the others are must not wait for them forever, nor they for it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <tutti/strategy/parameter_server/server/owned_operations.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>

using namespace tutti;

namespace {

constexpr std::uint32_t old_one = 0, new_one = 1;

ArenaLayout layout() {
  ArenaLayout l;
  l.append("w", Shape{16});
  return l;
}

// One of the servers of a job with two workers and a staleness of one step.
class Server {
 public:
  explicit Server(const ps::ServerState* from = nullptr)
      : store_(layout(), 0, {}, [](const ServerPart&) {}), owned_(store_, 1, 2, replies()) {
    if (from != nullptr) owned_.restore(*from);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  void begin(std::uint32_t worker, std::uint64_t session) { owned_.begin(worker, session); }
  void leave(std::uint32_t worker) { owned_.leave(worker); }
  void seal() {
    ps::Frame f;
    f.kind = ps::FrameKind::push;
    f.operation = ps::Operation::store;
    f.dtype = DType::f32;
    f.bytes = sizeof data_;
    send(f, std::as_bytes(std::span(data_)));
    f.root = ps::arena::seal;
    f.dtype = DType::u8;
    f.bytes = sizeof(std::int64_t);
    send(f, std::as_bytes(std::span(data_)).first(f.bytes));
  }
  // Pushes a step of a worker. Returns whether it was answered.
  bool push(std::uint32_t worker, std::uint64_t step) {
    ps::Frame f;
    f.kind = ps::FrameKind::push;
    f.operation = ps::Operation::apply;
    f.dtype = DType::f32;
    f.bytes = sizeof data_;
    f.root = ps::arena::weights;
    f.worker = worker;
    f.step = step;
    return send(f, std::as_bytes(std::span(data_)));
  }
  [[nodiscard]] bool answered(std::uint32_t worker, std::uint64_t step) const {
    return answered_.contains({worker, step});
  }
  [[nodiscard]] ps::ServerState save() const {
    ps::ServerState s;
    owned_.save(s);
    return s;
  }

 private:
  ps::OwnedOperations::Replies replies() {
    ps::OwnedOperations::Replies r;
    r.answer = [this](const ps::Frame& f, std::span<const std::byte>) { answered_.insert({f.worker, f.step}); };
    r.refuse = [](const ps::Frame&, const std::string& why) { FAIL(why); };
    return r;
  }
  bool send(ps::Frame f, std::span<const std::byte> data) {
    f.round = ++round_;
    (void)owned_.take(f, data, f.round, 1);
    return answered(f.worker, f.step);
  }

  float data_[16]{};
  std::uint64_t round_ = 0;
  ps::WeightStore store_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> answered_;
  ps::OwnedOperations owned_;
};

// Returns the state of a server after the old worker has done this number of steps.
ps::ServerState after(std::uint64_t steps) {
  Server s;
  s.begin(old_one, 7);
  s.seal();
  for (std::uint64_t i = 1; i <= steps; ++i) CHECK(s.push(old_one, i));
  return s.save();
}

}  // namespace

TEST_CASE("a new worker of a restarted server begins where the others are, also if they have lost no steps") {
  const ps::ServerState kept = after(20);
  for (const std::uint64_t next : {21, 26}) {  // its first step after the restart: 0 or 5 steps are lost
    CAPTURE(next);
    Server s(&kept);
    s.begin(new_one, 8);
    CHECK(s.push(new_one, 1));
    s.begin(old_one, 7);
    CHECK(s.push(old_one, next));
    CHECK(s.push(new_one, 2));
    CHECK(s.push(old_one, next + 1));
  }
}

TEST_CASE("no worker waits for one whose clock a restarted server does not know yet") {
  Server before;
  before.begin(old_one, 7);
  before.seal();
  before.begin(new_one, 8);
  for (const std::uint64_t i : {1, 2, 3}) {
    CHECK(before.push(old_one, i));
    CHECK(before.push(new_one, i));
  }
  const ps::ServerState kept = before.save();
  Server s(&kept);
  s.begin(old_one, 7);
  s.begin(new_one, 8);
  CHECK(s.push(new_one, 6));  // the old worker has done more steps, and may wait for this one on another server
  CHECK_FALSE(s.push(old_one, 9));
  CHECK(s.push(new_one, 7));
  CHECK_FALSE(s.answered(old_one, 9));
  CHECK(s.push(new_one, 8));
  CHECK(s.answered(old_one, 9));
}

TEST_CASE("a server that is restarted twice still knows that a worker's clock is not reliable") {
  const ps::ServerState kept = after(20);
  ps::ServerState again;
  {
    Server s(&kept);
    s.begin(new_one, 8);
    CHECK(s.push(new_one, 1));
    again = s.save();
  }
  Server s(&again);
  s.begin(new_one, 8);
  CHECK(s.push(new_one, 2));
  s.begin(old_one, 7);
  for (const std::uint64_t i : {0, 1, 2}) {
    CHECK(s.push(old_one, 26 + i));
    if (i > 0) CHECK(s.push(new_one, 2 + i));  // it has done two steps while the other one was away
  }
  // A later restart does not raise its clock once more.
  const ps::ServerState last = s.save();
  Server t(&last);
  t.begin(new_one, 8);
  t.begin(old_one, 7);
  for (const std::uint64_t i : {0, 1, 2}) {
    CHECK(t.push(old_one, 29 + i));
    CHECK(t.push(new_one, 5 + i));
  }
}

TEST_CASE("a new worker that connects while the connections of the others are broken begins where they are") {
  Server s;
  s.begin(old_one, 7);
  s.seal();
  s.begin(new_one, 8);
  s.leave(new_one);
  for (std::uint64_t i = 1; i <= 20; ++i) CHECK(s.push(old_one, i));
  s.leave(old_one);
  s.begin(new_one, 9);
  s.begin(old_one, 7);
  CHECK(s.push(new_one, 1));
  CHECK(s.push(old_one, 21));
}
