// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/f16.hpp>

// CUDA's runtime and NVRTC played on the processor, for tests on machines without a GPU: a program that includes this
// defines those of their functions that the backend calls. Kernels are compiled by the C++ compiler and run block by
// block, their threads as fibres that change at __syncthreads(), every second block in the other order, so that a
// missing barrier shows. Nothing started on a stream happens before somebody waits for it, as late as a device may be.
// What only a GPU can show (races within a warp, speed, the libraries' kernels) is not tested here.
namespace tutti::emulator {

struct Position {
  unsigned x = 0, y = 0, z = 0;
};
// What a compiled kernel sees of the emulator.
struct Machine {
  Position thread, block, threads, blocks;
  void (*sync)() = nullptr;
};
inline Machine machine;

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "emulator: %s\n", why.c_str());
  std::abort();
}

// The threads of one block.
class Block {
 public:
  static Block& instance() {
    static Block b;
    return b;
  }

  void run(unsigned threads, bool backwards, const std::function<void()>& kernel) {
    threads_ = threads;
    next_ = 0;
    backwards_ = backwards;
    kernel_ = &kernel;
    while (next_ < threads_) resume(idle());
    while (!waiting_.empty()) {
      // Threads that have left for good and threads at a barrier do not go together.
      if (waiting_.size() != threads_) give_up("a barrier that not all threads of a block reach");
      auto now = std::exchange(waiting_, {});
      if (backwards_) std::reverse(now.begin(), now.end());
      for (auto& [fiber, position] : now) {
        machine.thread = position;
        resume(fiber);
      }
    }
  }

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack = std::vector<char>(64 * 1024);
    jmp_buf state;
    bool started = false, busy = false;
  };

  Fiber* idle() {
    for (auto& f : fibers_)
      if (!f->busy) return f.get();
    fibers_.push_back(std::make_unique<Fiber>());
    return fibers_.back().get();
  }
  void resume(Fiber* f) {
    current_ = f;
    if (_setjmp(scheduler_) != 0) return;
    if (f->started) _longjmp(f->state, 1);
    f->started = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.data();
    f->context.uc_stack.ss_size = f->stack.size();
    makecontext(&f->context, &Block::enter, 0);
    setcontext(&f->context);
  }
  static void enter() {
    Block& b = instance();
    for (;;) {
      Fiber* const me = b.current_;
      me->busy = true;
      while (b.next_ < b.threads_) {
        const unsigned t = b.next_++;
        machine.thread = {b.backwards_ ? b.threads_ - 1 - t : t, 0, 0};
        (*b.kernel_)();
      }
      me->busy = false;
      b.leave(me);
    }
  }
  void leave(Fiber* me) {
    if (_setjmp(me->state) == 0) _longjmp(scheduler_, 1);
  }
  static void barrier() {
    Block& b = instance();
    Fiber* const me = b.current_;
    b.waiting_.emplace_back(me, machine.thread);
    b.leave(me);
  }

  Block() { machine.sync = &Block::barrier; }

  unsigned threads_ = 0, next_ = 0;
  bool backwards_ = false;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::pair<Fiber*, Position>> waiting_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
};

