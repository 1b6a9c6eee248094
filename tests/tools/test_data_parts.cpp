// SPDX-License-Identifier: MIT
// optimised
// header-only
// Tests parts of tutti-data. TUTTI_HAS_TURBOJPEG: writes images with libjpeg-turbo. TUTTI_HAS_STB: reads PNG.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/records/example_proto.hpp>
#include <tutti/datasets/imagenet/tfrecords.hpp>
#include <tutti/io/json/json.hpp>

#include "../../tools/data/example_edit.hpp"
#include "../../tools/data/images.hpp"
#include "../../tools/data/in_order.hpp"
#include "../../tools/data/manifest.hpp"
#include "../../tools/data/options.hpp"
#include "../../tools/data/shard_writer.hpp"
#include "../data/example_floats.hpp"
#include "../data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::data_tool;
using namespace tutti::test;

namespace {

std::span<const std::uint8_t> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

std::string some_example(std::string_view jpeg) {
  ExampleWriter w;
  w.add_int("image/height", 500);
  w.add("image/class/text", "tench");
  w.add("image/encoded", jpeg);
  w.add_int("image/class/label", 7);
  w.add_int("image/width", 300);
  w.add("image/filename", "a.JPEG");
  const float box[] = {0.25F, 0.5F};
  return with_floats(w.payload(), "image/object/bbox/xmin", box);
}

Options parse(std::vector<std::string> words) { return parse_options(words); }

}  // namespace

TEST_CASE("the short side shrinks to the size, the aspect ratio stays, and no image grows") {
  const ImageRules r{480};
  CHECK(size_by({}, {5000, 4000}) == ImageSize{5000, 4000});
  CHECK(size_by(r, {500, 480}) == ImageSize{500, 480});
  CHECK(size_by(r, {100, 90}) == ImageSize{100, 90});
  CHECK(size_by(r, {481, 481}) == ImageSize{480, 480});
  CHECK(size_by(r, {960, 1440}) == ImageSize{480, 720});
  CHECK(size_by(r, {1441, 960}) == ImageSize{721, 480});
  CHECK(size_by(r, {481, 480}) == ImageSize{481, 480});
  CHECK(size_by(r, {65500, 481}) == ImageSize{65364, 480});
  CHECK(size_by({480, true}, {100, 900}) == ImageSize{480, 480});
  for (int w = 1; w < 2000; w += 37)
    for (int h = 1; h < 2000; h += 41) {
      const ImageSize s = size_by(r, {w, h});
      CHECK(std::min(s.width, s.height) == std::min(480, std::min(w, h)));
      CHECK(s.width <= w);
      CHECK(s.height <= h);
    }
}

TEST_CASE("results are taken in order with any number of threads") {
  for (const int threads : {1, 2, 5}) {
    for (const std::int64_t n : {0, 1, 3, 100}) {
      std::vector<std::int64_t> got;
      std::atomic<int> at_once{0}, most{0};
      in_order<std::int64_t>(
          n, threads,
          [&](std::int64_t i, std::int64_t& slot) {
            const int now = ++at_once;
            for (int m = most; now > m && !most.compare_exchange_weak(m, now);) {
            }
            slot = i * i;
            --at_once;
          },
          [&](std::int64_t i, std::int64_t& slot) {
            CHECK(slot == i * i);
            got.push_back(i);
          });
      CHECK(static_cast<std::int64_t>(got.size()) == n);
      CHECK(std::is_sorted(got.begin(), got.end()));
      CHECK(most <= threads);
    }
    // run() throws the error with the lowest index, after it has processed all results before it.
    std::int64_t taken = 0;
    const auto run = [&] {
      in_order<int>(
          1000, threads,
          [](std::int64_t i, int&) {
            if (i >= 40) throw std::runtime_error(std::to_string(i));
          },
          [&](std::int64_t, int&) { ++taken; });
    };
    CHECK_THROWS_WITH(run(), "40");
    CHECK(taken == 40);
    const auto stop = [&] {
      in_order<int>(
          1000, threads, [](std::int64_t, int&) {},
          [](std::int64_t i, int&) {
            if (i == 7) throw std::runtime_error("full");
          });
    };
    CHECK_THROWS_WITH(stop(), "full");
  }
}

