// SPDX-License-Identifier: MIT
#include "tools/data/verify.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/backends/decoders.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/io/crc32c.hpp>

#include "tools/data/manifest.hpp"
#include "tools/data/progress.hpp"
#include "tools/data/shard_writer.hpp"

namespace tutti::data_tool {

namespace {

// The result of reading a file, or a part of an image folder.
struct FileReport {
  std::int64_t records = 0;  // number of good records
  std::uint64_t bytes = 0;   // bytes of the images of these records
  std::vector<std::string> bad;
  std::optional<PackedShardInfo> info;  // for packed shards
};

// Reads and checks every record. All threads share one object.
class Verifier {
 public:
  // classes: labels must be from 0 to `classes` - 1. Packed shards store their number of classes.
  Verifier(int classes, bool decode, Progress& progress)
      : classes_(classes), progress_(progress), seen_(std::make_unique<std::atomic<bool>[]>(std::size_t{1} << 24)) {
    if (decode) decoders_ = std::make_unique<ImageDecoders>(make_image_decoders());
  }

  [[nodiscard]] int classes_seen() const {
    int n = 0;
    for (std::size_t c = 0; c < std::size_t{1} << 24; ++c) n += seen_[c].load(std::memory_order_relaxed) ? 1 : 0;
    return n;
  }

  [[nodiscard]] FileReport file(Form form, const io::Path& path) const {
    FileReport report;
    attempt(report, [&] {
      const ShardFiles files({path});
      if (form == Form::packed) packed_file(files, report);
      if (form == Form::tfrecord) tfrecord_file(files, report);
      if (form == Form::recordio) recordio_file(files, path, report);
    });
    return report;
  }

  // Checks records [begin, end) of an image folder.
  [[nodiscard]] FileReport part(const AnyRecords& records, std::int64_t begin, std::int64_t end) const {
    FileReport report;
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = begin; i < end; ++i)
      attempt(report, [&] {
        const std::int32_t label = records.read(i, bytes);
        image(report, label, classes_, bytes, records.where(i));
      });
    return report;
  }

 private:
  // Calls f. Returns whether it threw no error.
  template <class F>
  static bool attempt(FileReport& report, F&& f) {
    try {
      f();
      return true;
    } catch (const DataError& e) {
      report.bad.emplace_back(e.what());
      return false;
    }
  }

  void image(FileReport& report, std::int64_t label, std::int64_t classes, std::span<const std::uint8_t> bytes,
             const std::string& where) const {
    if (label < 0 || label >= classes)
      fail<DataError>(where, "a label of 0 to " + std::to_string(classes - 1), std::to_string(label),
                      "--classes sets the number of classes");
    const ImageHeader h = read_image_header(bytes, where);
    if (decoders_) {
      thread_local DecodedImage image;
      decoders_->decode(bytes, decoders_->header(bytes, where), {{0, 0, h.width, h.height}}, where, image);
    }
    seen_[static_cast<std::size_t>(label)].store(true, std::memory_order_relaxed);
    ++report.records;
    report.bytes += bytes.size();
    progress_.add(1, bytes.size());
  }

  void packed_file(const ShardFiles& files, FileReport& report) const {
    const packed::Shard shard = packed::open(files, 0);
    report.info = shard.info;
    std::vector<std::uint8_t> bytes;
    for (std::uint64_t r = 0; r < shard.records; ++r)
      attempt(report, [&] {
        const std::string where = files.path(0).string() + " record " + std::to_string(r);
        std::array<std::uint8_t, packed::entry_bytes> raw{};
        files.read(0, shard.index + r * packed::entry_bytes, raw);
        const packed::Entry e = packed::parse_entry(raw.data());
        bytes.resize(e.length);
        files.read(0, e.offset, bytes);
        if (io::crc32c(std::as_bytes(std::span(bytes))) != e.crc)
          fail<DataError>(where, "an image with its CRC", "another CRC", "the record is damaged");
        image(report, e.label, static_cast<std::int64_t>(shard.info.classes), bytes, where);
      });
  }

  // After a damaged header the start of the next record is unknown, so this skips the rest of the file.
  template <class Length, class Record>
  static void each_frame(const ShardFiles& files, FileReport& report, Length&& length, Record&& record) {
    HeaderReader reader(files, 0);
    const std::uint64_t end = files.bytes(0);
    std::vector<std::uint8_t> frame;
    std::int64_t number = 0;
    for (std::uint64_t at = 0; at < end; ++number) {
      const std::string where = files.path(0).string() + " record " + std::to_string(number);
      std::uint64_t bytes = 0;
      if (!attempt(report, [&] { bytes = length(reader, at, end, where); })) {
        report.bad.back() +=
            " The " + std::to_string(end - at) + " bytes from there to the end of the file cannot be read.";
        return;
      }
      attempt(report, [&] {
        frame.resize(bytes);
        files.read(0, at, frame);
        record(at, frame, where);
      });
      at += bytes;
    }
  }

