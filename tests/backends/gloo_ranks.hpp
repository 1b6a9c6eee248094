// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

inline const SecureStreams* usual_streams = nullptr;  // of configurations that do not say otherwise

// A configuration of ranks that are threads of this process and communicate over Gloo as if they were processes on
// these hosts.
struct GlooWay {
  std::string name;
  std::vector<std::string> hosts;
  bool shared_memory = true, hierarchical = true;
  WireType wire = WireType::same;
  std::string address = "127.0.0.1";
  const SecureStreams* streams = usual_streams;  // as in GlooOptions
};

// All objects of a rank except its communicator.
struct GlooRank {
  int rank;
  InterruptFlag& flag;
  KeyStore& store;
  GlooOptions options;
};

// Runs f(rank) in a thread for each rank of the configuration, and throws the first exception.
inline void run_gloo_ranks(const GlooWay& way, const std::function<void(GlooRank&)>& f,
                           std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  static std::atomic<int> generation{0};
  const std::string prefix = "gloo/" + std::to_string(++generation);
  MemoryKeyStore store;
  const std::size_t size = way.hosts.size();
  std::vector<InterruptFlag> flags(size);
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      GlooOptions o;
      o.rank = static_cast<int>(r);
      o.size = static_cast<int>(size);
      o.hosts = way.hosts;
      o.address = way.address;
      o.prefix = prefix;
      o.shared_memory = way.shared_memory;
      o.hierarchical = way.hierarchical;
      o.wire = way.wire;
      o.streams = way.streams;
      o.deadline = deadline;
      o.rendezvous_timeout = std::min<std::chrono::milliseconds>(deadline, std::chrono::seconds(20));
      GlooRank rank{o.rank, flags[r], store, o};
      try {
        f(rank);
      } catch (...) {
        errors[r] = std::current_exception();
        flags[r].raise("this rank has aborted");
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

// Like run_gloo_ranks(), with a communicator in each thread.
inline void run_gloo(const GlooWay& way, const std::function<void(GlooCommunicator&)>& f,
                     std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  run_gloo_ranks(
      way,
      [&](GlooRank& r) {
        GlooCommunicator c(r.options, r.store, r.flag);
        f(c);
      },
      deadline);
}

}  // namespace tutti
