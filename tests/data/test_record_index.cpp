// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tutti/data/records/record_index.hpp>

#include "record_files.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr auto kind = RecordIndex::Kind::tfrecord;

// Three files of 100 bytes with 10, 0 and 5 records, and a count of the scans of these files.
struct Set {
  TempFolder folder;
  mutable std::atomic<int> scans{0};
  std::unique_ptr<ShardFiles> files;

  Set() {
    for (const char* name : {"a", "b", "c"}) write_text(folder / name, std::string(100, 'x'));
    examine();
  }
  void examine() {
    files = std::make_unique<ShardFiles>(std::vector<io::Path>{folder / "a", folder / "b", folder / "c"});
  }
  [[nodiscard]] RecordIndex open() const { return open(folder / "index"); }
  [[nodiscard]] RecordIndex open(const io::Path& path) const {
    return RecordIndex::open(*files, kind, path, [&](std::size_t f) {
      ++scans;
      std::vector<RecordSpan> s;
      const std::uint64_t n = f == 0 ? 10 : f == 1 ? 0 : 5;
      for (std::uint64_t i = 0; i < n; ++i) s.push_back({i * 7 + f, 7});
      return s;
    });
  }
};

void check(const RecordIndex& index) {
  REQUIRE(index.size() == 15);
  for (std::int64_t i = 0; i < 15; ++i) {
    const auto p = index.place(i);
    CHECK(p.file == (i < 10 ? 0 : 2));
    CHECK(p.record == (i < 10 ? i : i - 10));
    CHECK(index.span(i).offset == static_cast<std::uint64_t>(p.record) * 7 + p.file);
    CHECK(index.span(i).length == 7);
  }
}

}  // namespace

TEST_CASE("a record index is made once and reused") {
  Set set;
  check(set.open());
  CHECK(set.scans == 3);
  const auto again = set.open();
  check(again);
  CHECK(again.path() == set.folder / "index");
  CHECK(set.scans == 3);
  for (const auto& e : std::filesystem::directory_iterator(set.folder.path()))
    CHECK(!e.path().filename().string().starts_with(".tmp-"));
}

TEST_CASE("an index is made again if the files have changed") {
  Set set;
  (void)set.open();
  const auto scans_of = [&] {
    set.scans = 0;
    set.examine();
    check(set.open());
    return set.scans.load();
  };
  CHECK(scans_of() == 0);
  // If a file has a different length, the index is built again.
  write_text(set.folder / "b", "");
  CHECK(scans_of() == 3);
  CHECK(scans_of() == 0);
  // If a file has a different modification time, the index is built again.
  const auto time = std::filesystem::last_write_time(set.folder / "a");
  std::filesystem::last_write_time(set.folder / "a", time - std::chrono::seconds(5));
  CHECK(scans_of() == 3);
  CHECK(scans_of() == 0);
  // An index of files with other names, or of a different number of files, is not loaded.
  set.files = std::make_unique<ShardFiles>(std::vector<io::Path>{set.folder / "a", set.folder / "c", set.folder / "b"});
  CHECK(!RecordIndex::load(set.folder / "index", *set.files, kind));
  set.files = std::make_unique<ShardFiles>(std::vector<io::Path>{set.folder / "a", set.folder / "b"});
  CHECK(!RecordIndex::load(set.folder / "index", *set.files, kind));
  set.examine();
  CHECK(RecordIndex::load(set.folder / "index", *set.files, kind));
  CHECK(!RecordIndex::load(set.folder / "index", *set.files, RecordIndex::Kind::recordio));
  CHECK(!RecordIndex::load(set.folder / "none", *set.files, kind));
  CHECK(!RecordIndex::load(set.folder.path(), *set.files, kind));
}

TEST_CASE("a damaged index is made again") {
  Set set;
  (void)set.open();
  const Bytes good = read_bytes(set.folder / "index");
  const auto rejected = [&](const Bytes& b) {
    write_file(set.folder / "index", b);
    return !RecordIndex::load(set.folder / "index", *set.files, kind);
  };
  CHECK(!rejected(good));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes b = good;
    b[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    CHECK(rejected(b));
  }
  for (std::size_t n = 0; n < good.size(); ++n)
    CHECK(rejected(Bytes(good.begin(), good.begin() + static_cast<long>(n))));
  Bytes longer = good;
  longer.insert(longer.end(), 12, 0);
  CHECK(rejected(longer));
  set.scans = 0;
  check(set.open());
  CHECK(set.scans == 3);
  CHECK(read_bytes(set.folder / "index") == good);
}

TEST_CASE("if the data set's folder is read-only, the index is written to the cache folder") {
  Set set;
  const Variable cache("XDG_CACHE_HOME", (set.folder / "cache").string());
  const auto index = set.open(set.folder / "no such folder" / "index");  // even root cannot write to this path
  check(index);
  CHECK(index.path().parent_path() == set.folder / "cache" / "tutti");
  check(set.open(set.folder / "no such folder" / "index"));
  CHECK(set.scans == 3);
  check(set.open(set.folder / "no such folder" / "other"));  // the index of a different data set
  CHECK(set.scans == 6);
  // If XDG_CACHE_HOME is not an absolute path, the cache folder is in the home folder.
  {
    const Variable none("XDG_CACHE_HOME", "not/absolute");
    const Variable home("HOME", (set.folder / "home").string());
    CHECK(set.open(set.folder / "no such folder" / "index").path().parent_path() ==
          set.folder / "home" / ".cache" / "tutti");
  }
  // If there is no folder to write to, only this process has the index.
  {
    const Variable none("XDG_CACHE_HOME", "/proc/none");
    set.scans = 0;
    const auto nowhere = set.open(set.folder / "no such folder" / "index");
    check(nowhere);
    CHECK(nowhere.path().empty());
    CHECK(set.scans == 3);
  }
  if (::geteuid() == 0) {
    MESSAGE("as root a folder without the right to write can be written to; not tried");
    return;
  }
  ::chmod(set.folder.path().c_str(), 0555);
  CHECK(contains(set.open().path().string(), "cache"));
  ::chmod(set.folder.path().c_str(), 0755);
}