  void tfrecord_file(const ShardFiles& files, FileReport& report) const {
    each_frame(
        files, report,
        [](HeaderReader& r, std::uint64_t at, std::uint64_t end, const std::string& where) {
          return tfrecord::payload_length(r.at(at, tfrecord::header_bytes), end - at, where) + tfrecord::header_bytes +
                 tfrecord::footer_bytes;
        },
        [&](std::uint64_t, std::vector<std::uint8_t>& frame, const std::string& where) {
          const auto e = imagenet::parse_image_example(tfrecord::payload(frame, where), where);
          if (e.label < 1 || e.label > classes_)
            fail<DataError>(where, "a label of 1 to " + std::to_string(classes_), std::to_string(e.label),
                            "--classes sets the number of classes");
          image(report, e.label - 1, classes_, e.encoded, where);
        });
  }

  void recordio_file(const ShardFiles& files, const io::Path& path, FileReport& report) const {
    std::vector<std::uint64_t> begins;
    each_frame(
        files, report,
        [](HeaderReader& r, std::uint64_t at, std::uint64_t end, const std::string& where) {
          return std::uint64_t{recordio::frame_length(r, at, end, where)};
        },
        [&](std::uint64_t at, std::vector<std::uint8_t>& frame, const std::string& where) {
          begins.push_back(at);
          recordio::unframe(frame, where);
          const auto i = recordio::parse_image(frame, where);
          const auto label = static_cast<std::int64_t>(i.label >= 0 && i.label < 1e9F ? i.label : -1.0F);
          if (static_cast<float>(label) != i.label)
            fail<DataError>(where, "a label of 0 to " + std::to_string(classes_ - 1), std::to_string(i.label));
          image(report, label, classes_, i.encoded, where);
        });
    const auto list = io::Path(path).replace_extension(".idx");
    if (!is_file(list)) return;
    attempt(report, [&] {
      const ShardFiles both({path, list});
      std::int64_t line = 0;
      for (const RecordSpan& s : recordio::scan_listed(both, 0, 1)) {
        ++line;
        if (!std::binary_search(begins.begin(), begins.end(), s.offset))
          fail<DataError>(list.string() + " line " + std::to_string(line), "the offset of a record",
                          std::to_string(s.offset));
      }
    });
  }

  int classes_;
  Progress& progress_;
  std::unique_ptr<ImageDecoders> decoders_;
  std::unique_ptr<std::atomic<bool>[]> seen_;
};

}  // namespace

std::optional<FoundSplit> find_split(const io::Path& folder, Split split) {
  for (const Form form : {Form::packed, Form::tfrecord, Form::recordio})
    for (const auto& place : imagenet::detail::places(folder, split)) {
      FoundSplit found{form, place, {}, {}, {}};
      try {
        found.files = files_of(form, place, split);
      } catch (const DataError& e) {
        found.bad.emplace_back(e.what());
        std::error_code error;
        for (std::filesystem::directory_iterator it(place, error), end; !error && it != end; it.increment(error)) {
          const std::string name = it->path().filename().string();
          bool is_one = false;
          for (const auto word : imagenet::words_of(split)) {
            ShardName ignored;
            is_one = is_one ||
                     (form == Form::recordio
                          ? it->path().extension() == ".rec" && imagenet::has_word(it->path().stem().string(), word)
                          : parse_shard_name(name, word, form == Form::packed ? ".tutti" : "", ignored));
          }
          if (is_one) found.files.push_back(it->path());
        }
        std::sort(found.files.begin(), found.files.end());
      }
      if (!found.files.empty()) return found;
      // There is a manifest, but no shard remains.
      const auto m = Manifest::load(Manifest::path_in(place, word_of(split)));
      if (m && m->form == word_of(form)) {
        found.bad.push_back(error_message(Manifest::path_in(place, word_of(split)).string(),
                                          std::to_string(m->shards) + " shards in the same folder", "none"));
        return found;
      }
    }
  for (const auto& place : imagenet::detail::places(folder, split)) {
    FoundSplit found{Form::image_folder, place, {}, {}, {}};
    try {
      found.images = imagenet::detail::open_image_folder(place, split, false);
    } catch (const DataError& e) {
      found.bad.emplace_back(e.what());
    }
    if (found.images || !found.bad.empty()) return found;
  }
  return std::nullopt;
}

