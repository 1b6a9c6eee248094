// SPDX-License-Identifier: MIT
// Tests the order of a checkpoint's operations on the disk, and the effect of a disk that fails or loses data.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/checkpoint/checkpoint.hpp>

#include "../data/temp_folder.hpp"
#include "checkpoint_state.hpp"

using namespace tutti;
using namespace tutti::io;
using test::contains;
using test::message_of;
using test::save;
using test::State;
using test::TempFolder;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

namespace {

// A simulated disk during its lifetime. It records the operations, with names relative to the run's folder, and makes
// an operation fail if a test requests it.
struct Disk {
  explicit Disk(const TempFolder& run) : base(run.path().string()) { now = this; }
  ~Disk() { now = nullptr; }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Returns ASIDE for a temporary name.
  [[nodiscard]] std::string name(std::string path) const {
    if (path == base) return "RUN";
    if (path == fs::path(base).parent_path()) return "PARENT";
    if (path.starts_with(base + "/checkpoints")) path.erase(0, base.size() + std::string("/checkpoints").size());
    if (path.empty()) return "CHECKPOINTS";
    if (path.starts_with("/.tmp-")) path = "ASIDE" + path.substr(std::min(path.find('/', 1), path.size()));
    return path.starts_with("/") ? path.substr(1) : path;
  }
  [[nodiscard]] std::string name(int fd) const {
    char text[4096];
    const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof text);
    return n > 0 ? name(std::string(text, static_cast<std::size_t>(n))) : "";
  }
  [[nodiscard]] Names take() { return std::exchange(asked, {}); }

  std::string base;
  Names asked{};
  std::string cannot{};            // the operation that fails with EIO
  std::function<void()> behind{};  // called when the name of the new checkpoint is on the disk
  static inline Disk* now = nullptr;
};

// Records an operation. Returns false if it shall fail.
bool ask(const std::string& what) {
  Disk& disk = *Disk::now;
  disk.asked.push_back(what);
  if (what == "sync CHECKPOINTS" && disk.behind) std::exchange(disk.behind, {})();
  if (what != disk.cannot) return true;
  errno = EIO;
  return false;
}

// Removes the last byte of a file, as if it had never reached the disk.
void lose_end(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); }