// The one stream: work that waits to be done, or is written down while a graph is captured.
struct Graph {
  std::vector<std::function<void()>> work;
};
class Device {
 public:
  static Device& instance() {
    static Device d;
    return d;
  }
  void submit(std::function<void()> work) {
    if (capture)
      capture->work.push_back(std::move(work));
    else
      queue_.push_back(std::move(work));
    ++submitted;
  }
  // On a stream beside the device's own too; reads: pinned memory that the work will read. What is captured is one
  // stream's, in the order in which it was started.
  void submit(cudaStream_t stream, std::function<void()> work, const void* reads = nullptr) {
    if (Side* const side = side_of(stream); side != nullptr && !capture) {
      side->items.push_back({std::move(work), nullptr, reads});
      hurry();
    } else {
      submit(std::move(work));
    }
  }
  // Streams beside the device's own. They do their work as late as events allow or, if `hasty`, as early: what two
  // streams do to the same memory must be right either way.
  struct Side {
    struct Item {
      std::function<void()> work;
      std::shared_ptr<bool> after;  // an event that must have happened, or null
      const void* reads = nullptr;
    };
    std::deque<Item> items;
  };
  std::vector<Side*> sides;
  bool hasty = false;
  [[nodiscard]] Side* side_of(cudaStream_t stream) const {
    auto* const s = reinterpret_cast<Side*>(stream);
    return std::find(sides.begin(), sides.end(), s) == sides.end() ? nullptr : s;
  }
  // Does the next piece of work of a side stream, and first what it waits for.
  bool advance(Side& s) {
    if (s.items.empty()) return false;
    if (const auto after = s.items.front().after; after && !*after) {
      if (busy_) give_up("streams that wait for each other");
      finish(*after);
      if (!*after) give_up("an event that never happens");
      return true;  // a hasty stream may have gone on by itself
    }
    const auto item = std::move(s.items.front());
    s.items.pop_front();
    if (item.work) item.work();
    return true;
  }
  void finish(Side& s) {
    while (advance(s)) {
    }
  }
  void finish(Side* s, const bool& happened) {
    if (s == nullptr) return finish(happened);
    while (!happened && advance(*s)) {
    }
    if (!happened) give_up("an event that never happens");
  }
  void hurry() {
    if (!hasty) return;
    for (Side* s : sides)
      while (!s->items.empty() && (!s->items.front().after || *s->items.front().after)) advance(*s);
  }
  void finish() {
    while (!queue_.empty()) advance();
  }
  // Does the next piece of work; false where there is none.
  bool advance() {
    if (queue_.empty()) return false;
    const auto w = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    w();
    busy_ = false;
    hurry();
    return true;
  }
  // What an event waits for is done, and nothing after it.
  void finish(const bool& happened) {
    while (!happened && advance()) {
    }
  }

  std::unique_ptr<Graph> capture;
  std::map<const void*, std::size_t> memory, pinned;  // what is allocated
  std::size_t capacity = std::size_t{4} << 30, used = 0;
  std::size_t submitted = 0, graph_launches = 0;
  std::size_t stream_waits = 0, event_waits = 0;        // of the host, for all that was started and for a point of it
  int count = 1, driver = 13000, major = 9, minor = 0;  // what is said of the machine
  cudaError_t fault = cudaSuccess;                      // what waiting for the stream answers

  [[nodiscard]] bool is_pinned(const void* p) const {
    auto it = pinned.upper_bound(p);
    if (it == pinned.begin()) return false;
    --it;
    return static_cast<const char*>(p) < static_cast<const char*>(it->first) + it->second;
  }

 private:
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
};
// A point of the stream. Recorded anew it is another one.
struct Event {
  std::shared_ptr<bool> happened = std::make_shared<bool>(true);
  Device::Side* side = nullptr;  // the stream it was recorded in, null: the device's own
};

struct Program {
  std::string source, name, log, shared_object;
  std::vector<std::string> kernels, symbols;
};

