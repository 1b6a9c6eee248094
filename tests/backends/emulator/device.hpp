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
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "memory.hpp"

// The emulated device: streams, events and graphs. Work runs as late as a device may run it.
namespace tutti::emulator {

struct Stream;

inline constexpr int multiprocessors = 2;

// A point of a stream. The stream reaches the point when all earlier work is done.
struct Point {
  bool happened = false;
  Stream* stream = nullptr;
};

// A piece of work on a stream.
struct Item {
  std::function<void()> run = {};           // null: the item only waits
  std::function<bool()> ready = {};         // returns true when the work can run; null: the work can run at once
  std::shared_ptr<const Point> after = {};  // a point that a stream must reach before the work runs
  const void* reads = nullptr;              // pinned memory that the work reads
  bool of_graph = false;                    // a launched graph contains the work
};
struct Stream {
  std::deque<Item> items;
  bool waits = false;         // advance() is processing it
  bool after_kernel = false;  // the last work that was started in it is a kernel
};

// While a graph is captured: how many items of each stream come before an item.
using Clock = std::map<const Stream*, std::size_t>;
[[nodiscard]] bool covers(const Clock& all, const Clock& part);

// An event. Each recording makes a new point.
struct Event {
  std::shared_ptr<const Point> point;  // null if never recorded, or if recorded last in a capture
  std::size_t capture = 0;             // number of the capture in which the event was recorded last; 0: none
  Clock clock = {};                    // the work before the event in this capture
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
  // Returns an order in which a device may run the nodes. Work of all streams but the first one runs as early as
  // possible if `others_first`, otherwise as late as possible.
  [[nodiscard]] std::vector<const Item*> order(bool others_first) const;
};

// An unfinished capture.
struct Capture {
  std::size_t number;
  std::thread::id thread;
  Graph graph;
  std::map<const Stream*, Clock> streams;  // the streams that are part of the capture
  bool broken = false;                     // a call was made that no capture allows
  std::set<const Stream*> after_kernel;    // the streams whose last work is a kernel
};

// Selects the products and sums that become one instruction. `some` contracts a part of the kernels, which depends on
// Device::seed and the kernels' names: a real compiler also decides for each kernel. Therefore two kernels with the
// same function may differ in the last bit.
enum class Contraction : std::uint8_t { none, all, some };

class Device {
 public:
  static Device& instance();

  // Starts work on the device's own stream.
  void submit(std::function<void()> work) { submit(&own_, {std::move(work)}); }
  void submit(cudaStream_t stream, std::function<void()> work, const void* reads = nullptr,
              std::function<bool()> ready = {}) {
    submit(stream_of(stream), {std::move(work), std::move(ready), {}, reads});
  }
  // Starts a kernel. early: it may start before the work before it has ended, which must be a kernel.
  void submit_kernel(cudaStream_t stream, std::function<void()> work, bool early);
  // Runs all work of the stream, or with a point only the work before the point. Ends the program if that takes longer
  // than `patience`.
  void finish() { finish(own_); }
  void finish(Stream& s);
  void finish(const Point& p);
  // Runs the work of all streams.
  void finish_all();
  // Runs the next item of a stream, or of a stream for which it waits. Returns false if no item can run yet.
  bool advance(Stream& s);

  // The device's own stream has the handle 1, like the first stream of every program.
  [[nodiscard]] Stream* stream_of(cudaStream_t stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream) <= 1 ? &own_ : reinterpret_cast<Stream*>(stream);
  }
  [[nodiscard]] bool is_own(const Stream* s) const noexcept { return s == &own_; }

  // Streams in addition to the device's own. They work as late as events allow or, if `hasty`, as early as possible.
  // Results of two streams in the same memory must be right in both cases.
  std::vector<Stream*> sides;
  bool hasty = false;

  // Used by calls that CUDA forbids to a thread that captures. Returns success, or the error that breaks the capture.
  [[nodiscard]] cudaError_t outside_capture(const char* call);
  [[nodiscard]] bool capturing(const Stream* s) const { return capture && capture->streams.count(s) != 0; }
  cudaError_t wait(Stream* s, const Event& e);
  void record(Event& e, Stream* s);
  cudaError_t begin_capture(Stream* s);
  cudaError_t end_capture(Stream* s, Graph** graph);
  void launch(Graph& g, Stream* s);
  std::unique_ptr<Capture> capture;

  GuardedMemory memory, pinned;  // allocated memory
  std::size_t capacity = std::size_t{4} << 30;
  std::size_t graph_launches = 0;
  std::map<std::string, std::size_t> kernels;           // how often each kernel was started or captured, by name
  std::size_t early_kernels = 0;                        // how many of them may start early
  std::size_t stream_waits = 0, event_waits = 0;        // how often the host waited for a whole stream, and for a point
                                                        // of it
  int cooperative = 1, blocks_each = 2;                 // whether the device launches blocks together, and how many run
                                                        // on a multiprocessor
  int cache = 16384;                                    // bytes of the L2 cache
  int count = 1, driver = 13000, major = 9, minor = 0;  // properties of the machine
  int runtime = CUDART_VERSION;                         // the version of CUDA for which programs seem to be built
  cudaError_t access = cudaSuccess;                     // the result of the first call that uses the GPU
  cudaError_t fault = cudaSuccess;                      // the result of waiting for the stream
  cudaError_t last_error = cudaSuccess;                 // the result of cudaGetLastError()
  // The emulated NVRTC calls this on the compiling thread: returns whether a program with this name compiles. null: the
  // compiler decides.
  std::function<bool(const std::string& program)> compiles;
  int patience = 60;  // seconds that finish() may take
  // Applies to kernels that are started from now on. TUTTI_EMULATOR_CONTRACTION: none, all or some.
  Contraction contraction = chosen_contraction();
  unsigned seed = 0;

 private:
  static Contraction chosen_contraction();
  void submit(Stream* s, Item item);
  cudaError_t refuse(cudaError_t e, const std::string& what);
  void pause(std::size_t& turns) const;
  void hurry();

  Stream own_;
  std::mutex capture_changes_;  // because threads that load kernels read `capture`
  bool hurries_ = false;
  std::size_t captures_ = 0;
};

// Returns the result of a call and records an error as the last one.
inline cudaError_t done(cudaError_t e) {
  if (e != cudaSuccess) Device::instance().last_error = e;
  return e;
}
inline cudaError_t refused(const char* call) { return done(Device::instance().outside_capture(call)); }

}  // namespace tutti::emulator
