// SPDX-License-Identifier: MIT
// Kernels of the emulated device: loads and starts them, and implements NVRTC with the C++ compiler.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/float/f16.hpp>

#include "accesses.hpp"
#include "block.hpp"
#include "compile.hpp"
#include "device.hpp"
#include "sectors.hpp"

namespace tutti::emulator {
namespace {

using Call = void (*)(void**);

// A kernel of a loaded program, compiled without contraction and with it.
struct Kernel {
  std::string name;
  std::array<Call, 2> calls{};
  const std::size_t* sizes = nullptr;
  const std::uint32_t* layout = nullptr;  // of shared memory (accesses.hpp); null: not from PTX
  const std::vector<std::pair<char*, char*>>* shared = nullptr;
};
struct Loaded {
  std::vector<void*> objects;
  std::vector<std::pair<char*, char*>> shared;  // memory that the blocks of all kernels of the program share
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

template <class F>
F symbol(void* object, const std::string& name) {
  return reinterpret_cast<F>(::dlsym(object, name.c_str()));
}

bool contracted(const Kernel& k) {
  const Device& d = Device::instance();
  if (k.calls[1] == nullptr || d.contraction == Contraction::none) return false;
  if (d.contraction == Contraction::all) return true;
  std::uint32_t h = 2166136261U ^ d.seed;
  for (const char c : k.name) h = (h ^ static_cast<unsigned char>(c)) * 16777619U;
  return (h >> 16 & 1U) != 0;
}

// Prints the name of the kernel that faults, and passes the signal to the previous handler.
class Faults {
 public:
  explicit Faults(const std::string& kernel) {
    name = kernel.c_str();
    struct sigaction mine {};
    mine.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      const Machine& m = Block::instance().machine;
      std::array<char, 400> text{};
      const int n =
          std::snprintf(text.data(), text.size(), "emulator: %s in kernel %s, block %u,%u, thread %u\n",
                        // Clang copies an unaligned struct with an instruction that faults without an address.
                        signal == SIGILL || (signal == SIGSEGV && info->si_code == SI_KERNEL)
                            ? "data that is not aligned, or an index out of bounds"
                            : "memory that is not allocated",
                        name, m.block.x, m.block.y, m.thread.x);
      if (::write(2, text.data(), static_cast<std::size_t>(n)) < 0) return;
      restore();
    };
    mine.sa_flags = SA_ONSTACK | SA_SIGINFO;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &mine, &before[i]);
  }
  ~Faults() { restore(); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

 private:
  static void restore() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before[i], nullptr);
  }
  static constexpr std::array signals{SIGILL, SIGSEGV, SIGBUS};
  static inline std::array<struct sigaction, signals.size()> before;
  static inline const char* name = "";
};

// A kernel with its arguments.
class Launch {
 public:
  // together: the blocks run at the same time. early: the launch may start before the kernel before it has ended.
  Launch(const Kernel& k, dim3 grid, dim3 block, void** arguments, bool together, bool early)
      : kernel_(k), grid_(grid), block_(block), together_(together), early_(early) {
    for (const std::size_t* size = k.sizes; *size != 0; ++size, ++arguments) {
      copies_.emplace_back((*size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
      std::memcpy(copies_.back().data(), *arguments, *size);
    }
  }
  void operator()() {
    std::vector<void*> pointers;
    for (auto& c : copies_) pointers.push_back(c.data());
    const Call call = kernel_.calls[contracted(kernel_) ? 1 : 0];
    const std::function<void()> thread = [&] { call(pointers.data()); };
    Block& b = Block::instance();
    b.machine.blocks = {grid_.x, grid_.y, grid_.z};
    b.machine.threads = {block_.x, block_.y, block_.z};
    const Faults faults(kernel_.name);
    Accesses& accesses = Accesses::instance();
    accesses.begin_launch(kernel_.name, kernel_.layout, early_);
    Sectors& sectors = Sectors::instance();
    sectors.begin_launch(kernel_.name);
    if (together_) {
      run_together(thread);
      return sectors.end_launch();
    }
    for (unsigned y = 0; y < grid_.y; ++y)
      for (unsigned x = 0; x < grid_.x; ++x) {
        // Shared memory is not zero on a GPU: earlier blocks or programs have used it.
        for (const auto& [from, to] : *kernel_.shared) std::memset(from, 0xff, static_cast<std::size_t>(to - from));
        b.machine.block = {x, y, 0};
        accesses.begin_block();
        b.run(block_.x, static_cast<ThreadOrder>((x + y) % 3), thread);
        sectors.end_block();
      }
    sectors.end_launch();
    if (early_ && accesses.waits() != std::size_t{grid_.x} * grid_.y * block_.x)
      give_up("a thread that does not wait for earlier kernels, in kernel " + kernel_.name);
  }

 private:
  // Blocks that run at the same time: the shared memory of a block is put aside while another one runs.
  void run_together(const std::function<void()>& thread) {
    struct Aside {
      std::vector<std::vector<char>> memory;
      Accesses::SharedCells cells;
    };
    std::vector<Aside> aside(std::size_t{grid_.x} * grid_.y);
    Block& b = Block::instance();
    Accesses& accesses = Accesses::instance();
    for (Aside& a : aside) {
      for (const auto& [from, to] : *kernel_.shared) a.memory.emplace_back(to - from, '\xff');
      accesses.begin_block();
      accesses.exchange(a.cells);
      a.cells.cells.clear();
    }
    const auto exchange = [&](unsigned i) {
      for (std::size_t k = 0; k < kernel_.shared->size(); ++k)
        std::swap_ranges(aside[i].memory[k].begin(), aside[i].memory[k].end(), (*kernel_.shared)[k].first);
      accesses.exchange(aside[i].cells);
    };
    b.run_together(
        block_.x, grid_.x * grid_.y, thread,
        [&](unsigned i) {
          exchange(i);
          b.machine.block = {i % grid_.x, i / grid_.x, 0};
        },
        exchange);
  }

  const Kernel& kernel_;
  dim3 grid_, block_;
  bool together_, early_;
  std::vector<std::vector<std::max_align_t>> copies_;
};

}  // namespace
}  // namespace tutti::emulator

