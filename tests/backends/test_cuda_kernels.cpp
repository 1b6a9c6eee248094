// SPDX-License-Identifier: MIT
// takes long
// Tests tutti's CUDA kernels without a GPU: NVRTC compiles them for every architecture, the cache on disk keeps them,
// and errors name what is missing.
#include <tutti/backends/cuda/cuda.hpp>

#include <doctest/doctest.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

bool no_nvrtc() {
  if (cuda::nvrtc_library().found()) return false;
  std::puts("SKIP: no NVRTC");
  return true;
}

cuda::Source small(const std::string& body = "*x = 1;") {
  return {"small", "template <class T> __global__ void one(T* x) { " + body + " }", {"one<float>", "one<int>"}};
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> list;
  for (const auto& e : std::filesystem::directory_iterator(folder)) list.push_back(e.path());
  return list;
}
std::string text_of(const std::filesystem::path& p) {
  std::ifstream in(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void compile_all(int architecture) {
  if (no_nvrtc()) return;
  cuda::Compiler compiler{std::filesystem::path()};
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const cuda::Source s = cuda::op_source(t);
    const cuda::Binary b = compiler.compile(s, architecture);
    CHECK(b.cubin.size() > 10000);
    CHECK(b.symbols.size() == static_cast<std::size_t>(cuda::OpKernel::count));
    CHECK(std::set<std::string>(b.symbols.begin(), b.symbols.end()).size() == b.symbols.size());
  }
  const cuda::Binary b = compiler.compile(cuda::update_source(), architecture);
  CHECK(b.symbols.size() == static_cast<std::size_t>(cuda::UpdateKernel::count));
  CHECK(compiler.compile(cuda::input_source(), architecture).symbols.size() ==
        static_cast<std::size_t>(cuda::InputKernel::count));
}

}  // namespace

TEST_CASE("every kernel begins with the wait for earlier kernels, and no pointer is __restrict__") {
  const std::string begin = " {\n  wait_for_earlier_kernels();\n";
  for (const cuda::Source& s : {cuda::op_source(DType::bf16), cuda::update_source(), cuda::input_source()}) {
    std::size_t kernels = 0, waits = 0;
    for (std::size_t at = 0; (at = s.text.find("\n__global__ ", at)) != std::string::npos; ++at) {
      ++kernels;
      const std::size_t body = s.text.find(" {\n", at);
      waits += s.text.compare(body, begin.size(), begin) == 0 ? 1 : 0;
    }
    CHECK(kernels > 0);
    CHECK(waits == kernels);
    CHECK(s.text.find("__restrict__ ") == std::string::npos);
  }
}
TEST_CASE("every kernel compiles for sm_70, in a build with CUDA 12") {
  if (cuda::oldest_architecture(CUDART_VERSION) <= 70)
    compile_all(70);
  else
    std::puts("SKIP: CUDA 13 does not compile for sm_70; test_cuda_kernels_volta does it with CUDA 12's NVRTC");
}
TEST_CASE("every kernel compiles for sm_75" * doctest::test_suite("nightly")) { compile_all(75); }
TEST_CASE("every kernel compiles for sm_80" * doctest::test_suite("nightly")) { compile_all(80); }
TEST_CASE("every kernel compiles for sm_90") { compile_all(90); }
TEST_CASE("every kernel compiles for sm_100" * doctest::test_suite("nightly")) { compile_all(100); }
TEST_CASE("every kernel compiles for sm_120" * doctest::test_suite("nightly")) { compile_all(120); }

TEST_CASE("each kernel, and its form for single values, is found under its own name") {
  const auto name = [](cuda::OpKernel k) { return cuda::op_kernel_names[static_cast<std::size_t>(k)]; };
  const auto update = [](cuda::UpdateKernel k) { return cuda::update_kernel_names[static_cast<std::size_t>(k)]; };
  CHECK(name(cuda::forms::max_pool.of(true)) == "max_pool<T, V>");
  CHECK(name(cuda::forms::max_pool.of(false)) == "max_pool<T, 1>");
  CHECK(name(cuda::OpKernel::loss_finish) == "loss_finish");
  CHECK(update(cuda::update_forms::accumulate.of(false)) == "accumulate<1>");
  // In the names of batch norm's kernels the number is the kernel's argument.
  const cuda::NormTiles vectors(DType::bf16, 64, 64), odd(DType::bf16, 64, 63);
  for (bool relu : {false, true})
    for (bool residual : {false, true}) {
      const cuda::NormApplyForm f{relu, residual};
      const std::string own = "norm_apply<T, V, " + std::to_string(f.bits()) + ">";
      CHECK((name(f.kernel(vectors)) == own || name(f.kernel(vectors)) == "norm_apply<T, V, -1>"));
      CHECK(name(f.kernel(odd)) == "norm_apply<T, 1, -1>");
    }
  const cuda::NormApplyForm writes_mask{true, true, true};
  CHECK(name(writes_mask.kernel(vectors)) == "norm_apply<T, 8, " + std::to_string(writes_mask.bits()) + ">");
  for (const bool second : {false, true}) {
    const cuda::NormBackwardForm f{3, second, true};
    CHECK(name(f.sums(vectors)) == "norm_backward_sums<T, 8, " + std::to_string(f.bits()) + ">");
  }
  for (int mask : {0, 1, 2})
    for (bool second : {false, true})
      for (bool keep : {false, true}) {
        const cuda::NormBackwardForm f{mask, second, keep};
        const auto check = [&](const std::string& kernel, std::string_view chosen, std::string_view for_odd, int bits) {
          CHECK((chosen == kernel + "<T, V, " + std::to_string(bits) + ">" || chosen == kernel + "<T, V, -1>"));
          CHECK(for_odd == kernel + "<T, 1, -1>");
        };
        check("norm_backward_sums", name(f.sums(vectors)), name(f.sums(odd)), f.bits());
        check("norm_backward_apply", name(f.apply(vectors)), name(f.apply(odd)), f.apply_bits());
      }
}