Names names_in(const fs::path& folder) {
  Names out;
  for (const auto& e : fs::directory_iterator(folder)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

Path save_of(CheckpointStore& store, std::int64_t step, std::int64_t generation) {
  const State state(step, 10);
  CheckpointData data = state.data();
  data.generation = generation;
  return store.save(data);
}

const Names written{"sync ASIDE/model.safetensors",
                    "close ASIDE/model.safetensors",
                    "sync ASIDE/optimizer.safetensors",
                    "close ASIDE/optimizer.safetensors",
                    "sync ASIDE/manifest.json",
                    "close ASIDE/manifest.json",
                    "sync ASIDE/COMPLETE",
                    "close ASIDE/COMPLETE",
                    "sync ASIDE"};
Names read_back(const std::string& name) {
  return {"rename ASIDE " + name,
          "sync CHECKPOINTS",
          "forget " + name + "/model.safetensors",
          "forget " + name + "/optimizer.safetensors",
          "forget " + name + "/manifest.json",
          "forget " + name + "/COMPLETE"};
}
Names joined(std::initializer_list<Names> parts) {
  Names all;
  for (const Names& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

}  // namespace

// Replaces the system's functions for the headers that are tested. No data has to reach a real disk.
extern "C" int fsync(int fd) { return Disk::now == nullptr || ask("sync " + Disk::now->name(fd)) ? 0 : -1; }
extern "C" int close(int fd) {
  bool good = true;
  // Records only files that were written: the result of the close of a file that was read does not matter.
  if (Disk::now != nullptr && (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
    if (const std::string name = Disk::now->name(fd); name.starts_with("ASIDE/")) good = ask("close " + name);
  const long closed = ::syscall(SYS_close, fd);
  if (!good) errno = EIO;
  return good ? static_cast<int>(closed) : -1;
}
extern "C" int rename(const char* from, const char* to) noexcept {
  if (Disk::now != nullptr && !ask("rename " + Disk::now->name(from) + " " + Disk::now->name(to))) return -1;
  return static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}
extern "C" int posix_fadvise(int fd, off_t, off_t, int advice) noexcept {
  if (Disk::now != nullptr && advice == POSIX_FADV_DONTNEED) (void)ask("forget " + Disk::now->name(fd));
  return 0;
}

TEST_CASE("a checkpoint is synchronised before its rename, and read back before an older checkpoint is removed") {
  const TempFolder run;
  Disk disk(run);
  CheckpointStore store(run.path(), 1);
  save(store, 1);
  CHECK(disk.take() == joined({{"sync RUN", "sync PARENT"}, written, read_back("step-000000001")}));
  save(store, 2);
  CHECK(disk.take() == joined({written, read_back("step-000000002"), {"rename step-000000001 ASIDE"}}));
  save(store, 2);
  CHECK(disk.take() == joined({written,
                               {"rename step-000000002 step-000000002.old"},
                               read_back("step-000000002"),
                               {"rename step-000000002.old ASIDE"}}));
  const mode_t mask = ::umask(022);
  CHECK(fs::status(save(store, 3)).permissions() == static_cast<fs::perms>(0755));
  ::umask(mask);
}

TEST_CASE("if the disk fails, only the earlier checkpoint remains") {
  for (const std::string& what : written) {
    const TempFolder run;
    Disk disk(run);
    CheckpointStore store(run.path(), 1);
    save(store, 1);
    disk.cannot = what;
    CHECK_THROWS_AS(save(store, 2), FileError);
    CHECK(names_in(store.folder()) == Names{"step-000000001"});
  }
  for (const char* what : {"rename ASIDE step-000000005", "sync CHECKPOINTS"}) {
    const TempFolder run;
    Disk disk(run);
    CheckpointStore store(run.path(), 1);
    const Path path = save(store, 5, 10);
    disk.cannot = what;
    CHECK_THROWS_AS(save(store, 5, 20), FileError);
    CHECK(names_in(store.folder()) == Names{"step-000000005"});
    CHECK(State(5, 10).difference(store.load(path)) == "");
  }
  const TempFolder run;
  Disk disk(run);
  CheckpointStore store(run.path(), 1);
  save(store, 1);
  disk.cannot = "rename step-000000001 ASIDE";
  CHECK(contains(message_of<FileError>([&] { save(store, 2); }),
                 "step-000000002 is valid, but older ones were not removed"));
  CHECK(store.load_newest_valid()->step() == 2);
}

TEST_CASE("a checkpoint that cannot be read back does not count, and the earlier checkpoint is restored") {
  const TempFolder run;
  Disk disk(run);
  CheckpointStore store(run.path(), 1);
  const Path path = store.folder() / "step-000000005";
  const auto damaged_save = [&](std::int64_t step, std::size_t elements) {
    disk.behind = [=, &store] {
      char name[32];
      std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
      lose_end(store.folder() / name / "optimizer.safetensors");
    };
    CHECK_THROWS_AS(save(store, step, elements), DataError);
  };
  save(store, 4);
  damaged_save(5, 10);
  CHECK(names_in(store.folder()) == Names{"step-000000004"});
  save(store, 5, 10);
  damaged_save(5, 20);
  CHECK(names_in(store.folder()) == Names{"step-000000005"});
  CHECK(State(5, 10).difference(store.load(path)) == "");

  // A checkpoint that was being replaced when a process was killed is next to it.
  const Path old = store.folder() / "step-000000005.old";
  fs::copy(path, old, fs::copy_options::recursive);
  fs::remove_all(path);
  save(store, 4);
  save(store, 5, 20);
  fs::remove_all(old);
  fs::copy(path, old, fs::copy_options::recursive);
  lose_end(old / "model.safetensors");
  damaged_save(5, 30);
  CHECK(State(5, 20).difference(store.load(path)) == "");
  CHECK_FALSE(path_exists(old));

  fs::copy(path, old, fs::copy_options::recursive);
  lose_end(path / "model.safetensors");
  damaged_save(5, 30);
  CHECK(State(5, 20).difference(store.load(path)) == "");
  CHECK_FALSE(path_exists(old));
}

TEST_CASE("the mark of a generation's beginning is kept while an earlier generation may have valid checkpoints") {
  const TempFolder run;
  Disk disk(run);
  const auto begins = [&] {
    Names names = names_in(run.path() / "checkpoints");
    std::erase_if(names, [](const std::string& n) { return !n.starts_with("generation-"); });
    return names;
  };
  CheckpointStore two(run.path(), 2), three(run.path(), 3);
  save_of(two, 2, 1);
  save_of(two, 4, 1);
  two.begin_generation(2, 4);
  save_of(two, 6, 2);
  save_of(two, 8, 2);
  CHECK(begins() == Names{"generation-2-behind-4"});  // the current generation always keeps its own file
  two.begin_generation(3, 8);
  CHECK(begins() == Names{"generation-2-behind-4", "generation-3-behind-8"});
  save_of(two, 10, 3);
  CHECK(begins() == Names{"generation-3-behind-8"});
  two.begin_generation(4, 10);
  save_of(three, 12, 4);  // generation 4 keeps the checkpoints of steps 8 and 10
  CHECK(begins() == Names{"generation-3-behind-8", "generation-4-behind-10"});
  save_of(two, 14, 4);
  CHECK(begins() == Names{"generation-4-behind-10"});
}

TEST_CASE("a missing best checkpoint and a best.json that is too long are errors") {
  const TempFolder run;
  Disk disk(run);
  CheckpointStore store(run.path());
  const Path path = save(store, 2);
  store.mark_best(2, 0.5);
  const Path mark = store.folder() / "best.json";
  std::string text = read_text_file(mark, 4096);
  text.resize(4096, ' ');
  test::write_text(mark, text);
  CHECK(store.load_best()->step() == 2);
  test::write_text(mark, text + " ");
  CHECK_THROWS_AS((void)store.best(), DataError);
  test::write_text(mark, text);
  fs::remove_all(path);
  CHECK(contains(message_of<DataError>([&] { (void)store.load_best(); }), "a checkpoint of step 2, got none"));
}
