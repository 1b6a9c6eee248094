// SPDX-License-Identifier: MIT
#include "tools/data/options.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"
#include "tools/data/shard_writer.hpp"

namespace tutti::data_tool {

namespace {

using command_line::Set;

constexpr const char* help_text =
    R"(Converts ImageNet, or other images with classes, to formats that are fast to read, and checks such files.

Usage: tutti-data COMMAND [OPTIONS]

tutti-data convert -i IN -o OUT      IN: an image folder, TFRecord, RecordIO or packed shards
      --to WORD             format to write: packed, tfrecord or recordio  [packed]
  -s, --split WORD          images to convert: train, validation or both  [both]
  -r, --resize N            scales images down so that the short side has at most N pixels, antialiased  [no]
  -R, --stretch             scales all images to N x N pixels instead, whatever their size and aspect
  -Q, --quality N           JPEG quality of the images that are encoded again  [85]
      --keep-format         keeps PNG and CMYK images; otherwise they become RGB JPEGs
      --shards N            number of shards of the training images  [1024; RecordIO 1]
      --validation-shards N  number of shards of the validation images  [128; RecordIO 1]
      --seed N              seed of the random order of the training images  [0]
      --no-shuffle          keeps the order of the training images
      --from WORD           format to read, if IN has several: packed, tfrecord, recordio or folder
      --classes N           number of classes of TFRecord and RecordIO files  [that of IN, else 1000]
      --first-shard N, --last-shard N
                            writes only these shards of the split, counted from 0. Other machines may write the other
                            shards into the same folder at the same time  [0, the last]
      --start-offset N      the same as --first-shard N
  -f, --force               removes the files of the split in OUT, and starts again
      --threads N           number of threads  [all cores]
tutti-data preprocess --raw_data_dir RAW --local_scratch_dir SCRATCH
                            RAW/train/<synset>/*.JPEG, RAW/validation/*.JPEG, RAW/synset_labels.txt become
                            1024 TFRecord files in SCRATCH/train and 128 in SCRATCH/validation
      --imagenet_username U, --imagenet_access_key K
                            fetches the archives first, into RAW  [SCRATCH/raw_data]
      -f, --threads, --shards, --validation-shards as above
tutti-data resize -i IN -o OUT       TFRecord to TFRecord, one file for each file, numbered from 1
  -s, --subset_name WORD    images to convert: train or validation  [train]
  -d, --dataset_name WORD   data set, for the number of classes: imagenet (1000) or flowers (5)  [from the path of IN]
  -r, --size N  [480]   -R, --stretch   -Q, --quality N  [85]   -f, --force
      --first-shard, --last-shard, --start_offset as above
      --num_preprocess_threads N  [all cores]   --num_intra_threads, --num_inter_threads: accepted, no effect
tutti-data verify DIR       reads every record: checksums, labels, image headers
      --decode              also decodes every image
      -s, --classes, --threads as above
tutti-data info DIR         prints the contents of a folder
tutti-data --help, --version

Options may be written with - or _; --input and --input-dir are -i, --output and --output-dir are -o, --noshuffle is
--no-shuffle. Images that need no change are copied byte for byte. To continue interrupted
work, repeat the same command.
Exit codes: 0 done, 1 internal error, 2 usage, 3 data: a damaged record, a missing shard, a full disk.
)";

constexpr std::array<std::string_view, 5> commands{"convert", "preprocess", "resize", "verify", "info"};

struct OptionOfCommands {
  const char* names;
  const char* commands;  // letters of the commands that have the option: c p r v i
  const char* value;     // empty: a switch
  Set set;
};

// Returns the options of the command. The help explains them for each command.
std::vector<command_line::Option> option_table(Options& o) {
  using command_line::flag, command_line::integer, command_line::one_of, command_line::text;
  constexpr std::int64_t many = packed::most_shards;
  const Set not_used = [](const std::string& n, const std::string& v) { (void)integer(n, v, 0, 1 << 20); };
  const OptionOfCommands all[] = {
      {"-i,--input", "cr", "IN", text(o.in)},
      {"-o,--output", "cr", "OUT", text(o.out)},
      {"--raw-data-dir", "p", "RAW", text(o.in)},
      {"--local-scratch-dir", "p", "SCRATCH", text(o.out)},
      {"--imagenet-username", "p", "U", text(o.username)},
      {"--imagenet-access-key", "p", "K", text(o.access_key)},
      {"--to", "c", "WORD",
       [&o](const std::string& n, const std::string& v) {
         (void)form_of(v, n);
         o.to = v;
       }},
      {"--from", "c", "WORD",
       [&o](const std::string& n, const std::string& v) {
         o.from = v == "folder" ? imagenet::Form::image_folder : form_of(v, n);
       }},
      {"-s,--split", "crv", "WORD",
       [&o](const std::string& n, const std::string& v) {
         if (v != "train" && v != "validation" && v != "val" && v != "test" && v != "both")
           fail<UsageError>(n, "train, validation or both", "'" + printable(v) + "'");
         o.split = v;
       }},
      {"-d,--dataset-name", "r", "WORD", one_of(o.dataset, {"imagenet", "flowers"})},
      {"-r,--resize", "cr", "N", integer(o.rules.size, 1, 1 << 14)},
      {"-R,--stretch", "cr", "", flag(o.rules.stretch)},
      {"-Q,--quality", "cr", "N", integer(o.rules.quality, 1, 100)},
      {"--keep-format", "c", "", flag(o.rules.keep_format)},
      {"--shards", "cp", "N", integer(o.shards, 1, many)},
      {"--validation-shards", "cp", "N", integer(o.validation_shards, 1, many)},
      {"--seed", "cp", "N", integer(o.seed, 0, INT64_MAX)},
      {"--no-shuffle", "c", "", [&o](const std::string&, const std::string&) { o.shuffle = false; }},
      {"--classes", "crvi", "N", integer(o.classes, 1, 1 << 24)},
      {"--first-shard", "cr", "N", integer(o.start, 0, many)},
      {"--last-shard", "cr", "N", integer(o.last, 0, many)},
      {"-f,--force", "cpr", "", flag(o.force)},
      {"--threads", "cprv", "N",
       [&o](const std::string& n, const std::string& v) {
         const auto k = static_cast<int>(integer(n, v, 0, 1024));
         o.threads = k > 0 ? k : usable_cores();
       }},
      {"--num-intra-threads", "r", "N", not_used},
      {"--num-inter-threads", "r", "N", not_used},
      {"--decode", "v", "", flag(o.decode)},
  };
  const char letter = commands[static_cast<std::size_t>(o.command)][0];
  std::vector<command_line::Option> of_command;
  for (const OptionOfCommands& one : all)
    if (std::string_view(one.commands).find(letter) != std::string_view::npos)
      of_command.push_back({one.names, one.value, one.set});
  return of_command;
}

void check(Options& o) {
  const bool writes = o.command == Command::convert || o.command == Command::resize;
  if (writes && o.in.empty()) fail<UsageError>("command line", "-i, the folder to read", "none");
  if (writes && o.out.empty()) fail<UsageError>("command line", "-o, the folder to write", "none");
  if (o.command == Command::preprocess) {
    if (o.out.empty()) fail<UsageError>("command line", "--local_scratch_dir, the folder to write", "none");
    if (o.username.empty() != o.access_key.empty())
      fail<UsageError>("command line", "--imagenet_username and --imagenet_access_key", "one of them");
    if (o.in.empty() && o.username.empty())
      fail<UsageError>("command line", "--raw_data_dir, the folder to read", "none",
                       "or give --imagenet_username and --imagenet_access_key to fetch it");
    if (o.in.empty()) o.in = (io::Path(o.out) / "raw_data").string();
  }
  if ((o.command == Command::verify || o.command == Command::info) && o.in.empty())
    fail<UsageError>("command line", "a folder", "none");
  if (o.command == Command::resize) {
    if (o.split.empty()) o.split = "train";
    if (o.split == "both") fail<UsageError>("-s", "train or validation", "both");
    if (o.rules.size == 0) o.rules.size = 480;
    for (const char* name : {"imagenet", "flowers"})
      if (o.dataset.empty() && o.in.find(name) != std::string::npos) o.dataset = name;
    if (o.dataset.empty() && o.classes == 0)
      fail<UsageError>("-d", "imagenet or flowers, here or in the path of the input", "neither", "or give --classes N");
    if (o.classes == 0) o.classes = o.dataset == "imagenet" ? 1000 : 5;
  }
  if (o.last && *o.last < o.start)
    fail<UsageError>("--last-shard", "--first-shard, " + std::to_string(o.start) + ", or a later one",
                     std::to_string(*o.last));
  if (o.rules.stretch && o.rules.size == 0) fail<UsageError>("--stretch", "-r N with it", "none");
}

}  // namespace

Options parse_options(const std::vector<std::string>& words) {
  Options o;
  if (words.empty()) fail<UsageError>("command line", "a command", "none", "--help shows all");
  command_line::Form form{.program = "tutti-data", .help = help_text, .double_dash = false};
  if (words[0] == "help" || words[0].starts_with("-")) {
    o.text = command_line::read({words[0] == "help" ? "--help" : words[0]}, {}, form).text;
    if (!o.text.empty()) return o;
  }
  const auto command = std::find(commands.begin(), commands.end(), words[0]);
  if (command == commands.end())
    fail<UsageError>("command line", "convert, preprocess, resize, verify or info", "'" + printable(words[0]) + "'");
  o.command = static_cast<Command>(command - commands.begin());
  form.expected += " of " + words[0];
  const auto line = command_line::read({words.begin() + 1, words.end()}, option_table(o), form);
  o.text = line.text;
  if (!o.text.empty()) return o;
  for (const std::string& word : line.words) {
    if (o.command != Command::verify && o.command != Command::info)
      fail<UsageError>("command line", "an option", "'" + printable(word) + "'");
    if (!o.in.empty()) fail<UsageError>("command line", "one folder", "'" + printable(word) + "' too");
    o.in = word;
  }
  check(o);
  return o;
}

}  // namespace tutti::data_tool