TEST_CASE("a compiled program is stored by source, kernels and architecture") {
  if (no_nvrtc()) return;
  const test::TempFolder folder;
  const auto cache = folder.path() / "deep" / "cache";
  cuda::Compiler first(cache), second(cache);
  const cuda::Binary a = first.compile(small(), 90);
  // A recompilation would rewrite the file.
  const auto file = files_of(cache).at(0);
  const auto written = std::filesystem::last_write_time(file);
  const cuda::Binary b = second.compile(small(), 90);
  CHECK(std::filesystem::last_write_time(file) == written);
  CHECK(a.cubin == b.cubin);
  CHECK(a.symbols == b.symbols);
  CHECK(a.symbols.at(0) != a.symbols.at(1));
  (void)second.compile(small("*x = 2;"), 90);
  (void)second.compile(small(), 80);
  auto fewer = small();
  fewer.kernels.pop_back();
  (void)second.compile(fewer, 90);
  CHECK(files_of(cache).size() == 4);
}

TEST_CASE("a stored program is loaded without NVRTC") {
  const auto open = [] {
    const std::string file = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
    return ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  };
  const bool before = open();  // true if an earlier test of this process opened it
  const test::TempFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!cuda::nvrtc_library().found()) ::_exit(77);
    cuda::Compiler c(folder.path());
    ::_exit(c.compile(small(), 90).cubin.empty() ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::puts("SKIP: no NVRTC");
    return;
  }
  REQUIRE(status == 0);
  cuda::Compiler c(folder.path());
  CHECK_FALSE(c.compile(small(), 90).cubin.empty());
  CHECK(open() == before);
}

namespace {

// Runs a case of this program in a mount namespace, after the commands in `hide`. Returns the status and the output of
// the program; an empty output and a printed skip if there is no such namespace.
std::pair<int, std::string> run_hidden(const std::string& hide, const std::string& test_case) {
  const auto output_of = [](const std::string& command) {
    std::string text;
    FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    return std::pair(::pclose(pipe), text);
  };
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const char* way : {"unshare -m", "unshare -rm"})
    if (output_of(std::string(way) + " sh -c '" + hide + "'").first == 0)
      return output_of(std::string(way) + " sh -c '" + hide +
                       " && exec env -u LD_LIBRARY_PATH -u CUDA_HOME -u CUDA_PATH TUTTI_TEST_HIDDEN=1 \"" + self +
                       "\" --test-case=\"" + test_case + "\"'");
  std::puts("SKIP: no mount namespace to hide files in");
  return {};
}

}  // namespace

// Without the loader's cache, NVRTC and the libraries that it opens by name are found only by their paths.
TEST_CASE("NVRTC works from a folder that the dynamic loader does not search") {
  if (no_nvrtc()) return;
  const auto run = run_hidden("mount --bind /dev/null /etc/ld.so.cache", "a compiled program is stored*");
  const std::string& text = run.second;
  if (text.empty()) return;
  if (text.find("SKIP: no NVRTC") != std::string::npos) {
    std::puts("SKIP: NVRTC is in a folder that the loader alone finds");
    return;
  }
  INFO(text);
  CHECK(run.first == 0);
}

