// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nvrtc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "backends/cuda_emulator.hpp"

// tutti_add_program() links the components of included headers. These tests need only the backend's CUDA headers.
#include <tutti/backends/cuda/error.hpp>

// Kernels that a test gives as PTX, on the emulated GPU. They need no NVRTC.
namespace tutti::testing {

// Returns a module with an entry "k" of parameters .u64 in, out and room. The body may use registers up to 39 of each
// class; %rd20, %rd21 and %rd22 contain the parameters, %r20 the thread.
inline std::string entry(const std::string& body, const std::string& variables = "") {
  return ".version 8.0\n.target sm_90\n.address_size 64\n" + variables +
         ".visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1,\n.param .u64 k_param_2\n)\n{\n"
         ".reg .pred %p<40>;\n.reg .b16 %rs<40>;\n.reg .b32 %r<40>;\n.reg .f32 %f<40>;\n.reg .b64 %rd<40>;\n"
         ".reg .f64 %fd<40>;\nld.param.u64 %rd20, [k_param_0];\nld.param.u64 %rd21, [k_param_1];\n"
         "ld.param.u64 %rd22, [k_param_2];\ncvta.to.global.u64 %rd20, %rd20;\nmov.u32 %r20, %tid.x;\n" +
         body + "\nret;\n}\n";
}

// Compiles the entry "k". Returns the compiler's log if it is refused.
inline std::string log_of(const std::string& module, std::vector<char>& code) {
  nvrtcProgram p = nullptr;
  nvrtcCreateProgram(&p, module.c_str(), "test.ptx", 0, nullptr, nullptr);
  nvrtcAddNameExpression(p, "k");
  std::string log;
  std::size_t size = 0;
  if (nvrtcCompileProgram(p, 0, nullptr) != NVRTC_SUCCESS) {
    nvrtcGetProgramLogSize(p, &size);
    log.resize(size);
    nvrtcGetProgramLog(p, log.data());
  } else {
    nvrtcGetCUBINSize(p, &size);
    code.resize(size);
    nvrtcGetCUBIN(p, code.data());
  }
  nvrtcDestroyProgram(&p);
  return log;
}

class PtxKernel {
 public:
  explicit PtxKernel(const std::string& module) {
    std::vector<char> code;
    const std::string log = log_of(module, code);
    REQUIRE_MESSAGE(!code.empty(), log);
    cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    REQUIRE(cudaLibraryGetKernel(&kernel_, library_, "0 k") == cudaSuccess);
  }
  ~PtxKernel() { cudaLibraryUnload(library_); }
  PtxKernel(const PtxKernel&) = delete;
  PtxKernel& operator=(const PtxKernel&) = delete;
  void run(unsigned blocks, unsigned threads, const void* in, const void* out, const void* room = nullptr) {
    REQUIRE(start(blocks, threads, in, out, room, false) == cudaSuccess);
    emulator::Device::instance().finish();
  }
  // together: a cooperative launch. early: the kernel may start before the kernel before it has ended.
  cudaError_t start(unsigned blocks, unsigned threads, const void* in, const void* out, const void* room, bool together,
                    bool early = false) {
    std::array<const void*, 3> values{in, out, room};
    std::array<void*, 3> p{&values[0], &values[1], &values[2]};
    std::array<cudaLaunchAttribute, 2> attributes{};
    attributes[early ? 1 : 0].id = cudaLaunchAttributeCooperative;
    attributes[early ? 1 : 0].val.cooperative = 1;
    attributes[early ? 0 : 1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[early ? 0 : 1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.attrs = attributes.data();
    config.numAttrs = (together ? 1 : 0) + (early ? 1 : 0);
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel_), p.data());
  }

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

// Memory of the emulated GPU.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) { cudaMalloc(reinterpret_cast<void**>(&p_), n * sizeof(T)); }
  ~DeviceArray() { cudaFree(p_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  [[nodiscard]] T* data() const { return p_; }
  [[nodiscard]] T& operator[](std::size_t i) const { return p_[i]; }
  [[nodiscard]] std::size_t size() const { return n_; }

 private:
  T* p_ = nullptr;
  std::size_t n_;
};

// Calls f in a child process. Returns the last output of the process, after "signal: " if a signal ended it.
inline std::string end_of(const std::function<void()>& f) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int s : {SIGABRT, SIGSEGV, SIGILL}) ::signal(s, SIG_DFL);
    ::dup2(pipe[1], 2);
    f();
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 1000> part{};
  for (ssize_t n = 0; (n = ::read(pipe[0], part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return (WIFSIGNALED(status) ? "signal: " : "no signal: ") + text;
}

}  // namespace tutti::testing
