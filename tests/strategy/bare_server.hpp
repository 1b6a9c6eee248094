// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>

#include "server_ranks.hpp"

namespace tutti::testing {

// A server, and a worker end that can send any frame to it.
struct Bare {
  ps::ThreadNetwork network{1};
  std::vector<std::string> log;
  ps::Server<ps::ThreadServerEnd> server;
  std::unique_ptr<ps::ThreadWorkerEnd> end = std::make_unique<ps::ThreadWorkerEnd>(network);
  std::thread thread;
  std::string error;

  explicit Bare(int workers, std::size_t in_flight = ps::usual_in_flight, ProcessWindows* windows = nullptr)
      : server(std::make_unique<ps::ThreadServerEnd>(network, 0), options(workers, in_flight, windows)), thread([this] {
          try {
            server.run();
          } catch (const Error& e) {
            error = e.what();
          }
        }) {}
  ~Bare() { stop(); }
  void stop() {
    server.stop();
    if (thread.joinable()) thread.join();
  }
  ps::ServerOptions options(int workers, std::size_t in_flight, ProcessWindows* windows) {
    auto o = server_options({.workers = workers, .in_flight = in_flight}, 0);
    o.windows = windows;
    o.log = [this](const std::string& line) { log.push_back(line); };
    return o;
  }
  static void hello(ps::ThreadWorkerEnd& from, std::uint32_t worker, std::uint64_t session, std::uint32_t workers,
                    std::uint64_t generation = 1, std::uint64_t big_array = 1000) {
    const auto greeting = ps::encode(ps::Greeting{0, workers, 1, big_array, ""});
    ps::Frame f;
    f.worker = worker;
    f.session = session;
    f.generation = generation;
    f.bytes = static_cast<std::uint32_t>(greeting.size());
    from.send(0, ps::encode(f), greeting, nullptr);
  }
  static ps::Frame push(std::uint32_t worker, std::uint64_t session, std::uint64_t round, std::uint64_t offset = 0) {
    ps::Frame f;
    f.kind = ps::FrameKind::push;
    f.dtype = DType::f32;
    f.worker = worker;
    f.session = session;
    f.generation = 1;
    f.round = round;
    f.offset = offset;
    f.bytes = 8;
    f.patience = 60'000;
    f.step = 1;
    return f;
  }
  static void send(ps::ThreadWorkerEnd& from, const ps::Frame& f, std::vector<float> data) {
    from.send(0, ps::encode(f), std::as_bytes(std::span(data)), nullptr);
  }
  // A frame that a worker has received, with its data as text or as numbers.
  struct Heard {
    ps::Frame frame;
    std::string text;
    std::vector<float> values;
  };
  static Heard hear(ps::ThreadWorkerEnd& at) {
    const auto e = at.receive(std::chrono::steady_clock::now() + std::chrono::seconds(20));
    std::string_view why;
    const auto f = ps::decode(e.message.head(), e.message.data().size(), why);
    REQUIRE(f);
    Heard h;
    h.frame = *f;
    h.text.assign(reinterpret_cast<const char*>(e.message.data().data()), e.message.data().size());
    h.values.resize(h.text.size() / sizeof(float));
    if (!h.values.empty()) std::memcpy(h.values.data(), h.text.data(), h.values.size() * sizeof(float));
    return h;
  }
};

}  // namespace tutti::testing