TEST_CASE("an exception while files are scanned is passed on, and no index is left") {
  Set set;
  for (int who = 0; who < 3; ++who) {
    const auto scan = [&](std::size_t f) -> std::vector<RecordSpan> {
      if (f == 2 && who == 0) fail<DataError>("c record 0", "a record", "none");
      if (f == 2 && who == 1) io::fail_file("read", "c", EIO);
      return {};
    };
    const auto message =
        message_of<DataError>([&] { (void)RecordIndex::open(*set.files, kind, set.folder / "index", scan); });
    CHECK(contains(message, who == 0 ? "c record 0" : who == 1 ? "read c" : "1 record or more"));
    CHECK(!std::filesystem::exists(set.folder / "index"));
  }
}

TEST_CASE("several threads may open a data set at once") {
  for (int round = 0; round < 5; ++round) {
    Set set;
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        const auto index = set.open();
        if (index.size() == 15 && index.span(14).offset == 30) ++good;
      });
    for (auto& t : threads) t.join();
    CHECK(good == 8);
    CHECK(set.scans == 3);  // one thread scanned the files, and the other threads waited
  }
}

TEST_CASE("a set may have more files than a process may have open at once") {
  const TempFolder folder;
  std::vector<io::Path> paths;
  for (int k = 0; k < 300; ++k) {
    paths.push_back(folder / std::to_string(k));
    write_text(paths.back(), std::to_string(k * 1000));
  }
  const ShardFiles files(paths);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t k = 0; k < 1200; ++k) {
        const std::size_t f = (k * (2 * t + 1)) % 300;
        Bytes b(std::to_string(f * 1000).size());
        files.read(f, 0, b);
        good += std::string(b.begin(), b.end()) == std::to_string(f * 1000);
      }
    });
  for (auto& t : threads) t.join();
  CHECK(good == 4800);
  std::size_t open = 0;
  for (const auto& e : std::filesystem::directory_iterator("/proc/self/fd")) open += e.exists() ? 1 : 0;
  CHECK(open < 160);
  CHECK(contains(message_of<DataError>([&] {
                   Bytes b(10);
                   files.read(7, 0, b);
                 }),
                 "truncated"));
}

TEST_CASE("shards are found by their names") {
  const TempFolder folder;
  const auto names = [&](const std::string& prefix, const std::string& suffix = "") {
    std::string all;
    for (const auto& p : find_shards(folder.path(), prefix, suffix)) all += p.filename().string() + " ";
    return all;
  };
  const auto touch = [&](const std::string& name) { write_text(folder / name, "x"); };
  CHECK(names("train").empty());
  CHECK(find_shards(folder / "none", "train", "").empty());
  for (const char* n :
       {"train-00000-of-00003", "train-00002-of-00003", "train-00001-of-00003", "train-00000-of-00001.x",
        "train-x-of-00003", "train-1", "xtrain-00000-of-00001", "val-1-of-2", "val-2-of-2"})
    touch(n);
  CHECK(names("train") == "train-00000-of-00003 train-00001-of-00003 train-00002-of-00003 ");
  CHECK(names("train", ".x") == "train-00000-of-00001.x ");
  CHECK(names("val") == "val-1-of-2 val-2-of-2 ");  // a set with numbers that start at 1
  std::filesystem::remove(folder / "train-00001-of-00003");
  auto message = message_of<DataError>([&] { (void)names("train"); });
  CHECK(contains(message, "missing: train-00001-of-00003"));
  CHECK(contains(message, folder.path().string()));
  CHECK(contains(message, "--allow-missing-shards"));
  std::string lacking;
  CHECK(find_shards(folder.path(), "train", "", &lacking).size() == 2);
  CHECK(lacking == "2 of 3 files in " + folder.path().string() + "; missing: train-00001-of-00003");
  touch("train-00003-of-00003");  // the set has the numbers 0 to 2, so 3 does not belong to it
  CHECK_THROWS_AS((void)find_shards(folder.path(), "train", "", &lacking), DataError);
  std::filesystem::remove(folder / "train-00003-of-00003");
  touch("train-00001-of-00003");
  lacking.clear();
  CHECK(find_shards(folder.path(), "train", "", &lacking).size() == 3);
  CHECK(lacking.empty());
  touch("train-00003-of-00003");
  CHECK(contains(message_of<DataError>([&] { (void)names("train"); }), "do not belong"));
  std::filesystem::remove(folder / "train-00003-of-00003");
  touch("train-1-of-3");
  CHECK(contains(message_of<DataError>([&] { (void)names("train"); }), "train-1-of-3"));
  std::filesystem::remove(folder / "train-1-of-3");
  touch("train-00000-of-00004");
  CHECK(contains(message_of<DataError>([&] { (void)names("train"); }), "one set"));
  // A large count in a file name must not take a long time.
  touch("big-000000000-of-999999999");
  CHECK(contains(message_of<DataError>([&] { (void)names("big"); }), "missing: big-00001-of-999999999"));
}
