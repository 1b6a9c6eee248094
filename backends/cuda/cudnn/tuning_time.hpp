// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/text_store.hpp>

namespace tutti::cuda {

// When kernels of libraries are timed.
struct TuningOptions {
  bool on = false;       // time them, if no result is stored
  bool measured = true;  // take results that are stored
  // Time of all measurements of a process, with the time to make what is measured; empty: no limit. With a limit,
  // nothing is timed if results are not stored.
  std::optional<std::chrono::duration<double>> limit{};
};

// The limit of a run without the option --autotune.
inline constexpr std::chrono::seconds usual_tuning_limit{20};

// Chooses between ways to compute something: takes a stored measured choice, or measures within the limit of time, or
// guesses. Processes that share the folder of the store, such as the ranks of a host, measure one after another, and
// choose the same: what one has measured, or guessed because its time was over, the others take. Calls must come from
// one thread at a time.
class Tuning {
 public:
  using Clock = std::function<std::chrono::duration<double>()>;

  // store: must outlive this object.
  Tuning(const io::TextStore& store, TuningOptions o, Clock now = steady_time)
      : store_(store), o_(o), now_(std::move(now)), start_(std::filesystem::file_time_type::clock::now()) {
    if (o_.limit && store_.folder().empty()) o_.on = false;
  }

  [[nodiscard]] bool has_time() const noexcept { return o_.on && (!o_.limit || used_ < *o_.limit); }

  // timed, guessed: keys of the two kinds of choices. restore(key) returns a stored choice or an empty value.
  // make(bool measures) makes a choice, with a measurement or without one, and stores it under the key for it.
  template <class T, class Restore, class Make>
  [[nodiscard]] std::optional<T> choose(const std::string& timed, const std::string& guessed, Restore&& restore,
                                        Make&& make) {
    std::optional<T> kept;
    if (o_.measured && (kept = restore(timed))) return kept;
    if (has_time()) {
      const Turn turn(*this);
      // Another process may have chosen meanwhile.
      if (o_.measured && (kept = restore(timed))) return kept;
      if (o_.limit && is_new(guessed) && (kept = restore(guessed))) return kept;
      if (has_time()) return make(true);
    }
    if ((kept = restore(guessed)) && (!o_.on || !o_.limit || is_new(guessed))) return kept;
    return make(false);
  }

 private:
  // While it exists, no other process measures. Waits for its turn at most a minute: then it measures all the same.
  class Turn {
   public:
    explicit Turn(Tuning& t) : t_(t), begin_(t.now_()) {
      if (t_.store_.folder().empty()) return;
      try {
        io::make_directories(t_.store_.folder());
      } catch (const Error&) {
        return;  // results are not stored
      }
      file_ = io::Descriptor(::open((t_.store_.folder() / "tuning.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
      if (file_.get() < 0) return;
      for (int turn = 0; turn < 60'000 && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0; ++turn)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ~Turn() { t_.used_ += t_.now_() - begin_; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Tuning& t_;
    std::chrono::duration<double> begin_;
    io::Descriptor file_;
  };

  [[nodiscard]] static std::chrono::duration<double> steady_time() {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  // Returns whether a choice was stored since this object was constructed.
  [[nodiscard]] bool is_new(const std::string& key) const noexcept {
    if (store_.folder().empty()) return false;
    std::error_code e;
    const auto written = std::filesystem::last_write_time(store_.file_of(key), e);
    return !e && written >= start_;
  }

  const io::TextStore& store_;
  TuningOptions o_;
  Clock now_;
  std::filesystem::file_time_type start_;
  std::chrono::duration<double> used_{0};
};

}  // namespace tutti::cuda
