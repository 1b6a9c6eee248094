// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../data/temp_folder.hpp"
#include "http_server.hpp"

using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

struct Result {
  int code = -1;
  std::string text;
};

Result shell(const std::string& command) {
  Result r;
  FILE* pipe = ::popen(("(" + command + ") 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) r.text.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return r;
}

bool have(const std::string& program) { return shell("command -v " + program).code == 0; }

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string quoted(const fs::path& p) { return "'" + p.string() + "'"; }

// Returns a PATH with `downloader` and without the other downloader. The scripts must work with either.
std::string path_with(const TempFolder& folder, const std::string& downloader) {
  const auto bin = folder / ("bin-" + downloader);
  fs::create_directories(bin);
  for (const std::string tool : {"bash", "cat", "cut", "dirname", "flock", "gzip", "mkdir", "mktemp", "mv", "realpath",
                                 "rm", "sed", "sha256sum", "stat", "sync", "tail", "tar", downloader.c_str()})
    fs::create_symlink(shell("printf %s \"$(command -v " + tool + ")\"").text, bin / tool);
  return "PATH=" + quoted(bin) + " ";
}

// Makes a tar.gz like CIFAR-10's own archive, except that all records are zeros.
struct Archive {
  TempFolder folder;
  std::string body, sha256;
  Archive() {
    const auto made = shell("cd " + quoted(folder.path()) +
                            " && mkdir cifar-10-batches-bin && for f in data_batch_1 data_batch_2 data_batch_3 "
                            "data_batch_4 data_batch_5 test_batch; do truncate -s 30730000 "
                            "cifar-10-batches-bin/$f.bin; done && tar -czf a.tar.gz cifar-10-batches-bin "
                            "&& rm -r cifar-10-batches-bin && sha256sum a.tar.gz | cut -d' ' -f1 | tr -d '\\n'");
    REQUIRE(made.code == 0);
    sha256 = made.text;
    body = contents(folder / "a.tar.gz");
  }
};

class Cifar {
 public:
  explicit Cifar(const Archive& archive) : archive_(archive) { server.put("/c.tar.gz", archive.body); }
  Result operator()(const std::string& more = "") const {
    return shell(path + quoted(source_root() / "datasets/cifar10/prepare") + " --out " + quoted(folder / "out dir") +
                 " --url " + server.url("/c.tar.gz") + " --sha256 " + archive_.sha256 + " " + more);
  }
  [[nodiscard]] fs::path bin() const { return folder / "out dir/cifar-10-batches-bin"; }
  // Only the data and the lock may remain.
  [[nodiscard]] bool clean() const {
    for (const auto& e : fs::directory_iterator(folder / "out dir"))
      if (e.path() != bin() && e.path().filename() != ".prepare.lock") return false;
    return true;
  }
  TempFolder folder;
  HttpServer server;
  std::string path;

 private:
  const Archive& archive_;
};

bool skip() {
  if (!have("curl") && !have("wget")) {
    std::puts("SKIP: neither curl nor wget is installed");
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("cifar10/prepare fetches, checks and unpacks, and a second run leaves all files unchanged") {
  if (skip()) return;
  const Archive archive;
  for (const std::string tool : {"curl", "wget"}) {
    if (!have(tool)) continue;
    CAPTURE(tool);
    Cifar prepare(archive);
    prepare.path = path_with(prepare.folder, tool);
    CHECK(prepare("--check").code == 3);
    const auto first = prepare();
    CAPTURE(first.text);
    REQUIRE(first.code == 0);
    for (const std::string name : {"data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"})
      CHECK(fs::file_size(prepare.bin() / name) == 30'730'000);
    CHECK(prepare.clean());
    CHECK(prepare.server.requests().size() == 1);
    const auto second = prepare();
    CHECK(second.code == 0);
    CHECK(contains(second.text, "exists already"));
    CHECK(prepare.server.requests().empty());
    CHECK(prepare("--check").code == 0);
    CHECK(prepare.server.requests().empty());
    // A file with a changed byte, and a truncated file.
    std::fstream(prepare.bin() / "data_batch_2.bin", std::ios::in | std::ios::out).put('x');
    const auto changed = prepare("--check");
    CHECK(changed.code == 3);
    CHECK(contains(changed.text, "data_batch_2.bin"));
    fs::resize_file(prepare.bin() / "data_batch_3.bin", 5);
    CHECK(contains(prepare("--check").text, "data_batch_3.bin with 30730000 bytes, got 5"));
    CHECK(prepare().code == 3);  // and must not overwrite the damaged data
    CHECK(fs::exists(prepare.bin()));
  }
}

TEST_CASE("cifar10/prepare resumes an interrupted download") {
  if (skip()) return;
  const Archive archive;
  for (const std::string tool : {"curl", "wget"}) {
    if (!have(tool)) continue;
    CAPTURE(tool);
    {
      // The connection breaks several times, but each attempt receives some bytes.
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      const std::size_t cut = archive.body.size() / 3 - 1;
      prepare.server.behave({.cut = cut});
      const auto r = prepare();
      CAPTURE(r.text);
      CHECK(r.code == 0);
      const auto requests = prepare.server.requests();
      REQUIRE(requests.size() == 4);
      CHECK(requests[0].from == 0);
      CHECK(requests[1].from == cut);
      CHECK(requests[3].from == 3 * cut);
      CHECK(prepare("--check").code == 0);
    }
    {
      // An earlier run was killed and left a part of the file.
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", archive.body.substr(0, 1000));
      CHECK(prepare().code == 0);
      const auto requests = prepare.server.requests();
      REQUIRE(requests.size() == 1);
      CHECK(requests[0].from == 1000);
      CHECK(prepare.clean());
    }
    if (tool == "curl" || !have("curl")) {
      // An earlier run was killed after the last byte. This run does not download the file again.
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", archive.body);
      CHECK(prepare().code == 0);
      CHECK(prepare.server.requests().empty());
    }
    {
      // The part is longer than the file, so the download starts again.
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", archive.body + "more");
      const auto r = prepare();
      CAPTURE(r.text);
      CHECK(r.code == 0);
      CHECK(prepare.clean());
    }
    {
      // The server does not support ranges.
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      prepare.server.behave({.knows_range = false});
      write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", archive.body.substr(0, 1000));
      const auto r = prepare();
      CAPTURE(r.text);
      CHECK(r.code == 0);
      CHECK(prepare.clean());
    }
  }
}

TEST_CASE("cifar10/prepare accepts only status 200 and 206, and keeps the part that was downloaded") {
  if (skip()) return;
  const Archive archive;
  for (const std::string tool : {"curl", "wget"}) {
    if (!have(tool)) continue;
    for (const int status : {203, 404, 403, 500, 503}) {
      CAPTURE(tool);
      CAPTURE(status);
      Cifar prepare(archive);
      prepare.path = path_with(prepare.folder, tool);
      prepare.server.behave({.status = status});
      const auto r = prepare();
      CHECK(r.code == 3);
      CHECK(contains(r.text, std::to_string(status)));
      CHECK_FALSE(fs::exists(prepare.bin()));
      if (status >= 400) {
        write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", archive.body.substr(0, 1000));
        CHECK(prepare().code == 3);
        CHECK(fs::file_size(prepare.folder / "out dir/cifar-10-binary.tar.gz.part") == 1000);
        if (status != 404) continue;
        prepare.server.behave({});
        CHECK(prepare().code == 0);
      }
    }
  }
  // No server listens at this address.
  Cifar prepare(archive);
  CHECK(prepare("--url http://127.0.0.1:1/x").code == 3);
  CHECK_FALSE(fs::exists(prepare.bin()));
}

TEST_CASE("cifar10/prepare refuses a wrong checksum and a different archive") {
  if (skip()) return;
  const Archive archive;
  Cifar prepare(archive);
  const auto wrong = prepare("--sha256 " + std::string(64, '0'));
  CHECK(wrong.code == 3);
  CHECK(contains(wrong.text, "expected SHA-256 0000"));
  CHECK(contains(wrong.text, archive.sha256));
  CHECK_FALSE(fs::exists(prepare.bin()));
  CHECK(prepare.clean());
  // The download continues a part of another file. The result is wrong, so the script removes it, and the next run
  // starts again.
  write_text(prepare.folder / "out dir/cifar-10-binary.tar.gz.part", std::string(1000, 'x'));
  const auto mixed = prepare();
  CHECK(mixed.code == 3);
  CHECK(contains(mixed.text, "expected SHA-256 " + archive.sha256));
  CHECK(prepare.clean());
  CHECK(prepare().code == 0);
  fs::remove_all(prepare.bin());
  // The default of --sha256 is the checksum of the real archive.
  const auto original = shell(quoted(source_root() / "datasets/cifar10/prepare") + " --out " +
                              quoted(prepare.folder / "o") + " --url " + prepare.server.url("/c.tar.gz"));
  CHECK(original.code == 3);
  CHECK(contains(original.text, "expected SHA-256 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"));

  const TempFolder other;
  const auto made =
      shell("cd " + quoted(other.path()) +
            " && mkdir cifar-10-batches-bin && echo hi > "
            "cifar-10-batches-bin/data_batch_1.bin && tar -czf a.tar.gz cifar-10-batches-bin && sha256sum "
            "a.tar.gz | cut -d' ' -f1 | tr -d '\\n'");
  prepare.server.put("/c.tar.gz", contents(other / "a.tar.gz"));
  const auto r = prepare("--sha256 " + made.text);
  CHECK(r.code == 3);
  CHECK(contains(r.text, "is not the data set"));
  CHECK_FALSE(fs::exists(prepare.bin()));
}

TEST_CASE("two runs of cifar10/prepare at the same time succeed") {
  if (skip() || !have("flock")) return;
  const Archive archive;
  Cifar prepare(archive);
  Result a, b;
  std::thread other([&] { a = prepare(); });
  b = prepare();
  other.join();
  CHECK(a.code == 0);
  CHECK(b.code == 0);
  CHECK(prepare.server.requests().size() == 1);
  CHECK(prepare.clean());
}

TEST_CASE("the prepare scripts check their arguments") {
  for (const std::string name : {"cifar10", "fashion_mnist"}) {
    const auto script = quoted(source_root() / "datasets" / name / "prepare");
    CHECK(shell(script).code == 2);
    CHECK(shell(script + " --out").code == 2);
    CHECK(shell(script + " --out x --frobnicate").code == 2);
    CHECK(contains(shell(script + " --out x --frobnicate").text, "--frobnicate"));
    CHECK(shell(script + " --help").code == 0);
    CHECK(shell(script + " --out /proc/nothing").code == 3);
  }
  CHECK(shell(quoted(source_root() / "datasets/cifar10/prepare") + " --out x --sha256 12").code == 2);
  CHECK(shell(quoted(source_root() / "datasets/fashion_mnist/prepare") + " --out x --sums /none").code == 2);
}

TEST_CASE("fashion_mnist/prepare fetches from the first source that has the file, and resumes") {
  if (skip()) return;
  const TempFolder folder;
  HttpServer server;
  std::string sums;
  const std::vector<std::string> names{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                       "t10k-labels-idx1-ubyte"};
  for (const auto& name : names) {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += name + std::to_string(i * i);
    write_text(folder / "src" / name, text);
    sums += shell("cd " + quoted(folder / "src") + " && sha256sum " + name).text;
    REQUIRE(shell("gzip " + quoted(folder / "src" / name)).code == 0);
    server.put("/data/" + name + ".gz", contents(folder / "src" / (name + ".gz")));
  }
  write_text(folder / "sums", sums);
  const auto at = folder / "out" / "fashion-mnist";
  const auto prepare = [&](const std::string& more) {
    return shell(quoted(source_root() / "datasets/fashion_mnist/prepare") + " --out " + quoted(folder / "out") +
                 " --sums " + quoted(folder / "sums") + " " + more);
  };
  const std::string url = " --url " + server.url("/data/");
  SUBCASE("from a server") {
    CHECK(prepare("--check").code == 3);
    const auto r = prepare(url);
    CAPTURE(r.text);
    CHECK(r.code == 0);
    CHECK(server.requests().size() == 4);
    CHECK(fs::file_size(at / names[0]) > 3000);
    CHECK_FALSE(fs::exists(at / (names[0] + ".gz")));
    CHECK(prepare(url).code == 0);
    CHECK(prepare("--check").code == 0);
    CHECK(server.requests().empty());
    std::fstream(at / names[2], std::ios::in | std::ios::out).put('?');
    CHECK(prepare("--check").code == 3);
    CHECK(prepare(url).code == 3);
  }
  SUBCASE("from a folder like the one of Debian's package, after a source without the file") {
    const auto r = prepare("--url " + server.url("/none") + " --url file://" + (folder / "src").string());
    CAPTURE(r.text);
    CHECK(r.code == 0);
    CHECK(contains(r.text, "404"));
    CHECK(prepare("--check").code == 0);
    CHECK(fs::exists(folder / "src" / (names[0] + ".gz")));  // the script keeps the source
  }
  SUBCASE("after an interrupted download") {
    server.behave({.cut = 2000});
    CHECK(prepare(url).code == 0);
    for (const auto& r : server.requests()) CHECK(r.from % 2000 == 0);
    CHECK(prepare("--check").code == 0);
  }
  SUBCASE("no source has the file") {
    server.behave({.status = 404});
    const auto r = prepare(url);
    CHECK(r.code == 3);
    CHECK(contains(r.text, "HTTP status 404"));
    CHECK(contains(r.text, "dataset-fashion-mnist"));
    CHECK_FALSE(fs::exists(at));
    server.behave({});
    CHECK(prepare(url).code == 0);
  }
  SUBCASE("the source has the contents of another file") {
    server.put("/data/" + names[1] + ".gz", contents(folder / "src" / (names[3] + ".gz")));
    const auto r = prepare(url);
    CHECK(r.code == 3);
    CHECK(contains(r.text, "wrong checksum for " + server.url("/data/") + names[1]));
    CHECK_FALSE(fs::exists(at));
    server.put("/data/" + names[1] + ".gz", "no gzip file at all");
    CHECK(prepare(url).code == 3);
    server.put("/data/" + names[1] + ".gz", contents(folder / "src" / (names[1] + ".gz")));
    server.requests();
    CHECK(prepare(url).code == 0);
    CHECK(server.requests().size() == 3);  // the script did not download the first file again
  }
}