TEST_CASE("replacing the image of an Example keeps the other features") {
  const std::string before = some_example("old"), jpeg(300, 'j');
  const std::string after = replace_image(bytes_of(before), 20, 10, bytes_of(jpeg), "test");
  const auto e = imagenet::parse_image_example(bytes_of(after), "test");
  CHECK(e.height == 10);
  CHECK(e.width == 20);
  CHECK(e.label == 7);
  CHECK(e.channels == 3);
  CHECK(e.colorspace == "RGB");
  CHECK(e.format == "JPEG");
  CHECK(e.filename == "a.JPEG");
  CHECK(std::string(e.encoded.begin(), e.encoded.end()) == jpeg);
  std::map<std::string, int> names;
  for_each_feature(bytes_of(after), "test", [&](std::string_view name, const Feature& f) {
    ++names[std::string(name)];
    if (name == "image/class/text") CHECK(f.first_text() == "tench");
    if (name == "image/object/bbox/xmin") CHECK(f.kind() == Feature::Kind::floats);
  });
  CHECK(names.size() == 10);
  for (const auto& [name, times] : names) CHECK(times == 1);
  // A second replacement with the same image does not change the result.
  CHECK(replace_image(bytes_of(after), 20, 10, bytes_of(jpeg), "test") == after);
}