// In front of a program: what CUDA has beyond C++.
inline constexpr char prelude[] = R"(
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
struct Position { unsigned x, y, z; };
struct Machine { Position thread, block, threads, blocks; void (*sync)(); };
static Machine* tutti_machine;
extern "C" void tutti_emulator_bind(Machine* m) { tutti_machine = m; }
#define threadIdx (tutti_machine->thread)
#define blockIdx (tutti_machine->block)
#define blockDim (tutti_machine->threads)
#define gridDim (tutti_machine->blocks)
#define __global__
#define __shared__ static
static inline void __syncthreads() { tutti_machine->sync(); }
static inline void __threadfence_system() {}
static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
static inline float __int_as_float(unsigned u) { return __uint_as_float(u); }
#define __expf expf
static inline float __fdividef(float a, float b) { return a / b; }
using std::sqrt; using std::log;
static inline unsigned short emulated_to_bf16(float f) {
  const unsigned u = __float_as_uint(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
extern "C" { static float (*emulated_from_f16)(unsigned short); static unsigned short (*emulated_to_f16)(float); }
extern "C" void tutti_emulator_f16(float (*a)(unsigned short), unsigned short (*b)(float)) { emulated_from_f16 = a; emulated_to_f16 = b; }
template <class... P>
std::function<void()> tutti_emulator_call(void (*kernel)(P...), void** a) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::function<void()>([kernel, copies = std::tuple<P...>(*static_cast<P*>(a[I])...)] { std::apply(kernel, copies); });
  }(std::index_sequence_for<P...>());
}
)";

inline void replace_all(std::string& s, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = s.find(from, at)) != std::string::npos; at += to.size())
    s.replace(at, from.size(), to);
}