TEST_CASE("a missing NVRTC is an error of one line, with the file's name and the folders that were searched") {
  if (!cuda::nvrtc_library().found()) {
    try {
      (void)cuda::Compiler(std::filesystem::path()).compile(small(), 90);
      FAIL("compiled without NVRTC");
    } catch (const DeviceError& e) {
      const std::string text = e.what(), file = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
      CAPTURE(text);
      CHECK(e.exit_code() == 4);
      CHECK(text.starts_with("[cuda] expected the library " + file + ", got " + file + ": cannot open"));
      CHECK(text.find("tutti searches the loader's folders, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda-") !=
            std::string::npos);
      CHECK(text.find('\n') == std::string::npos);
    }
    return;
  }
  // Once more without the toolkits.
  if (std::getenv("TUTTI_TEST_HIDDEN") != nullptr) {
    std::puts("SKIP: NVRTC is not in a toolkit of /usr/local");
    return;
  }
  const auto run =
      run_hidden("mount --bind /dev/null /etc/ld.so.cache && mount -t tmpfs none /usr/local", "a missing NVRTC*");
  if (run.second.find("SKIP: ") != std::string::npos) std::puts("SKIP: NVRTC is not in a toolkit of /usr/local");
  INFO(run.second);
  CHECK(run.first == 0);
}

TEST_CASE("a damaged file in the kernel cache is replaced by a newly compiled one") {
  if (no_nvrtc()) return;
  const test::TempFolder folder;
  const cuda::Binary good = cuda::Compiler(folder.path()).compile(small(), 90);
  const auto file = files_of(folder.path()).at(0);
  const std::string text = text_of(file);
  const auto damage = [&](std::string bad) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bad;
    cuda::Compiler c(folder.path());
    CHECK(c.compile(small(), 90).cubin == good.cubin);
    CHECK(text_of(file) == text);
  };
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{40}, text.size() / 2, text.size() - 1})
    damage(text.substr(0, size));
  damage(text + "x");
  for (std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{50}, text.size() / 2, text.size() - 1}) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    damage(bad);
  }
  // A folder at the file's path does not cause an error either.
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  cuda::Compiler c(folder.path());
  CHECK(c.compile(small(), 90).cubin == good.cubin);
}

TEST_CASE("if the folder cannot be written, kernels are compiled again") {
  if (no_nvrtc()) return;
  const test::TempFolder folder;
  std::ofstream(folder.path() / "file") << "no folder";
  cuda::Compiler c(folder.path() / "file" / "cache");
  CHECK_FALSE(c.compile(small(), 90).cubin.empty());
}

TEST_CASE("if a source does not compile, the error has the compiler's message") {
  if (no_nvrtc()) return;
  cuda::Compiler c{std::filesystem::path()};
  CHECK_THROWS_WITH_AS((void)c.compile(small("*x = nothing;"), 90), doctest::Contains("identifier \"nothing\""),
                       DeviceError);
  CHECK_THROWS_WITH_AS((void)c.compile(small(), 999), doctest::Contains("update the CUDA toolkit"), DeviceError);
}

TEST_CASE("the cache folder follows XDG_CACHE_HOME and HOME") {
  const auto with = [](const char* cache, const char* home) {
    const std::string old_cache = std::getenv("XDG_CACHE_HOME") != nullptr ? std::getenv("XDG_CACHE_HOME") : "",
                      old_home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("HOME", home, 1);
    const auto r = cuda::default_cache_folder();
    if (old_cache.empty())
      unsetenv("XDG_CACHE_HOME");
    else
      setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
    if (old_home.empty())
      unsetenv("HOME");
    else
      setenv("HOME", old_home.c_str(), 1);
    return r;
  };
  CHECK(with("/c", "/h") == "/c/tutti/cuda");
  CHECK(with("", "/h") == "/h/.cache/tutti/cuda");
  CHECK(with("relative", "/h") == "/h/.cache/tutti/cuda");
  CHECK(with("", "").empty());
}

TEST_CASE("the error for a missing library names the library and its package") {
  const cuda::Library none("libtutti-no-such-library.so.9", "the package of it");
  CHECK_FALSE(none.found());
  try {
    (void)none.function<void()>("anything");
    FAIL("found");
  } catch (const DeviceError& e) {
    CHECK(e.exit_code() == 4);
    const std::string text = e.what();
    CHECK(text.find("expected the library libtutti-no-such-library.so.9") != std::string::npos);
    CHECK(text.find("hint: install the package of it") != std::string::npos);
  }
  const cuda::Library c("libc.so.6", "libc6");
  CHECK(c.found());
  CHECK_THROWS_WITH_AS((void)c.function<void()>("tutti_no_such_function"), doctest::Contains("update libc6"),
                       DeviceError);
}

TEST_CASE("without a GPU the CUDA backend fails with exit code 4") {
  try {
    const CudaBackend backend;
    std::puts("SKIP: there is a GPU");
  } catch (const DeviceError& e) {
    CHECK(e.exit_code() == 4);
    CHECK(std::string(e.what()).starts_with("[cuda] expected "));
    CHECK(std::string(e.what()).find(" hint: ") != std::string::npos);
  }
}
