// SPDX-License-Identifier: MIT
// Tests the creation of backends and strategies by name.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/backends/make/unused_gpu.hpp>

#if defined(TUTTI_HAS_ONEDNN)
#include <tutti/backends/onednn/onednn.hpp>
#endif

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

LaunchEnvironment processes(int n) {
  LaunchEnvironment e;
  e.size = e.workers = n;
  e.launched = n > 1;
  return e;
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "none";
}

// Returns whether the oneDNN of this build has kernels for this processor.
bool onednn_is_fast() {
#if defined(TUTTI_HAS_ONEDNN)
  return OnednnBackend::has_kernels();
#else
  return false;
#endif
}

}  // namespace

TEST_CASE("every backend of the build can be made by its name") {
  const auto built = built_backends();
  CHECK(built.back() == "reference");
  for (const std::string& word : built) {
    CAPTURE(word);
    if (word != "cuda") CHECK(make_backend(word)->name() == word);
  }
  BackendOptions o;
  o.gpu = false;
  const auto fastest = std::find_if(built.begin(), built.end(),
                                    [](const auto& w) { return w != "cuda" && (w != "onednn" || onednn_is_fast()); });
  CHECK(automatic_backend(o) == *fastest);
  CHECK(make_backend("auto", o)->name() == *fastest);
  o.bf16 = true;  // oneDNN has no bf16 on processors without AVX-512, Eigen always
  if (holds(built, "eigen")) CHECK(make_backend("auto", o)->computes_in(DType::bf16));
  o.bf16 = false;
  o.threads = 2;
  if (holds(built, "onednn")) CHECK(make_backend("onednn", o)->threads() == 2);
}

TEST_CASE("an unknown backend is refused") {
  BackendOptions o;
  o.where = "--backend";
  CHECK(error_of([&] {
          (void)make_backend("tpu", o);
        }).starts_with("[--backend] expected auto or a backend of this build: "));
  CHECK(error_of([] { (void)make_backend(""); }).starts_with("[make_backend] "));
}

TEST_CASE("an NVIDIA GPU of the host is found by its device file or in the list of the driver") {
  const test::TempFolder folder;
  const auto& root = folder.path();
  CHECK(detail::nvidia_gpu_of_host(root).empty());
  for (const char* other : {"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia", "dev/null", "proc/driver/nvidia/version"})
    test::write_text(root / other, "");
  CHECK(detail::nvidia_gpu_of_host(root).empty());
  for (const char* place : {"0000:af:00.0", "0000:3b:00.0"})
    test::write_text(root / "proc/driver/nvidia/gpus" / place / "information", "");
  CHECK(detail::nvidia_gpu_of_host(root) == root / "proc/driver/nvidia/gpus/0000:3b:00.0");
  for (const char* device : {"dev/nvidia3", "dev/nvidia0", "dev/nvidia12"}) test::write_text(root / device, "");
  CHECK(detail::nvidia_gpu_of_host(root) == root / "dev/nvidia0");
}

TEST_CASE("a strategy is made from its name, from MXNet's option values and from the launcher's variables") {
  CHECK(built_strategies().front() == "solo");
  for (const char* word : {"auto", "solo", "Solo", "local", "device", "dist_sync", "dist-device-sync", "dist_async"}) {
    CAPTURE(word);
    const AnyStrategy s = make_strategy(word, {}, processes(1));
    CHECK(s.name() == "solo");
    CHECK(s.size() == 1);
  }
  CHECK(strategy_of_kv_store("dist_sync", 4, false) == "mpi");
  CHECK(strategy_of_kv_store("dist_sync", 4, true) == "nccl");
  for (const char* word : {"dist_sync", "dist_device_sync", "dist_sync_device"})
    CHECK(strategy_of_kv_store(word, 4, true, 2) == "ps");
  CHECK(strategy_of_kv_store("dist_async", 4, true) == "ps_async");
  CHECK(strategy_of_kv_store("local", 1, false) == "solo");
}

