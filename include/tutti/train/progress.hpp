// SPDX-License-Identifier: MIT
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/math.hpp>
#include <tutti/train/report.hpp>

namespace tutti {

// Formats a time as "48 s", "3:07", "1:02:03" or "2 d 5 h", and an invalid time as "?".
[[nodiscard]] inline std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e10) return "?";
  const auto s = static_cast<std::int64_t>(math::llround(seconds));
  const std::int64_t minutes = s / 60, hours = s / 3600, days = s / 86400;
  char text[48];
  if (days > 0)
    std::snprintf(text, sizeof text, "%lld d %lld h", static_cast<long long>(days), static_cast<long long>(hours % 24));
  else if (hours > 0)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(hours),
                  static_cast<long long>(minutes % 60), static_cast<long long>(s % 60));
  else if (minutes > 0)
    std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(minutes), static_cast<long long>(s % 60));
  else
    std::snprintf(text, sizeof text, "%lld s", static_cast<long long>(s));
  return text;
}

// The remaining time, in seconds. It is negative if it is not known yet.
struct TimeLeft {
  double epoch = -1, run = -1;
};

// Predicts the end from the times in the reports. Depends only on its inputs.
class TimeEstimate {
 public:
  // max_steps: number of steps after which the run ends; 0: the run ends with its last epoch.
  explicit TimeEstimate(std::int64_t max_steps = 0) : max_steps_(max_steps) {}

  TimeLeft step(const StepReport& r) {
    // The time between two reports does not measure steps if it includes an evaluation.
    if (r.step > last_.step && r.epoch == last_.epoch && r.seconds > last_.seconds) {
      const double now = (r.seconds - last_.seconds) / static_cast<double>(r.step - last_.step);
      step_seconds_ = step_seconds_ > 0 ? 0.7 * step_seconds_ + 0.3 * now : now;
    } else if (step_seconds_ == 0 && last_.step == 0 && r.step == r.step_in_epoch && r.seconds > 0) {
      step_seconds_ = r.seconds / static_cast<double>(r.step);  // the first report of a new run
    }
    last_ = r;
    if (step_seconds_ == 0) return {};
    std::int64_t in_run = (r.epochs - r.epoch + 1) * r.steps_per_epoch - r.step_in_epoch;
    if (max_steps_ > 0) in_run = std::clamp<std::int64_t>(max_steps_ - r.step, 0, in_run);
    const std::int64_t in_epoch = std::min(r.steps_per_epoch - r.step_in_epoch, in_run);
    const auto ends =
        static_cast<double>(r.steps_per_epoch > 0 ? (in_run + r.steps_per_epoch - 1) / r.steps_per_epoch : 0);
    return {static_cast<double>(in_epoch) * step_seconds_,
            static_cast<double>(in_run) * step_seconds_ + ends * between_};
  }
  // Measures the part of an epoch after its steps: evaluation and checkpoint. Call it at the end of the epoch, with
  // `seconds` on the clock of the step reports.
  void epoch_done(double seconds) { between_ = std::max(seconds - last_.seconds, 0.0); }

 private:
  std::int64_t max_steps_;
  StepReport last_;
  double step_seconds_ = 0, between_ = 0;
};

// Formats "epoch 3/15 204/391  4321 images/s  loss 0.8123  top-1 71.30 %  lr 0.0931  left: epoch 12 s, run 3:40".
// Leaves out parts of the line if it does not fit into `columns` characters, and finally cuts it off.
[[nodiscard]] inline std::string progress_line(const StepReport& r, const TimeLeft& left, std::size_t columns) {
  const auto format = [&](const char* form) {
    char text[320];
    std::snprintf(text, sizeof text, form, static_cast<long long>(r.epoch), static_cast<long long>(r.epochs),
                  static_cast<long long>(r.step_in_epoch), static_cast<long long>(r.steps_per_epoch),
                  r.images_per_second, r.train_loss, 100 * r.train_top1, r.lr);
    return std::string(text);
  };
  std::string line = format("epoch %lld/%lld %lld/%lld  %.0f images/s  loss %.4f  top-1 %.2f %%  lr %.4g");
  if (left.run >= 0) line += "  left: epoch " + format_duration(left.epoch) + ", run " + format_duration(left.run);
  if (line.size() <= columns) return line;
  line = format("%lld/%lld %lld/%lld %.0f im/s loss %.3f top-1 %.1f %% lr %.3g");
  if (left.run >= 0) line += " left " + format_duration(left.epoch) + ", " + format_duration(left.run);
  if (line.size() > columns) line.resize(columns);
  return line;
}

