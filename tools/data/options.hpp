// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/threads/threads.hpp>
#include <tutti/datasets/imagenet/open.hpp>

#include "tools/data/images.hpp"
#include "tools/data/source.hpp"

namespace tutti::data_tool {

inline constexpr std::string_view help_text =
    R"(Brings ImageNet, or any images with a class each, into a form that is read fast; checks what is there.

Usage: tutti-data COMMAND [OPTIONS]

tutti-data convert -i IN -o OUT      IN: an image folder, TFRecord, RecordIO or packed shards
      --to WORD             packed, tfrecord or recordio  [packed]
  -s, --split WORD          train, validation or both  [both]
  -r, --resize N            images whose short side is longer are scaled down to it, antialiased  [no]
  -R, --stretch             to N x N instead, whatever their aspect and size
  -Q, --quality N           of the JPEGs that are written anew  [85]
      --keep-format         PNG and CMYK stay; otherwise they become RGB JPEG
      --shards N            of the training images  [1024; RecordIO 1]
      --validation-shards N  [128; RecordIO 1]
      --seed N              of the order of the training images  [0]
      --no-shuffle          they keep the order that they have
      --from WORD           packed, tfrecord, recordio or folder, where IN holds several
      --classes N           of TFRecord and RecordIO files  [what IN tells, else 1000]
      --first-shard N, --last-shard N
                            only these of the split's shards, counted from 0; others are left to other machines,
                            which may write into the same folder at the same time  [0, the last]
      --start-offset N      the same as --first-shard N
  -f, --force               removes what OUT holds of the split, and starts anew
      --threads N           [all cores]
tutti-data preprocess --raw_data_dir RAW --local_scratch_dir SCRATCH
                            RAW/train/<synset>/*.JPEG, RAW/validation/*.JPEG, RAW/synset_labels.txt become
                            1024 TFRecord files in SCRATCH/train and 128 in SCRATCH/validation
      --imagenet_username U, --imagenet_access_key K
                            fetches the archives first, into RAW  [SCRATCH/raw_data]
      -f, --threads, --shards, --validation-shards as above
tutti-data resize -i IN -o OUT       TFRecord to TFRecord, a file for each file, numbered from 1
  -s, --subset_name WORD    train or validation  [train]
  -d, --dataset_name WORD   imagenet (1000 classes) or flowers (5)  [what the path of IN says]
  -r, --size N  [480]   -R, --stretch   -Q, --quality N  [85]   -f, --force
      --first-shard, --last-shard, --start_offset as above
      --num_preprocess_threads N  [all cores]   --num_intra_threads, --num_inter_threads: taken, not used
tutti-data verify DIR       reads every record: checksums, labels, image headers
      --decode              and decodes every image
      -s, --classes, --threads as above
tutti-data info DIR         what a folder holds
tutti-data --help, --version

Options may be written with - or _; --input and --input-dir are -i, --output and --output-dir are -o, --noshuffle is
--no-shuffle. Images that need no change are copied byte for byte. Work that was
interrupted goes on where it stopped when the same command is given again.
Exit codes: 0 done, 1 internal error, 2 usage, 3 data: a damaged record, a missing shard, a full disk.
)";

enum class Command { convert, preprocess, resize, verify, info };

struct Options {
  Command command = Command::convert;
  std::string in, out;
  std::string to = "packed", split, dataset, username, access_key;
  std::optional<imagenet::Form> from{};
  ImageRules rules{};
  std::int64_t shards = 0, validation_shards = 0;  // 0: the usual numbers
  std::uint64_t seed = 0;
  std::int64_t start = 0;
  std::optional<std::int64_t> last{};
  int classes = 0, threads = usable_cores();
  bool shuffle = true, force = false, decode = false, help = false, version = false;
};

namespace detail {

struct Option {
  std::vector<std::string_view> names;  // with dashes
  std::string_view commands;            // letters of those that know it: c p r v i
  bool takes_value;
  std::function<void(const std::string& name, const std::string& value)> set;
};

[[nodiscard]] std::int64_t integer(const std::string& name, const std::string& text, std::int64_t low,
                                   std::int64_t high);

[[nodiscard]] std::vector<Option> option_table(Options& o);

[[nodiscard]] inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

void check(Options& o);

}  // namespace detail

// Reads the words after the program's name. UsageError names what is wrong.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::data_tool
