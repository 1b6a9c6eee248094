// SPDX-License-Identifier: MIT
#include "tools/data/convert.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/io/aside.hpp>

#include "tools/data/in_order.hpp"

namespace tutti::data_tool {

namespace detail {

ShardPlan plan_of(const Conversion& c) {
  ShardPlan plan;
  const std::int64_t n = c.source.size();
  if (c.shard_a_file) {
    plan.begins = c.source.file_begins();
  } else {
    for (std::int64_t k = 0; k <= c.shards; ++k) plan.begins.push_back(n / c.shards * k + n % c.shards * k / c.shards);
  }
  if (c.shuffled) {
    plan.order.resize(static_cast<std::size_t>(n));
    std::iota(plan.order.begin(), plan.order.end(), 0U);
    Rng rng(c.seed, Purpose::shuffle);
    for (std::size_t i = plan.order.size(); i > 1; --i)
      std::swap(plan.order[i - 1], plan.order[rng.below(static_cast<std::uint32_t>(i))]);
  }
  return plan;
}

}  // namespace detail

namespace detail {

namespace {

// Locks the folder until the result is destroyed, so that no other process writes into it. Processes that share the
// lock write different shards. Does not lock if the file system has no locks.
[[nodiscard]] io::Descriptor lock_folder(const io::Path& folder, bool shared) {
  io::Descriptor fd = io::Descriptor::open(folder, O_RDONLY | O_DIRECTORY, "open the folder");
  if (::flock(fd.get(), (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail<UsageError>("output " + folder.string(), "a folder that no other process writes into",
                     "a folder that another tutti-data writes into");
  return fd;
}

// Returns the files in the folder that may be shards of this form and split. Ignores files of other forms.
[[nodiscard]] std::vector<io::Path> existing_shards(const io::Path& folder, Form form, const std::string& prefix) {
  std::vector<io::Path> found;
  std::error_code error;
  const std::string stem = shard_name(Form::recordio, prefix, 0, 1);
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    ShardName ignored;
    bool is_one = false;
    if (form == Form::recordio) {
      const std::string ext = it->path().extension().string(), base = it->path().stem().string();
      const std::string plain = stem.substr(0, stem.size() - 4);
      is_one = (ext == ".rec" || ext == ".idx") &&
               (base == plain || (base.starts_with(plain + "_") &&
                                  base.find_first_not_of("0123456789", plain.size() + 1) == std::string::npos));
    } else {
      is_one = parse_shard_name(name, prefix, form == Form::packed ? ".tutti" : "", ignored);
    }
    if (is_one) found.push_back(it->path());
  }
  if (error) io::fail_file("list the folder", folder, error.value());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

}  // namespace detail

Converter::Converter(Conversion c) : c_(std::move(c)), plan_(detail::plan_of(c_)) {
  m_.split = c_.prefix;
  m_.form = word_of(c_.form);
  m_.shards = plan_.shards();
  m_.first = c_.first;
  m_.records = c_.source.size();
  m_.classes = c_.source.classes();
  m_.shuffled = c_.shuffled;
  m_.seed = c_.shuffled ? c_.seed : 0;
  m_.rules = c_.rules;
  m_.input = std::string(imagenet::name_of(c_.source.form())) + " " + c_.source.fingerprint();
  m_.class_names = c_.source.class_names();
  const std::string few = "a number below the " + std::to_string(m_.shards) + " shards of " + c_.prefix;
  const char* hint = "give the range for one split at a time, with -s train or -s validation";
  if (c_.start >= m_.shards) fail<UsageError>("--first-shard", few, std::to_string(c_.start), hint);
  if (c_.last && *c_.last >= m_.shards) fail<UsageError>("--last-shard", few, std::to_string(*c_.last), hint);
  end_ = c_.last ? *c_.last + 1 : m_.shards;
}

void Converter::run() {
  io::make_directories(c_.out);
  if (std::error_code error; std::filesystem::equivalent(c_.out, c_.source.folder(), error))
    fail<UsageError>("output " + c_.out.string(), "a folder that is not the input", "the input folder");
  const auto lock = detail::lock_folder(c_.out, is_part() && !c_.force);
  const auto path = Manifest::path_in(c_.out, c_.prefix);
  const auto before = prepare(path);
  io::remove_stale_asides(c_.out);
  std::vector<std::int64_t> pending;
  std::int64_t images = 0;
  for (std::int64_t k = c_.start; k < end_; ++k)
    if (!is_finished(c_.form, shard_path(k))) {
      pending.push_back(k);
      images += plan_.begin(k + 1) - plan_.begin(k);
    }
  const auto kept = end_ - c_.start - static_cast<std::int64_t>(pending.size());
  if (pending.empty() && before && before->complete) {
    std::printf("%s: the %lld shards of %s exist already\n", c_.out.c_str(), static_cast<long long>(m_.shards),
                c_.prefix.c_str());
    return;
  }
  if (!before || before->complete) m_.save(path);
  if (kept > 0)
    std::fprintf(stderr, "tutti-data: %s: continues; %lld of %lld shards of %s exist\n", c_.out.c_str(),
                 static_cast<long long>(kept), static_cast<long long>(end_ - c_.start), c_.prefix.c_str());
  Progress progress(c_.prefix, images);
  write_all(pending, progress);
  finish(path);
  std::printf("%s: %s: %lld images in %lld %s shards, %s, %lld encoded again, %.0f images/s\n", c_.out.c_str(),
              c_.prefix.c_str(), static_cast<long long>(progress.images()), static_cast<long long>(pending.size()),
              m_.form.c_str(), bytes_text(progress.bytes()).c_str(), static_cast<long long>(changed_.load()),
              progress.rate());
}

std::optional<Manifest> Converter::prepare(const io::Path& path) {
  std::optional<Manifest> before;
  try {
    before = Manifest::load(path);
  } catch (const DataError&) {
    if (!c_.force) throw;
  }
  const bool same = before && before->options() == m_.options();
  const auto there = detail::existing_shards(c_.out, c_.form, c_.prefix);
  if (c_.force) {
    if (before && before->form != m_.form)
      detail::remove_all(detail::existing_shards(c_.out, form_of(before->form, path.string()), c_.prefix));
    for (std::int64_t k = c_.start; same && k < end_; ++k) detail::remove_all(shard_files(c_.form, shard_path(k)));
    if (!same) {
      detail::remove_all(there);
      io::remove_tree(path);
      before.reset();
    }
    return before;
  }
  if (before) {
    if (same) return before;
    // A manifest may be replaced if no shard is finished.
    const bool any = !detail::existing_shards(c_.out, form_of(before->form, path.string()), c_.prefix).empty();
    if (any || !there.empty()) before->check_same(m_, path);
    before.reset();
  } else if (!there.empty()) {
    fail<UsageError>("output " + c_.out.string(), "a folder without shards of " + c_.prefix,
                     there.front().filename().string(), "name another folder, or remove the shards with -f");
  }
  return before;
}

void Converter::write_all(const std::vector<std::int64_t>& pending, Progress& progress) {
  if (pending.empty()) return;
  const int writers = static_cast<int>(std::min<std::size_t>(pending.size(), static_cast<std::size_t>(c_.threads)));
  const int each = c_.threads / writers;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::pair<std::size_t, std::exception_ptr> first{pending.size(), nullptr};
  const auto work = [&] {
    for (std::size_t k = next.fetch_add(1); k < pending.size() && !stop_; k = next.fetch_add(1)) {
      try {
        write(pending[k], each, progress);
      } catch (...) {
        stop_ = true;
        const std::lock_guard lock(mutex);
        if (k < first.first) first = {k, std::current_exception()};
      }
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int t = 1; t < writers; ++t) pool.push_back(start_thread("worker threads", work));
  } catch (...) {
    stop_ = true;
    for (auto& t : pool) t.join();
    throw;
  }
  work();
  for (auto& t : pool) t.join();
  if (first.second) std::rethrow_exception(first.second);
}

void Converter::write(std::int64_t shard, int threads, Progress& progress) {
  struct Stopped {};
  const std::int64_t begin = plan_.begin(shard), n = plan_.begin(shard + 1) - begin;
  const auto out = open_shard(m_, shard, shard_path(shard));
  const auto make = [&](std::int64_t i, SourceRecord& r) {
    if (stop_) throw Stopped();
    const std::int64_t record = plan_.record(begin + i);
    c_.source.read(record, r);
    // Each thread, not each slot, has an ImageWork, because its buffers are large.
    thread_local std::pair<std::uint64_t, std::unique_ptr<ImageWork>> work{0, nullptr};
    if (work.first != id_) work = {id_, std::make_unique<ImageWork>(c_.rules)};
    const auto result = (*work.second)(r.image, c_.source.where(record));
    r.size = result.size;
    r.changed = result.changed;
  };
  const auto take = [&](std::int64_t i, SourceRecord& r) {
    out->add(r, c_.source.where(plan_.record(begin + i)));
    if (r.changed) changed_.fetch_add(1, std::memory_order_relaxed);
    progress.add(1, r.image.size());
  };
  try {
    in_order<SourceRecord>(n, threads, make, take);
    out->finish();
  } catch (const Stopped&) {
    // Another thread reports the error.
  }
}

void Converter::finish(const io::Path& path) {
  for (std::int64_t k = 0; k < m_.shards; ++k)
    if (!is_finished(c_.form, shard_path(k))) return;  // another process writes this shard
  m_.complete = true;
  m_.save(path);
}

std::uint64_t Converter::new_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace tutti::data_tool