// The same for a file: one line for each report, with the step, the share of time that waited for data, and the GPU's
// utilisation. "(27 in all)" is the step of the whole job if it differs from this process's count, as with asynchronous
// workers.
[[nodiscard]] inline std::string step_line(const StepReport& r, const TimeLeft& left) {
  char text[320];
  const bool counted = r.step == (r.epoch - 1) * r.steps_per_epoch + r.step_in_epoch;
  std::snprintf(
      text, sizeof text,
      "epoch %lld step %lld/%lld (%lld%s)  %.1f images/s  loss %.4f  top-1 %.2f %%  lr %.4g  data wait %.0f %%",
      static_cast<long long>(r.epoch), static_cast<long long>(r.step_in_epoch),
      static_cast<long long>(r.steps_per_epoch), static_cast<long long>(r.step), counted ? "" : " in all",
      r.images_per_second, r.train_loss, 100 * r.train_top1, r.lr, 100 * r.data_wait);
  std::string line = text;
  if (r.comm_wait && *r.comm_wait > 0) {
    std::snprintf(text, sizeof text, " communication %.0f %%", 100 * *r.comm_wait);
    line += text;
  }
  if (r.gpu_utilisation) {
    std::snprintf(text, sizeof text, " GPU %.0f %%", 100 * *r.gpu_utilisation);
    line += text;
  }
  if (left.run >= 0) line += "  left " + format_duration(left.run);
  return line;
}

// Formats the result of an epoch, for a terminal and a file.
[[nodiscard]] inline std::string epoch_line(const EpochReport& r, std::int64_t top_k = 5) {
  char text[320];
  std::snprintf(text, sizeof text, "epoch %lld/%lld  train loss %.4f top-1 %.2f %%", static_cast<long long>(r.epoch),
                static_cast<long long>(r.epochs), r.train_loss, 100 * r.train_top1);
  std::string line = text;
  const auto evaluation = [&](const char* name, const EvaluationReport& e) {
    std::snprintf(text, sizeof text, "  %s loss %.4f top-1 %.2f %% top-%lld %.2f %%", name, e.loss, 100 * e.top1,
                  static_cast<long long>(top_k), 100 * e.topk);
    line += text;
  };
  if (r.test) evaluation("test", *r.test);
  if (r.test_ema) evaluation("test of averaged weights", *r.test_ema);
  std::snprintf(text, sizeof text, "  %.1f images/s  lr %.4g  ", r.images_per_second, r.lr);
  line += text + format_duration(r.seconds);
  if (r.data_wait) {
    const auto part = [&](const char* name, double share) {
      std::snprintf(text, sizeof text, " %s %.0f %%", name, 100 * share);
      line += text;
    };
    line += " ";
    if (r.comm_wait) part("compute", std::max(0.0, 1 - *r.data_wait - *r.comm_wait));
    part("data wait", *r.data_wait);
    if (r.comm_wait && *r.comm_wait > 0) part("communication", *r.comm_wait);
    if (r.gpu_utilisation) part("GPU", *r.gpu_utilisation);
  }
  if (r.skipped > 0) line += "  " + std::to_string(r.skipped) + (r.skipped == 1 ? " record" : " records") + " skipped";
  if (r.best) line += "  best so far";
  return line;
}