inline std::filesystem::path folder() {
  static const struct Folder {
    std::filesystem::path path;
    Folder() {
      std::string name = (std::filesystem::temp_directory_path() / "tutti-emulator-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr) give_up("no temporary folder");
      path = name;
    }
    ~Folder() {
      std::error_code e;
      std::filesystem::remove_all(path, e);
    }
  } f;
  return f.path;
}

inline bool build(Program& p) {
  static int count = 0;
  // Processes that were forked share the folder.
  const std::string name = "kernels" + std::to_string(::getpid()) + "-" + std::to_string(count++);
  const std::string stem = (folder() / name).string();
  std::string text = p.source;
  // The instructions that the source names.
  replace_all(text, R"(asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));)", "f = emulated_from_f16(x.bits);");
  replace_all(text, R"(asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));)", "r.bits = emulated_to_bf16(f);");
  replace_all(text, R"(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));)", "r.bits = emulated_to_f16(f);");
  std::ofstream out(stem + ".cpp");
  out << prelude << "#line 1 \"" << p.name << "\"\n" << text << "\n";
  for (std::size_t i = 0; i < p.kernels.size(); ++i) {
    p.symbols.push_back("tutti_emulated_" + std::to_string(i));
    out << "extern \"C\" void " << p.symbols.back() << "(void** a, std::function<void()>* to) { *to = "
        << "tutti_emulator_call(&" << p.kernels[i] << ", a); }\n";
  }
  out.close();
  const char* compiler = std::getenv("TUTTI_CXX");
  const std::string command = std::string(compiler != nullptr && *compiler != 0 ? compiler : "c++") +
                              " -std=c++20 -O1 -ffp-contract=off -fno-strict-aliasing -w -fPIC -shared -o " + stem +
                              ".so " + stem + ".cpp > " + stem + ".log 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream log(stem + ".log");
  p.log.assign(std::istreambuf_iterator<char>(log), {});
  p.shared_object = stem + ".so";
  return status == 0;
}

struct Kernel {
  void (*bind)(void**, std::function<void()>*);
};
struct Loaded {
  void* handle;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

}  // namespace tutti::emulator

// The libraries' functions. Everything succeeds but what a test asks to fail.
extern "C" {
using tutti::emulator::Device;

const char* cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : "an error"; }
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                        : "cudaError";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = Device::instance().driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) {
  *n = Device::instance().count;
  if (Device::instance().driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
  return *n == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  p->major = Device::instance().major;
  p->minor = Device::instance().minor;
  p->multiProcessorCount = 2;
  p->totalGlobalMem = Device::instance().capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int d) { return cudaGetDeviceProperties(p, d); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  *s = reinterpret_cast<cudaStream_t>(1);
  return cudaSuccess;
}
// One beside the device's own.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  Device::instance().sides.push_back(new Device::Side);
  *s = reinterpret_cast<cudaStream_t>(Device::instance().sides.back());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Device& d = Device::instance();
  if (auto* const side = d.side_of(stream)) {
    d.finish(*side);
    std::erase(d.sides, side);
    delete side;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (auto* const side = Device::instance().side_of(stream)) {
    Device::instance().finish(*side);
    return Device::instance().fault;
  }
  ++Device::instance().stream_waits;
  Device::instance().finish();
  return Device::instance().fault;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
  Device& d = Device::instance();
  const auto event = *reinterpret_cast<tutti::emulator::Event*>(e);
  auto* const side = d.side_of(stream);
  if (side == event.side || d.capture) return cudaSuccess;  // the order of the stream itself
  if (side != nullptr) {
    side->items.push_back({{}, event.happened, nullptr});
    d.hurry();
  } else {
    d.submit([event] { Device::instance().finish(event.side, *event.happened); });
  }
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new tutti::emulator::Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<tutti::emulator::Event*>(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  const auto now = std::make_shared<bool>(false);
  Device& d = Device::instance();
  *reinterpret_cast<tutti::emulator::Event*>(e) = {now, d.capture ? nullptr : d.side_of(stream)};
  Device::instance().submit(stream, [now] { *now = true; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const auto [happened, side] = *reinterpret_cast<tutti::emulator::Event*>(e);
  if (*happened) return Device::instance().fault;
  side != nullptr ? Device::instance().advance(*side) : Device::instance().advance();  // meanwhile the device goes on
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const auto [happened, side] = *reinterpret_cast<tutti::emulator::Event*>(e);
  Device::instance().event_waits += *happened || side != nullptr ? 0 : 1;
  Device::instance().finish(side, *happened);
  return Device::instance().fault;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
cudaError_t cudaMalloc(void** p, size_t n) {
  Device& d = Device::instance();
  if (d.used + n > d.capacity) return cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  std::memset(*p, 0xff, n);  // what was never written is not a number
  d.used += n;
  d.memory[*p] = n;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  Device& d = Device::instance();
  const auto it = d.memory.find(p);
  if (it == d.memory.end()) tutti::emulator::give_up("memory freed that was not allocated");
  d.used -= it->second;
  d.memory.erase(it);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  Device::instance().pinned[*p] = n;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  Device& d = Device::instance();
  const char* const begin = static_cast<char*>(p);
  for (const auto* side : d.sides)
    for (const auto& item : side->items)
      if (const auto* at = static_cast<const char*>(item.reads);
          at != nullptr && at >= begin && at < begin + d.pinned[p])
        tutti::emulator::give_up("pinned memory freed that an upload has yet to read");
  d.pinned.erase(p);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = Device::instance().capacity - Device::instance().used;
  *total = Device::instance().capacity;
  return cudaSuccess;
}
#undef cudaPointerGetAttributes
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  *a = {};
  const auto& memory = Device::instance().memory;
  auto at = memory.upper_bound(p);
  const bool there =
      at != memory.begin() && static_cast<const char*>(p) < static_cast<const char*>((--at)->first) + at->second;
  a->type = there                             ? cudaMemoryTypeDevice
            : Device::instance().is_pinned(p) ? cudaMemoryTypeHost
                                              : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t stream) {
  Device::instance().submit(stream, [=] { std::memset(p, v, n); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && !Device::instance().is_pinned(from)) {
    // Pageable memory is read before the call returns.
    std::vector<char> copy(static_cast<const char*>(from), static_cast<const char*>(from) + n);
    Device::instance().submit(stream, [=, copy = std::move(copy)] { std::memcpy(to, copy.data(), n); });
  } else {
    Device::instance().submit(
        stream, [=] { std::memcpy(to, from, n); }, from);
  }
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  auto* const l = new tutti::emulator::Loaded{::dlopen(static_cast<const char*>(code), RTLD_NOW | RTLD_LOCAL), {}};
  if (l->handle == nullptr) tutti::emulator::give_up(::dlerror());
  reinterpret_cast<void (*)(tutti::emulator::Machine*)>(::dlsym(l->handle, "tutti_emulator_bind"))(
      &tutti::emulator::machine);
  using From = float (*)(unsigned short);
  using To = unsigned short (*)(float);
  reinterpret_cast<void (*)(From, To)>(::dlsym(l->handle, "tutti_emulator_f16"))(
      [](unsigned short b) { return static_cast<float>(tutti::f16::from_bits(b)); },
      [](float f) -> unsigned short { return tutti::f16(f).bits; });
  *library = reinterpret_cast<cudaLibrary_t>(l);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  auto* const l = reinterpret_cast<tutti::emulator::Loaded*>(library);
  auto& k = l->kernels[name];
  k = std::make_unique<tutti::emulator::Kernel>();
  k->bind = reinterpret_cast<void (*)(void**, std::function<void()>*)>(::dlsym(l->handle, name));
  if (k->bind == nullptr) return cudaErrorSymbolNotFound;
  *kernel = reinterpret_cast<cudaKernel_t>(k.get());
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  auto* const l = reinterpret_cast<tutti::emulator::Loaded*>(library);
  Device::instance().finish();
  ::dlclose(l->handle);
  delete l;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t, cudaStream_t stream) {
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || block.x == 0 || block.x > 1024)
    return cudaErrorInvalidConfiguration;
  std::function<void()> thread;
  static_cast<const tutti::emulator::Kernel*>(kernel)->bind(arguments, &thread);
  Device::instance().submit(stream, [=, thread = std::move(thread)] {
    using namespace tutti::emulator;
    machine.blocks = {grid.x, grid.y, grid.z};
    machine.threads = {block.x, block.y, block.z};
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        machine.block = {x, y, 0};
        Block::instance().run(block.x, (x + y) % 2 == 1, thread);
      }
  });
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  *s = Device::instance().capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  Device::instance().capture = std::make_unique<tutti::emulator::Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(Device::instance().capture.release());
  return cudaSuccess;
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec =
      reinterpret_cast<cudaGraphExec_t>(new tutti::emulator::Graph(*reinterpret_cast<tutti::emulator::Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<tutti::emulator::Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<tutti::emulator::Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  ++Device::instance().graph_launches;
  for (const auto& w : reinterpret_cast<tutti::emulator::Graph*>(graph)->work) Device::instance().submit(w);
  return cudaSuccess;
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult r) { return r == NVRTC_SUCCESS ? "success" : "failure"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* p, const char* text, const char* name, int, const char* const*,
                               const char* const*) {
  *p = reinterpret_cast<nvrtcProgram>(new tutti::emulator::Program{text, name, {}, {}, {}, {}});
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete reinterpret_cast<tutti::emulator::Program*>(*p);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char* name) {
  reinterpret_cast<tutti::emulator::Program*>(p)->kernels.emplace_back(name);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int, const char* const*) {
  return tutti::emulator::build(*reinterpret_cast<tutti::emulator::Program*>(p)) ? NVRTC_SUCCESS
                                                                                 : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t* n) {
  *n = reinterpret_cast<tutti::emulator::Program*>(p)->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* log) {
  std::strcpy(log, reinterpret_cast<tutti::emulator::Program*>(p)->log.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t* n) {
  *n = reinterpret_cast<tutti::emulator::Program*>(p)->shared_object.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* cubin) {
  std::strcpy(cubin, reinterpret_cast<tutti::emulator::Program*>(p)->shared_object.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char* name, const char** lowered) {
  auto& program = *reinterpret_cast<tutti::emulator::Program*>(p);
  for (size_t i = 0; i < program.kernels.size(); ++i)
    if (program.kernels[i] == name) {
      *lowered = program.symbols[i].c_str();
      return NVRTC_SUCCESS;
    }
  return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}
}