TEST_CASE("a damaged Example is refused and has no side effect") {
  const std::string good = some_example("old");
  Rng rng(3, Purpose::user);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (std::uint32_t k = rng.below(4); k-- > 0;)
      bad[rng.below(static_cast<std::uint32_t>(bad.size()))] = static_cast<char>(rng.next());
    bad.resize(bad.size() - rng.below(static_cast<std::uint32_t>(bad.size())));
    try {
      (void)replace_image(bytes_of(bad), 1, 1, bytes_of(good), "here");
    } catch (const DataError& e) {
      ++refused;
      CHECK(contains(e.what(), "here"));
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("a manifest is read back, and the differences between two manifests are named") {
  const TempFolder folder;
  Manifest m;
  m.split = "train";
  m.form = "packed";
  m.shards = 1024;
  m.records = 1281167;
  m.classes = 1000;
  m.shuffled = true;
  m.seed = 18446744073709551615U;
  m.rules = {480, false, 85, false};
  m.input = "TFRecord 01234567";
  m.class_names = {"n01440764", "\xc3\xa9"};
  m.complete = true;
  const auto path = Manifest::path_in(folder.path(), "train");
  CHECK_FALSE(Manifest::load(path));
  m.save(path);
  const auto read = Manifest::load(path);
  REQUIRE(read);
  CHECK(read->options() == m.options());
  CHECK(read->class_names == m.class_names);
  CHECK(read->complete);
  CHECK(read->set_id() == m.set_id());
  read->check_same(m, path);

  const auto differs = [&](auto change) {
    Manifest other = m;
    change(other);
    CHECK(other.set_id() != m.set_id());
    return message_of<UsageError>([&] { read->check_same(other, path); });
  };
  CHECK(contains(differs([](Manifest& o) { o.shards = 7; }), "shards 1024, as in the first call, got 7"));
  CHECK(contains(differs([](Manifest& o) { o.seed = 3; }), "seed"));
  CHECK(contains(differs([](Manifest& o) { o.rules.size = 256; }), "size 480"));
  CHECK(contains(differs([](Manifest& o) { o.rules.quality = 90; }), "quality 85"));
  CHECK(contains(differs([](Manifest& o) { o.rules.stretch = true; }), "stretch false"));
  CHECK(contains(differs([](Manifest& o) { o.rules.keep_format = true; }), "keep_format false"));
  CHECK(contains(differs([](Manifest& o) { o.input = "x"; }), "input"));
  CHECK(contains(differs([](Manifest& o) { o.records = 5; }), "records 1281167"));
  CHECK(contains(differs([](Manifest& o) { o.form = "tfrecord"; }), "form \"packed\""));

  // Names that are not UTF-8 are left out.
  m.class_names = {"a", "\xff"};
  m.save(path);
  CHECK(Manifest::load(path)->class_names.empty());
}

TEST_CASE("the error for an invalid manifest names the file") {
  const TempFolder folder;
  const auto path = Manifest::path_in(folder.path(), "train");
  Manifest m;
  m.shards = m.classes = 1;
  m.save(path);
  const std::string good = io::read_text_file(path, 10000);
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    write_text(path, text.replace(at, from.size(), to));
    return message_of<DataError>([&] { (void)Manifest::load(path); });
  };
  CHECK(message("tutti-data", "tutti-data") == "");
  for (const auto& change : std::map<std::string, std::string>{{"{", "["},
                                                               {"\"tutti-data\"", "\"other\""},
                                                               {"\"classes\": 1", "\"classes\": 99999999"},
                                                               {"\"classes\": 1", "\"klasses\": 1"},
                                                               {"\"seed\": \"0\"", "\"seed\": \"-1\""},
                                                               {"\"shards\": 1", "\"shards\": \"1\""}}) {
    const auto &from = change.first, &to = change.second;
    CAPTURE(to);
    CHECK(contains(message(from, to), path.string()));
  }
}

TEST_CASE("names of shards follow the rule of each format") {
  CHECK(shard_name(Form::tfrecord, "train", 3, 1024) == "train-00003-of-01024");
  CHECK(shard_name(Form::packed, "validation", 0, 128) == "validation-00000-of-00128.tutti");
  CHECK(shard_name(Form::recordio, "train", 0, 1) == "train.rec");
  CHECK(shard_name(Form::recordio, "validation", 0, 1) == "val.rec");
  CHECK(shard_name(Form::recordio, "validation", 12, 20) == "val_12.rec");
}

TEST_CASE("options accept the names of older tools, and errors name the option") {
  const Options o = parse({"resize", "-i", "/data/imagenet", "-o", "x", "--num_preprocess_threads", "3",
                           "--num_intra_threads=2", "--num_inter_threads", "2", "--subset_name", "validation"});
  CHECK(o.rules.size == 480);
  CHECK(o.rules.quality == 85);
  CHECK(o.classes == 1000);
  CHECK(o.threads == 3);
  CHECK(o.split == "validation");
  CHECK(o.start == 0);
  CHECK_FALSE(o.force);
  const Options f = parse({"resize", "--input_dir=flowers", "--output_dir", "x", "-f", "-R", "-r100", "-Q", "70"});
  CHECK(f.classes == 5);
  CHECK(f.split == "train");
  CHECK(f.force);
  CHECK(f.rules.stretch);
  CHECK(f.rules.size == 100);
  CHECK(f.rules.quality == 70);
  const Options p = parse({"preprocess", "--raw_data_dir", "r", "--local_scratch_dir", "s"});
  CHECK(p.in == "r");
  CHECK(p.out == "s");
  CHECK(
      parse({"preprocess", "--local_scratch_dir", "s", "--imagenet_username", "u", "--imagenet_access_key", "k"}).in ==
      "s/raw_data");
  const Options c = parse({"convert", "-i", "a", "-o", "b", "--to", "recordio", "--start_offset", "3"});
  CHECK(c.to == "recordio");
  CHECK(c.start == 3);
  CHECK(c.rules.size == 0);
  CHECK(parse({"verify", "d", "--decode"}).decode);
  CHECK(contains(parse({"convert", "--help"}).text, "Usage"));

  const auto message = [](std::vector<std::string> words) {
    return message_of<UsageError>([&] { (void)parse_options(words); });
  };
  for (const auto& refused : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "a command"},
           {{"copy"}, "'copy'"},
           {{"convert", "-o", "b"}, "-i"},
           {{"convert", "-i", "b"}, "-o"},
           {{"convert", "-i", "a", "-o", "b", "-r", "0"}, "-r"},
           {{"convert", "-i", "a", "-o", "b", "-Q", "101"}, "-Q"},
           {{"convert", "-i", "a", "-o", "b", "--to", "zip"}, "'zip'"},
           {{"convert", "-i", "a", "-o", "b", "--shards", "many"}, "--shards"},
           {{"convert", "-i", "a", "-o", "b", "-R"}, "--stretch"},
           {{"convert", "-i", "a", "-o", "b", "--bogus"}, "--bogus"},
           {{"convert", "-i", "a", "-o", "b", "-d", "imagenet"}, "'-d'"},
           {{"convert", "-i", "a", "-o"}, "-o"},
           {{"convert", "-i", "a", "-o", "b", "--force=1"}, "--force"},
           {{"convert", "x"}, "'x'"},
           {{"resize", "-i", "a", "-o", "b"}, "imagenet or flowers"},
           {{"preprocess", "--local_scratch_dir", "s"}, "--raw_data_dir"},
           {{"preprocess", "--local_scratch_dir", "s", "--imagenet_username", "u"}, "--imagenet_access_key"},
           {{"verify"}, "a folder"},
           {{"verify", "a", "b"}, "'b'"}}) {
    const std::string& part = refused.second;
    CAPTURE(part);
    CHECK(contains(message(refused.first), part));
  }
}
