// SPDX-License-Identifier: MIT
#include "tools/data/commands.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>

#include "tools/data/convert.hpp"
#include "tools/data/source.hpp"

namespace tutti::data_tool {

namespace {

// Returns the splits that `word` selects: both for "both" and "", one for "train", "validation" and synonyms.
[[nodiscard]] std::vector<Split> splits_of(const std::string& word) {
  if (word.empty() || word == "both") return {Split::train, Split::test};
  return {word == "train" ? Split::train : Split::test};
}

}  // namespace

void convert(const Options& o) {
  std::vector<std::unique_ptr<Converter>> work;
  const Form form = form_of(o.to, "--to");
  for (const Split split : splits_of(o.split)) {
    const bool train = split == Split::train;
    Conversion c{Source(o.in, split, o.from, o.classes), o.out, word_of(split)};
    print_left_out(c.source.folder(), split, c.source.left_out());
    c.form = form;
    c.shards = train ? o.shards : o.validation_shards;
    if (c.shards == 0) c.shards = form == Form::recordio ? 1 : train ? 1024 : 128;
    c.shuffled = train && o.shuffle;
    c.seed = o.seed;
    c.rules = o.rules;
    c.start = o.start;
    c.last = o.last;
    c.force = o.force;
    c.threads = o.threads;
    work.push_back(std::make_unique<Converter>(std::move(c)));
  }
  for (const auto& w : work) w->run();
}

void resize(const Options& o) {
  const Split split = splits_of(o.split).front();
  // The name of the output folder does not matter: --subset_name says which split it holds.
  Conversion c{Source(o.in, split, Form::tfrecord, o.classes), o.out, word_of(split)};
  c.form = Form::tfrecord;
  c.first = 1;
  c.shard_a_file = true;
  c.rules = o.rules;
  c.start = o.start;
  c.last = o.last;
  c.force = o.force;
  c.threads = o.threads;
  Converter(std::move(c)).run();
}

namespace {

// Returns the path of datasets/imagenet/prepare relative to this program, in a source tree or as installed. Returns an
// empty path if there is no such file.
[[nodiscard]] io::Path prepare_script() {
  std::error_code error;
  const io::Path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  for (const char* place : {"../../../datasets/imagenet/prepare", "../../share/tutti/datasets/imagenet/prepare"}) {
    const io::Path path = (program / place).lexically_normal();
    if (is_file(path)) return path;
  }
  return {};
}

// Replaces this process by the script that fetches and unpacks the archives. The script then calls this program again.
// The key is passed in the environment, which other users cannot read.
[[noreturn]] void fetch_and_preprocess(const Options& o) {
  const io::Path script = prepare_script();
  if (script.empty())
    fail<UsageError>("--imagenet_username", "the script datasets/imagenet/prepare of this program's installation",
                     "none", "call the program in the source tree or in the installed tree");
  ::setenv("IMAGENET_USERNAME", o.username.c_str(), 1);
  ::setenv("IMAGENET_ACCESS_KEY", o.access_key.c_str(), 1);
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  std::vector<std::string> words{script.string(), "--out", o.out, "--raw_data_dir", o.in, "--tutti-data", program};
  words.insert(words.end(), {"--", "--threads", std::to_string(o.threads), "--seed", std::to_string(o.seed)});
  if (o.force) words.emplace_back("--force");
  if (o.shards > 0) words.insert(words.end(), {"--shards", std::to_string(o.shards)});
  if (o.validation_shards > 0) words.insert(words.end(), {"--validation-shards", std::to_string(o.validation_shards)});
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  io::fail_file("start", script, errno);
}

}  // namespace

void preprocess(const Options& o) {
  if (!o.username.empty()) fetch_and_preprocess(o);
  std::vector<std::unique_ptr<Converter>> work;
  for (const Split split : {Split::train, Split::test}) {
    const bool train = split == Split::train;
    Conversion c{Source(o.in, split, Form::image_folder, 0), io::Path(o.out) / word_of(split), word_of(split)};
    c.form = Form::tfrecord;
    c.shards = train ? o.shards : o.validation_shards;
    if (c.shards == 0) c.shards = train ? 1024 : 128;
    c.shuffled = train;
    c.seed = o.seed;
    c.force = o.force;
    c.threads = o.threads;
    work.push_back(std::make_unique<Converter>(std::move(c)));
  }
  for (const auto& w : work) w->run();
}

void info(const Options& o) {
  bool any = false;
  for (const Split split : {Split::train, Split::test}) {
    const auto found = find_split(o.in, split);
    if (!found) continue;
    any = true;
    const Source s(o.in, split, std::nullopt, o.classes);
    std::printf("%s: %s: %s, %lld records, %d classes%s", s.folder().c_str(), word_of(split).c_str(),
                imagenet::name_of(s.form()), static_cast<long long>(s.size()), s.classes(),
                s.class_names().empty() ? " without names" : "");
    if (!s.files().empty()) {
      std::uint64_t bytes = 0;
      for (const auto& f : s.files()) bytes += size_of_file(f);
      std::printf(", %zu shards, %s", s.files().size(), bytes_text(bytes).c_str());
    }
    const auto m = Manifest::load(Manifest::path_in(s.folder(), word_of(split)));
    if (m && !m->complete) std::printf(", not finished");
    if (m && m->rules.size > 0)
      std::printf(m->rules.stretch ? ", stretched to %d" : ", short side at most %d", m->rules.size);
    if (m && m->shuffled) std::printf(", shuffled with seed %llu", static_cast<unsigned long long>(m->seed));
    std::printf("\n");
    print_left_out(s.folder(), split, s.left_out());
  }
  if (!any) (void)open_imagenet(o.in, Split::train);
}

int verify(const Options& o) {
  VerifyOptions v;
  v.folder = o.in;
  if (const auto splits = splits_of(o.split); splits.size() == 1) v.split = splits[0];
  v.classes = o.classes;
  v.decode = o.decode;
  v.threads = o.threads;
  const std::size_t bad = verify(v);
  if (bad > 0) fail<DataError>(o.in, "a set without errors", std::to_string(bad) + (bad == 1 ? " error" : " errors"));
  return 0;
}

}  // namespace tutti::data_tool