TEST_CASE("strategies that do not fit the started processes are refused") {
  const auto two = processes(2);
  CHECK(error_of([&] {
          (void)make_strategy("solo", {}, two);
        }).starts_with("[--strategy solo] expected 2 ranks, because 2 processes were started, got 1 rank"));
  CHECK(error_of([&] { (void)make_strategy("ring", {}, two); }).starts_with("[make_strategy] expected solo"));
  CHECK(error_of([&] { (void)make_strategy("gloo", {}, two); })
            .find(holds(built_strategies(), "gloo") ? "expected tutti-launch, which provides the channel"
                                                    : "libgloo-dev") != std::string::npos);
  CHECK(error_of([&] {
          (void)make_strategy("dist_async", {}, two);
        }).find(holds(built_strategies(), "ps_async") ? "ps_async" : "libzmq") != std::string::npos);
  if (holds(built_strategies(), "ps_async")) {
    const auto serve = [&] { serve_workers("ps_async", {}, two); };
    CHECK(error_of(serve).starts_with(
        "[make_strategy] expected the weights that a server of ps_async owns, got no weights"));
  }
  if (holds(built_strategies(), "mpi"))
    CHECK(error_of([&] { (void)make_strategy("auto", {}, two); }).starts_with("[--strategy mpi] expected 2 ranks"));
  if (holds(built_strategies(), "nccl"))
    CHECK(error_of([&] { (void)make_strategy("nccl", {}, two); }).find("the cuda backend, because") !=
          std::string::npos);
}

TEST_CASE(
    "encryption is refused if the strategy or the build cannot do it, and TUTTI_ENCRYPT decides if no option does") {
  const auto two = processes(2);
  const auto error = [&](const char* strategy, Encryption wanted, bool plain = false) {
    return error_of([&] { (void)make_strategy(strategy, {.ps_plain = plain, .encrypt = wanted}, two); });
  };
  for (const char* library : {"mpi", "nccl"})
    if (holds(built_strategies(), library))
      CHECK(error(library, Encryption::on).starts_with("[--encrypt] expected gloo, ps or ps_async with on"));
  if (holds(built_strategies(), "ps")) {
    CHECK(error("ps", Encryption::off).starts_with("[--encrypt] expected on without --ps-plain, got off"));
    CHECK(error("ps_async", Encryption::on, true).starts_with("[--encrypt] expected off with --ps-plain, got on"));
  }
  if (holds(built_strategies(), "gloo")) {
    // A build with OpenSSL lacks only the launcher.
    try {
      CHECK(error("gloo", Encryption::on).starts_with("[--strategy gloo] expected tutti-launch"));
    } catch (const DeviceError& e) {
      CHECK(std::string(e.what()).starts_with("[--encrypt] expected a build with OpenSSL for on"));
    }
  }
  if (!holds(built_strategies(), "mpi")) return;
  ::setenv("TUTTI_ENCRYPT", "on", 1);
  CHECK(error("mpi", Encryption::automatic).starts_with("[--encrypt]"));
  CHECK(error("mpi", Encryption::off).starts_with("[--strategy mpi] expected 2 ranks"));
  ::setenv("TUTTI_ENCRYPT", "perhaps", 1);
  CHECK(error("mpi", Encryption::automatic).starts_with("[environment TUTTI_ENCRYPT] expected auto, on or off"));
  ::unsetenv("TUTTI_ENCRYPT");
}

TEST_CASE("if the launcher asks for the strategy, the program prints the strategy and ends") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  std::fflush(stdout);  // otherwise the child prints the buffered text a second time
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    setenv("TUTTI_ASK", "launch", 1);
    (void)make_strategy("solo", {}, processes(2));
    _exit(99);
  }
  close(ends[1]);
  std::string said(200, '\0');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(read(ends[0], said.data(), said.size()), 0)));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(said == "TUTTI-ANSWER 1 strategy=solo mpi=0 servers=0\n");
}