namespace {

// Compares the files of a set with each other and with the manifest.
void compare_files(const FoundSplit& found, const std::vector<FileReport>& reports,
                   const std::optional<Manifest>& manifest, std::int64_t records, std::vector<std::string>& bad) {
  const FileReport* first = nullptr;
  for (std::size_t k = 0; found.form == Form::packed && k < reports.size(); ++k) {
    if (!reports[k].info) continue;
    if (first == nullptr) first = &reports[k];
    PackedShardInfo a = *first->info, b = *reports[k].info;
    a.shard = b.shard = 0;
    ShardName name;
    const std::string file = found.files[k].filename().string();
    const std::string prefix = file.substr(0, file.find('-'));
    if (a != b)
      bad.push_back(error_message(found.files[k].string(), "a shard of the same set as the other files",
                                  "a shard of another set"));
    if (parse_shard_name(file, prefix, ".tutti", name) && found.bad.empty() &&
        (reports[k].info->shard != k || reports[k].info->shards != reports.size()))
      bad.push_back(error_message(
          found.files[k].string(), "shard " + std::to_string(k) + " of " + std::to_string(reports.size()),
          "shard " + std::to_string(reports[k].info->shard) + " of " + std::to_string(reports[k].info->shards)));
  }
  if (!manifest || !bad.empty()) return;
  if (!manifest->complete)
    bad.push_back(error_message(Manifest::path_in(found.place, manifest->split).string(), "a finished set",
                                "an unfinished set", "run the same command again to continue"));
  else if (records != manifest->records)
    bad.push_back(
        error_message(found.place.string(),
                      std::to_string(manifest->records) + " records of " + manifest->split + ", as in the manifest",
                      std::to_string(records)));
}

}  // namespace

void print_left_out(const io::Path& place, Split split, const image_folder::LeftOut& left_out) {
  const std::string text = image_folder::describe(left_out);
  if (!text.empty()) std::printf("%s: %s: %s\n", place.c_str(), word_of(split).c_str(), text.c_str());
}

namespace {

// Prints a line about the split and one for each error. Returns the number of errors.
[[nodiscard]] std::size_t verify_split(const VerifyOptions& o, Split split, const FoundSplit& found) {
  const std::string word = word_of(split);
  const auto manifest = Manifest::load(Manifest::path_in(found.place, word));
  const bool tells = manifest && manifest->form == (found.form == Form::image_folder ? "" : word_of(found.form));
  Progress progress("verify " + word, tells ? manifest->records : 0);
  std::vector<std::string> bad = found.bad;
  std::vector<FileReport> reports;
  int classes = o.classes > 0 ? o.classes : tells ? manifest->classes : 1000;
  const auto& folder = found.images;
  if (folder) classes = folder->classes;
  const Verifier verifier(classes, o.decode, progress);
  ThreadPool pool(o.threads);
  if (folder) {
    constexpr std::int64_t part = 64;
    const std::int64_t n = folder->records.size();
    reports.resize(static_cast<std::size_t>((n + part - 1) / part));
    pool.run(static_cast<int>(reports.size()), [&](int task, int) {
      const std::int64_t begin = task * part;
      reports[static_cast<std::size_t>(task)] = verifier.part(folder->records, begin, std::min(n, begin + part));
    });
  } else {
    reports.resize(found.files.size());
    pool.run(static_cast<int>(reports.size()), [&](int task, int) {
      const auto k = static_cast<std::size_t>(task);
      reports[k] = verifier.file(found.form, found.files[k]);
    });
  }
  std::int64_t records = 0;
  std::uint64_t bytes = 0;
  for (const auto& r : reports) {
    records += r.records;
    bytes += r.bytes;
    if (r.info) classes = static_cast<int>(r.info->classes);
    bad.insert(bad.end(), r.bad.begin(), r.bad.end());
  }
  compare_files(found, reports, tells ? manifest : std::nullopt, records, bad);
  for (const auto& b : bad) std::fprintf(stderr, "tutti-data: %s\n", b.c_str());
  std::printf("%s: %s: %s, %zu files, %lld good records, %zu errors, %d of %d classes, %s, %.0f records/s%s\n",
              found.place.c_str(), word.c_str(), imagenet::name_of(found.form),
              folder ? static_cast<std::size_t>(folder->records.size()) : found.files.size(),
              static_cast<long long>(records), bad.size(), verifier.classes_seen(), classes, bytes_text(bytes).c_str(),
              progress.rate(), o.decode ? ", all decoded" : "");
  if (folder) print_left_out(found.place, split, folder->left_out);
  return bad.size();
}

}  // namespace

std::size_t verify(const VerifyOptions& o) {
  std::size_t bad = 0;
  bool any = false;
  for (const Split split : {Split::train, Split::test}) {
    if (o.split && *o.split != split) continue;
    const auto found = find_split(o.folder, split);
    if (found) bad += verify_split(o, split, *found);
    any = any || found;
  }
  // Throws an error that lists all file names that it looked for.
  if (!any) (void)open_imagenet(o.folder, o.split.value_or(Split::train));
  return bad;
}

}  // namespace tutti::data_tool
