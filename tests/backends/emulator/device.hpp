// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "memory.hpp"

// The emulated device: streams, events and graphs. What is started happens as late as a device may do it.
namespace tutti::emulator {

struct Stream;

// A point of a stream, reached once what was started before it is done.
struct Point {
  bool happened = false;
  Stream* stream = nullptr;
};

// What was given to a stream.
struct Item {
  std::function<void()> run = {};           // null: it only waits
  std::function<bool()> ready = {};         // says when it can be run; null: at once
  std::shared_ptr<const Point> after = {};  // what must have happened
  const void* reads = nullptr;              // pinned memory that is read
};
struct Stream {
  std::deque<Item> items;
  bool waits = false;  // is gone through by advance()
};

// How much of each stream came before, while a graph is captured.
using Clock = std::map<const Stream*, std::size_t>;
[[nodiscard]] bool covers(const Clock& all, const Clock& part);

// An event. Recorded anew it is another point.
struct Event {
  std::shared_ptr<const Point> point;  // null: never recorded, or last in a capture
  std::size_t capture = 0;             // the number of that one; 0: recorded outside any
  Clock clock = {};                    // and what came before it there
};

struct Graph {
  struct Node {
    const Stream* stream;
    Item item;
    Clock before;
  };
  const Stream* origin = nullptr;
  std::vector<Node> nodes;
  std::size_t launches = 0;
  // An order in which a device may run them: what other streams than the first were given as early as it may be, or as
  // late.
  [[nodiscard]] std::vector<const Item*> order(bool others_first) const;
};

// A capture that goes on.
struct Capture {
  std::size_t number;
  std::thread::id thread;
  Graph graph;
  std::map<const Stream*, Clock> streams;  // those that take part
  bool broken = false;                     // by a call that none allows
};

// How kernels are contracted: which products and sums become one instruction is the compiler's choice, for each kernel
// anew. `some` of them, chosen by Device::seed and their name: two that do the same may then differ in the last bit.
enum class Contraction : std::uint8_t { none, all, some };

class Device {
 public:
  static Device& instance();

  // On the device's own stream.
  void submit(std::function<void()> work) { submit(&own_, {std::move(work)}); }
  void submit(cudaStream_t stream, std::function<void()> work, const void* reads = nullptr,
              std::function<bool()> ready = {}) {
    submit(stream_of(stream), {std::move(work), std::move(ready), {}, reads});
  }
  // All that the stream was given; what an event of it waits for, and nothing after it. An end that never comes ends
  // the program after `patience`.
  void finish() { finish(own_); }
  void finish(Stream& s);
  void finish(const Point& p);
  // All streams.
  void finish_all();
  // Does the next piece of work of a stream, or of one that it waits for; false where nothing can be done yet.
  bool advance(Stream& s);

  // The device's own is 1, as every program's first is.
  [[nodiscard]] Stream* stream_of(cudaStream_t stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream) <= 1 ? &own_ : reinterpret_cast<Stream*>(stream);
  }
  [[nodiscard]] bool is_own(const Stream* s) const noexcept { return s == &own_; }

  // Streams beside the device's own. They do their work as late as events allow or, if `hasty`, as early: what two
  // streams do to the same memory must be right either way.
  std::vector<Stream*> sides;
  bool hasty = false;

  // What a call must not do while the calling thread captures: success, or the error that breaks the capture.
  [[nodiscard]] cudaError_t outside_capture(const char* call);
  [[nodiscard]] bool capturing(const Stream* s) const { return capture && capture->streams.count(s) != 0; }
  cudaError_t wait(Stream* s, const Event& e);
  void record(Event& e, Stream* s);
  cudaError_t begin_capture(Stream* s);
  cudaError_t end_capture(Stream* s, Graph** graph);
  void launch(Graph& g, Stream* s);
  std::unique_ptr<Capture> capture;

  GuardedMemory memory, pinned;  // what is allocated
  std::size_t capacity = std::size_t{4} << 30;
  std::size_t graph_launches = 0;
  std::map<std::string, std::size_t> kernels;           // started or captured, by name
  std::size_t stream_waits = 0, event_waits = 0;        // of the host, for all that was started and for a point of it
  int count = 1, driver = 13000, major = 9, minor = 0;  // what is said of the machine
  int runtime = CUDART_VERSION;                         // the version of CUDA that programs think they are built with
  cudaError_t fault = cudaSuccess;                      // what waiting for the stream answers
  cudaError_t last_error = cudaSuccess;                 // what cudaGetLastError() answers
  // Asked by NVRTC's stand-in on the thread that compiles: whether a program of this name does; null: as it is.
  std::function<bool(const std::string& program)> compiles;
  int patience = 60;  // seconds
  // Of kernels that are started from now on; what TUTTI_EMULATOR_CONTRACTION says, none, all or some.
  Contraction contraction = chosen_contraction();
  unsigned seed = 0;

 private:
  static Contraction chosen_contraction();
  void submit(Stream* s, Item item);
  cudaError_t refuse(cudaError_t e, const std::string& what);
  void pause(std::size_t& turns) const;
  void hurry();

  Stream own_;
  std::mutex capture_changes_;  // threads that load kernels ask whether they capture
  bool hurries_ = false;
  std::size_t captures_ = 0;
};

// What a call answers: the error is the last one.
inline cudaError_t done(cudaError_t e) {
  if (e != cudaSuccess) Device::instance().last_error = e;
  return e;
}
inline cudaError_t refused(const char* call) { return done(Device::instance().outside_capture(call)); }

}  // namespace tutti::emulator
