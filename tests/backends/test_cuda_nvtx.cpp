// SPDX-License-Identifier: MIT
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

#include <tutti/backends/cuda/nvtx.hpp>
#include <tutti/core/span.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/trace/trace_recorder.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti;

TEST_CASE("a profiler gets the spans of the timeline, nested") {
#if defined(NVTX_VERSION)
  using Said = const char* (*)();
  void* const library = ::dlopen(TUTTI_STAND_IN, RTLD_NOW);
  REQUIRE(library != nullptr);
  const auto said = reinterpret_cast<Said>(::dlsym(library, "tutti_nvtx_said"));
  REQUIRE((said != nullptr));

  cuda::NvtxRanges::watch_if_profiled();  // no profiler is attached
  CHECK(span_watcher.load() == nullptr);

  const test::TempFolder folder;
  auto& recorder = io::TraceRecorder::start({.file = folder.path() / "t.json", .first_step = 2, .last_step = 2});
  ::setenv("NVTX_INJECTION64_PATH", TUTTI_STAND_IN, 1);
  cuda::NvtxRanges::watch_if_profiled();
  cuda::NvtxRanges::watch_if_profiled();
  for (int step = 1; step <= 3; ++step) {
    const Span outer(Lane::step, "step", {}, step);
    const Span inner(Lane::compute, "conv2d", "conv" + std::to_string(step), -1, detail_watcher);
  }
  span_watcher.load()->over(Lane::communication, "push " + std::string(200, 'x'), 12, 5);
  recorder.close();
  { const Span after(Lane::checkpoint, "checkpoint"); }
  std::string expected = "domain tutti\n";
  for (const std::string step : {"1", "2", "3"})
    expected += "begin step " + step + "\nbegin conv2d conv" + step + "\nend\nend\n";
  expected += "mark push " + std::string(90, 'x') + " 12\nbegin checkpoint\nend\n";
  CHECK(std::string(said()) == expected);
  // The timeline contains the layers of the traced steps only.
  const std::string text = io::read_text_file(folder.path() / "t.json", 1 << 20);
  CHECK(text.find("conv2d conv1") == std::string::npos);
  CHECK(text.find("conv2d conv2") != std::string::npos);
  CHECK(text.find("conv2d conv3") == std::string::npos);
  CHECK(text.find("\"checkpoint\"") == std::string::npos);
#else
  std::puts("SKIP: the CUDA toolkit has no headers of NVTX");
#endif
}