extern "C" {
using namespace tutti::emulator;

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  if (const cudaError_t e = refused("cudaLibraryLoadData")) return e;
  auto l = std::make_unique<Loaded>();
  const std::string paths = static_cast<const char*>(code);
  for (std::size_t at = 0, end = 0; (end = paths.find('\n', at)) != std::string::npos; at = end + 1) {
    void* const object = ::dlopen(paths.substr(at, end - at).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) give_up(::dlerror());
    using From = float (*)(unsigned short);
    using To = unsigned short (*)(float);
    std::array<char*, 2> shared{};
    symbol<void (*)(Machine*, From, To, char**)>(object, "tutti_bind")(
        &Block::instance().machine, [](unsigned short b) { return static_cast<float>(tutti::f16::from_bits(b)); },
        [](float f) -> unsigned short { return tutti::f16(f).bits; }, shared.data());
    l->objects.push_back(object);
    l->shared.emplace_back(shared[0], shared[1]);
  }
  *library = reinterpret_cast<cudaLibrary_t>(l.release());
  return cudaSuccess;
}
// name: the kernel's number in its program, and the kernel's name.
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  auto* const l = reinterpret_cast<Loaded*>(library);
  const std::string text = name, number = text.substr(0, text.find(' '));
  auto k = std::make_unique<Kernel>();
  k->name = text.substr(number.size() + (number.size() < text.size() ? 1 : 0));
  k->shared = &l->shared;
  for (std::size_t i = 0; i < l->objects.size(); ++i) {
    k->calls[i] = symbol<Call>(l->objects[i], "tutti_run_" + number);
    const auto sizes = symbol<const std::size_t* (*)()>(l->objects[i], "tutti_sizes_" + number);
    if (k->calls[i] == nullptr || sizes == nullptr) return done(cudaErrorSymbolNotFound);
    k->sizes = sizes();
    if (const auto layout = symbol<const std::uint32_t* (*)()>(l->objects[i], "tutti_layout_" + number))
      k->layout = layout();
  }
  auto& place = l->kernels[text] = std::move(k);
  *kernel = reinterpret_cast<cudaKernel_t>(place.get());
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  auto* const l = reinterpret_cast<Loaded*>(library);
  Device::instance().finish_all();
  for (void* object : l->objects) ::dlclose(object);
  delete l;
  return cudaSuccess;
}
cudaError_t cudaFuncGetParamInfo(const void* kernel, size_t i, size_t* offset, size_t* size) {
  const std::size_t* const sizes = static_cast<const Kernel*>(kernel)->sizes;
  *offset = *size = 0;
  for (std::size_t k = 0; k <= i; ++k) {
    if (sizes[k] == 0) return done(cudaErrorInvalidValue);
    *offset = (*offset + *size + sizes[k] - 1) / sizes[k] * sizes[k];
    *size = sizes[k];
  }
  return cudaSuccess;
}
#undef cudaOccupancyMaxActiveBlocksPerMultiprocessor
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = Device::instance().blocks_each;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
#undef cudaLaunchKernelExC
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  Device& d = Device::instance();
  bool together = false, early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeCooperative)
      together = config->attrs[i].val.cooperative != 0;
    else if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      early = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    else
      return done(cudaErrorInvalidValue);
  }
  // Devices before compute capability 9.0 do not do it; drivers before CUDA 12.3 do not do it in a graph. The emulated
  // device stays the same if kernels are compiled for an older one: then they start after earlier ones.
  if (early && (d.major < 9 || d.driver < 12030 || together)) return done(cudaErrorNotSupported);
  if (together && d.cooperative == 0) return done(cudaErrorNotSupported);
  if (together && std::size_t{grid.x} * grid.y > static_cast<std::size_t>(d.blocks_each) * multiprocessors)
    return done(cudaErrorCooperativeLaunchTooLarge);
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || block.x == 0 || block.x > 1024)
    return done(cudaErrorInvalidConfiguration);
  const auto& k = *static_cast<const Kernel*>(kernel);
  ++d.kernels[k.name];
  d.submit_kernel(config->stream, Launch(k, grid, block, arguments, together, early && has_early_kernels()), early);
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
  *p = reinterpret_cast<nvrtcProgram>(new Program{text, name, {}, {}, {}, {}});
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete reinterpret_cast<Program*>(*p);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char* name) {
  reinterpret_cast<Program*>(p)->kernels.emplace_back(name);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int, const char* const*) {
  auto& program = *reinterpret_cast<Program*>(p);
  const auto& compiles = Device::instance().compiles;
  return (!compiles || compiles(program.name)) && program.build() ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t* n) {
  *n = reinterpret_cast<Program*>(p)->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* log) {
  std::strcpy(log, reinterpret_cast<Program*>(p)->log.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t* n) {
  *n = reinterpret_cast<Program*>(p)->machine_code.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* cubin) {
  std::strcpy(cubin, reinterpret_cast<Program*>(p)->machine_code.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char* name, const char** lowered) {
  auto& program = *reinterpret_cast<Program*>(p);
  for (size_t i = 0; i < program.kernels.size(); ++i)
    if (program.kernels[i] == name) {
      *lowered = program.symbols[i].c_str();
      return NVRTC_SUCCESS;
    }
  return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}
}
