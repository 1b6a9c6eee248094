// SPDX-License-Identifier: MIT
// Tests that execution plans are stored between runs.
#include <tutti/backends/cuda/cudnn/plan_store.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;
using cuda::PlanStore;

namespace {

const std::string key = "convolution forward bf16 n256 c64 | timed | cudnn 9.19.0 | NVIDIA H200";

// Sets an environment variable during its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Variable() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string old_;
};

}  // namespace

TEST_CASE("a saved plan is loaded only with the same key") {
  const test::TempFolder folder;
  const PlanStore store(folder.path() / "a" / "b");
  CHECK_FALSE(store.load(key));
  std::string plan = "{\"plan\": [1, 2]}\n";
  plan += std::string("\0\xff", 2);
  CHECK(store.save(key, plan));
  CHECK(store.load(key) == plan);
  CHECK_FALSE(store.load(key + " deterministic"));
  CHECK(store.save(key, "another"));
  CHECK(store.load(key) == "another");
  CHECK(PlanStore(folder.path() / "a" / "b").load(key) == "another");
  store.forget(key);
  CHECK_FALSE(store.load(key));
  store.forget(key);
}

TEST_CASE("damaged files are ignored") {
  const test::TempFolder folder;
  const PlanStore store(folder.path());
  const std::string plan(5000, 'p');
  REQUIRE(store.save(key, plan));
  const auto file = store.file_of(key);
  const std::string good = io::read_text_file(file, 1 << 20);
  // Files that end too early, and files with a flipped bit.
  for (std::size_t n = 0; n < good.size(); n += n < 120 ? 3 : 197) {
    io::atomic_write_file(file, std::string_view(good).substr(0, n));
    CHECK_FALSE(store.load(key));
    std::string changed = good;
    changed[n] = static_cast<char>(changed[n] ^ 0x10);
    io::atomic_write_file(file, changed);
    CHECK_FALSE(store.load(key));
  }
  io::atomic_write_file(file, good + "x");
  CHECK_FALSE(store.load(key));
  io::atomic_write_file(file, good);
  CHECK(store.load(key) == plan);
  // The file of another key is at this file's path, as if both keys had the same hash.
  REQUIRE(store.save("other", "of another"));
  std::filesystem::rename(store.file_of("other"), file);
  CHECK_FALSE(store.load(key));
  // A folder is at this path.
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  CHECK_FALSE(store.load(key));
}

TEST_CASE("if the folder cannot be used, plans are not stored and no error occurs") {
  const PlanStore nowhere("");
  CHECK_FALSE(nowhere.save(key, "x"));
  CHECK_FALSE(nowhere.load(key));
  nowhere.forget(key);
  const test::TempFolder folder;
  io::atomic_write_file(folder.path() / "file", std::string_view("x"));
  const PlanStore below_a_file(folder.path() / "file" / "folder");
  CHECK_FALSE(below_a_file.save(key, "x"));
  CHECK_FALSE(below_a_file.load(key));
  CHECK_FALSE(PlanStore(folder.path()).save(key, ""));
}

TEST_CASE("several processes that write at once leave one complete file") {
  const test::TempFolder folder;
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i)
    writers.emplace_back([&, i] {
      const PlanStore store(folder.path());
      for (int n = 0; n < 20; ++n) {
        store.save(key, std::string(10000, static_cast<char>('a' + i)));
        const auto text = store.load(key);
        if (!text || *text != std::string(10000, text->front())) std::abort();
      }
    });
  for (auto& w : writers) w.join();
  CHECK(PlanStore(folder.path()).load(key)->size() == 10000);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("the default folder follows XDG_CACHE_HOME and HOME") {
  {
    const Variable cache("XDG_CACHE_HOME", "/somewhere");
    CHECK(cuda::default_plan_folder() == "/somewhere/tutti/cudnn");
  }
  const Variable cache("XDG_CACHE_HOME", nullptr);
  {
    const Variable home("HOME", "/home/me");
    CHECK(cuda::default_plan_folder() == "/home/me/.cache/tutti/cudnn");
  }
  {
    const Variable home("HOME", "relative");
    CHECK(cuda::default_plan_folder().empty());
  }
  const Variable home("HOME", nullptr);
  CHECK(cuda::default_plan_folder().empty());
}
