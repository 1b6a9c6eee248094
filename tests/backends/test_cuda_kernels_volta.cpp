// SPDX-License-Identifier: MIT
// takes long
// Compiles tutti's CUDA kernels with CUDA 12's NVRTC, which supports compute capability 7.0, for any CUDA version of
// the build. NVRTC is from PyPI (requirements.txt) or from a toolkit of this machine. Without NVRTC these cases are
// skipped.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <tutti/backends/cuda/programs.hpp>

#include <doctest/doctest.h>
#include <nvrtc.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

#include <tutti/backends/cuda/library.hpp>

using namespace tutti;

namespace {

// Returns CUDA 12's NVRTC from the environment that test.sh makes. If it is not there, searches this machine.
const cuda::Library& nvrtc_12() {
  static const cuda::Library library = [] {
    cuda::LibraryPlaces places = cuda::LibraryPlaces::of_process(12);
    const std::filesystem::path packages = std::filesystem::path(TUTTI_BUILD_DIR) / "venv/backends/lib";
    for (const std::string& python : cuda::detail::names_in(packages))
      places.homes.insert(places.homes.begin(), packages / python / "site-packages/nvidia/cuda_nvrtc");
    return cuda::Library("libnvrtc.so.12", "CUDA 12's NVRTC", "libnvrtc-builtins.so.", places);
  }();
  return library;
}
bool no_nvrtc_12() {
  if (nvrtc_12().found()) return false;
  std::puts("SKIP: no NVRTC of CUDA 12 (./test.sh installs tests/backends/requirements.txt)");
  return true;
}

// Compiles every kernel as the backend does, with its own options.
void compile_all(int architecture) {
  if (no_nvrtc_12()) return;
  cuda::Compiler compiler{std::filesystem::path()};
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const cuda::Binary b = compiler.compile(cuda::op_source(t), architecture);
    CHECK(b.cubin.size() > 10000);
    CHECK(std::set<std::string>(b.symbols.begin(), b.symbols.end()).size() ==
          static_cast<std::size_t>(cuda::OpKernel::count));
  }
  CHECK(compiler.compile(cuda::update_source(), architecture).symbols.size() ==
        static_cast<std::size_t>(cuda::UpdateKernel::count));
  CHECK(compiler.compile(cuda::input_source(), architecture).symbols.size() ==
        static_cast<std::size_t>(cuda::InputKernel::count));
}

}  // namespace

// The functions that nvrtc.hpp calls.
extern "C" {
const char* nvrtcGetErrorString(nvrtcResult r) {
  return nvrtc_12().function<const char*(nvrtcResult)>("nvrtcGetErrorString")(r);
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* p, const char* text, const char* name, int n, const char* const* headers,
                               const char* const* names) {
  return nvrtc_12().function<decltype(nvrtcCreateProgram)>("nvrtcCreateProgram")(p, text, name, n, headers, names);
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  return nvrtc_12().function<decltype(nvrtcDestroyProgram)>("nvrtcDestroyProgram")(p);
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int n, const char* const* options) {
  return nvrtc_12().function<decltype(nvrtcCompileProgram)>("nvrtcCompileProgram")(p, n, options);
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char* name) {
  return nvrtc_12().function<decltype(nvrtcAddNameExpression)>("nvrtcAddNameExpression")(p, name);
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char* name, const char** lowered) {
  return nvrtc_12().function<decltype(nvrtcGetLoweredName)>("nvrtcGetLoweredName")(p, name, lowered);
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t* size) {
  return nvrtc_12().function<decltype(nvrtcGetCUBINSize)>("nvrtcGetCUBINSize")(p, size);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* code) {
  return nvrtc_12().function<decltype(nvrtcGetCUBIN)>("nvrtcGetCUBIN")(p, code);
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t* size) {
  return nvrtc_12().function<decltype(nvrtcGetProgramLogSize)>("nvrtcGetProgramLogSize")(p, size);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* log) {
  return nvrtc_12().function<decltype(nvrtcGetProgramLog)>("nvrtcGetProgramLog")(p, log);
}
}

TEST_CASE("every kernel compiles for sm_70 with CUDA 12" * doctest::test_suite("nightly")) { compile_all(70); }
TEST_CASE("every kernel compiles for sm_90 with CUDA 12" * doctest::test_suite("nightly")) { compile_all(90); }