// Formats "after step 17: shares 16 8 of 24 logical ranks; a step computes 0.8 s, before 1.2 s".
[[nodiscard]] inline std::string shares_line(const SharesReport& r) {
  constexpr std::size_t most = 16;
  std::string line = "after step " + std::to_string(r.step) + ": shares";
  std::int64_t all = 0;
  for (std::size_t i = 0; i < r.shares.size(); ++i) {
    all += r.shares[i];
    if (i >= most) continue;
    line += ' ';  // GCC 12 warns about " " + std::to_string()
    line += std::to_string(r.shares[i]);
  }
  if (r.shares.size() > most) line += " ...";
  char text[96];
  std::snprintf(text, sizeof text, " of %lld %s; a step computes %.3g s", static_cast<long long>(all),
                r.by_rows ? "rows" : "logical ranks", r.after);
  line += text;
  if (r.before > r.after) {
    std::snprintf(text, sizeof text, ", before %.3g s", r.before);
    line += text;
  }
  return line;
}

struct ProgressOptions {  // options of ProgressDisplay
  bool terminal = false;  // true: rewrite one line; false: print a line for each report
  std::int64_t top_k = 5;
  std::int64_t max_steps = 0;
  double interval = 0.1;  // minimum seconds between two versions of the rewritten line
  // Writes the text to the output. Tests replace this function.
  std::function<void(std::string_view)> write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  std::function<void(std::string_view)> write_error = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
  };
  std::function<double()> clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  std::function<std::size_t()> columns = [] {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? std::size_t{size.ws_col}
                                                                             : std::size_t{80};
  };
};

// Returns true if standard output is a terminal that can rewrite a line.
[[nodiscard]] inline bool stdout_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

// Shows the progress of a run to the user.
class ProgressDisplay : public FitListener {
 public:
  explicit ProgressDisplay(ProgressOptions o = {}) : o_(std::move(o)), estimate_(o_.max_steps) {}
  ~ProgressDisplay() override { end_line(); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  void step(const StepReport& r) override {
    const TimeLeft left = estimate_.step(r);
    const double now = o_.clock();
    // The difference between the two clocks is constant.
    clock_offset_ = now - r.seconds;
    if (!o_.terminal) return o_.write(step_line(r, left) + "\n");
    if (open_ && now - shown_ < o_.interval) return;
    shown_ = now;
    open_ = true;
    // The last column stays empty, because some terminals begin a new line when it is written.
    const std::size_t columns = o_.columns();
    o_.write(rewritten(progress_line(r, left, columns > 1 ? columns - 1 : 1)));
  }
  void epoch(const EpochReport& r) override {
    estimate_.epoch_done(o_.clock() - clock_offset_);
    line(epoch_line(r, o_.top_k));
  }
  void warning(const std::string& text) override {
    end_line();
    o_.write_error("warning: " + text + "\n");
  }
  void members(const MembersReport& m) override {
    char took[32] = "";
    if (m.seconds > 0) std::snprintf(took, sizeof took, ", in %.2f s", m.seconds);
    line("after step " + std::to_string(m.step) + ": " + std::to_string(m.ranks) + (m.ranks == 1 ? " rank" : " ranks") +
         took);
  }
  void shares(const SharesReport& r) override {
    line(shares_line(r));
    if (!r.note.empty()) line("note: " + r.note);
  }
  void ended(const RunEnd&) override { end_line(); }

  // Prints a separate line.
  void line(const std::string& text) {
    o_.write((open_ ? rewritten(text) : text) + "\n");
    open_ = false;
  }
  // Ends the open line, e.g. before the program ends or prints text itself.
  void end_line() {
    if (open_) o_.write("\n");
    open_ = false;
  }

 private:
  // Returns the text that replaces the last line of the terminal. It is appended in pieces, because GCC 12 warns about
  // "\r" + text.
  [[nodiscard]] static std::string rewritten(const std::string& text) {
    std::string line;
    line.reserve(text.size() + 4);
    line += '\r';
    line += text;
    line += "\x1b[K";
    return line;
  }

  ProgressOptions o_;
  TimeEstimate estimate_;
  double shown_ = 0, clock_offset_ = 0;
  bool open_ = false;
};

}  // namespace tutti
