// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json_lines.hpp>
#include <tutti/io/tfevents.hpp>
#include <tutti/io/utf8.hpp>
#include <tutti/train/class_scores.hpp>
#include <tutti/train/report.hpp>

namespace tutti {

namespace detail {

// JSON has no NaN and no infinity, so they become null.
inline io::Json finite(double v) { return math::is_finite(v) ? io::Json(v) : io::Json(); }

// Calls `write`. After a failure it complains once. It complains again only after a write has succeeded.
class FaultTolerantWriter {
 public:
  FaultTolerantWriter(std::string what, std::function<void(const std::string&)> complain)
      : what_(std::move(what)), complain_(std::move(complain)) {}
  template <class F>
  void operator()(F&& write) {
    try {
      write();
      failing_ = false;
    } catch (const Error& e) {
      if (!std::exchange(failing_, true)) complain_(what_ + " cannot be written: " + e.what() + " Training continues.");
    }
  }

 private:
  std::string what_;
  std::function<void(const std::string&)> complain_;
  bool failing_ = false;
};

// Adds the shares of a step's time: waiting for data, waiting for other ranks, and computing. The last two are null if
// a device waits instead of the host. Adds the GPU's utilisation if it is known.
inline void set_shares(io::Json& line, double data_wait, const std::optional<double>& comm_wait,
                       const std::optional<double>& gpu_utilisation) {
  line.set("data_wait", finite(data_wait));
  line.set("comm_wait", comm_wait ? finite(*comm_wait) : io::Json());
  line.set("compute", comm_wait ? finite(std::max(0.0, 1 - data_wait - *comm_wait)) : io::Json());
  if (gpu_utilisation) line.set("gpu_utilisation", finite(*gpu_utilisation));
}

}  // namespace detail

// A run's log, RUN/log.jsonl: one JSON object per line, appended and visible at once. "event" is "start", "resume",
// "step", "epoch", "members", "shares", "views", "warning" or "end". Rates are in 0..1, and train_loss is the cross
// entropy without L2. test_* are null if an epoch was not evaluated; test_ema_* are those of the averaged weights.
// "views" reports the evaluation by several views of each image that may follow the last epoch: their number, and
// test_* or test_ema_*. If a run returns to an earlier step, the later lines stay before the line
// {"event":"resume","step":N}. If the members of the job change, each line has the generation that wrote it, and
// "members" begins a generation. Later lines of an earlier generation do not count: a process that the job had removed
// wrote them. "end" has the precision, recall and F1 of each class in the best evaluation of the run, that of step
// "classes_step", if FitOptions::mistakes is set; RUN/classes.json keeps them for the process that continues the run.
// "classes_best" is false if the run saves no best checkpoint: then they are those of the last evaluation. If the disk
// is full, the log complains, and training continues.
class RunLog : public FitListener {
 public:
  // Throws io::FileError if the file cannot be opened. generation: generation of the members, if they may change
  // (Counters::generation).
  RunLog(const io::Path& run_dir, std::int64_t top_k, const std::function<void(const std::string&)>& complain,
         std::int64_t generation = 0)
      : top_k_(std::to_string(top_k)),
        careful_((run_dir / "log.jsonl").string(), complain),
        lines_(run_dir / "log.jsonl"),
        scores_file_(run_dir / "classes.json"),
        keep_scores_(scores_file_.string(), complain),
        generation_(generation) {}

  // The names of the classes in the last line: one per class, or an empty list.
  void name_classes(std::vector<std::string> names) { class_names_ = std::move(names); }
  // Takes the scores of the classes in the best evaluation, that of `step`, from the process that made it. Call it for
  // a run that has a best checkpoint (Checkpoints::best_step()).
  void continue_best(std::int64_t step) {
    try {
      if (!io::path_exists(scores_file_)) return;  // of an earlier version
      const std::string where = scores_file_.string();
      io::Json kept = io::parse_json(io::read_text_file(scores_file_, io::JsonLimits{}.bytes), where);
      if (kept.at("classes_step", where).as_integer(where) != step) return;
      scores_ = std::move(kept);
      scores_of_best_ = true;
    } catch (const Error& e) {
      warning(e.what());
    }
  }
  // `facts`: version, backend, options and other facts that identify the run.
  void start(const io::Json& facts) {
    io::Json line = event("start");
    for (const auto& [key, value] : facts.as_object()) line.set(key, value);
    write(line);
  }
  void resume(std::int64_t step, std::int64_t epoch, const std::string& from) {
    write(event("resume").set("step", step).set("epoch", epoch).set("from", utf8_text(from)));
  }
  void step(const StepReport& r) override {
    io::Json line = event("step")
                        .set("epoch", r.epoch)
                        .set("step", r.step)
                        .set("train_loss", detail::finite(r.train_loss))
                        .set("train_top1", detail::finite(r.train_top1))
                        .set("images_per_second", detail::finite(r.images_per_second))
                        .set("lr", detail::finite(r.lr))
                        .set("batch", r.global_batch);
    detail::set_shares(line, r.data_wait, r.comm_wait, r.gpu_utilisation);
    write(line.set("seconds", detail::finite(r.seconds)));
  }
  void mistakes(const Mistakes& m) override { last_scores_ = class_scores(m); }
  void epoch(const EpochReport& r) override {
    if (!last_scores_.empty() && (r.best || !scores_of_best_)) {
      scores_ = json_of(last_scores_, r.step, r.best);
      scores_of_best_ = r.best;
      // Does not wait for the disk, as evaluation.json.
      if (r.best) keep_scores_([&] { io::replace_file(scores_file_, io::write_json(scores_) + "\n"); });
    }
    last_scores_.clear();
    io::Json line = event("epoch")
                        .set("epoch", r.epoch)
                        .set("step", r.step)
                        .set("train_loss", detail::finite(r.train_loss))
                        .set("train_top1", detail::finite(r.train_top1));
    set_evaluation(line, "test", r.test);
    if (r.test_ema) set_evaluation(line, "test_ema", r.test_ema);
    line.set("images_per_second", detail::finite(r.images_per_second))
        .set("lr", detail::finite(r.lr))
        .set("batch", r.global_batch)
        .set("seconds", detail::finite(r.seconds))
        .set("best", r.best);
    if (r.data_wait) detail::set_shares(line, *r.data_wait, r.comm_wait, r.gpu_utilisation);
    if (r.skipped > 0) line.set("skipped", r.skipped);
    write(line);
  }
  void warning(const std::string& message) override { write(event("warning").set("message", utf8_text(message))); }
  void members(const MembersReport& m) override {
    generation_ = m.generation;
    io::Json line = event("members").set("step", m.step).set("ranks", static_cast<std::int64_t>(m.ranks));
    if (m.global_batch > 0) line.set("batch", m.global_batch);
    if (m.seconds > 0) line.set("seconds", detail::finite(m.seconds));
    write(line);
  }
  void shares(const SharesReport& r) override {
    io::Json::Array shares, seconds;
    for (const std::int32_t n : r.shares) shares.emplace_back(static_cast<std::int64_t>(n));
    for (const double s : r.seconds) seconds.push_back(detail::finite(s));
    io::Json line = event("shares").set("step", r.step).set("shares", std::move(shares));
    if (r.by_rows) line.set("of", "rows");
    line.set("seconds", std::move(seconds)).set("before", detail::finite(r.before));
    line.set("after", detail::finite(r.after));
    if (!r.note.empty()) line.set("note", utf8_text(r.note));
    write(line);
  }
  void views(const ViewsReport& v) override {
    io::Json line = event("views").set("step", v.step).set("views", v.views);
    set_evaluation(line, v.averaged ? "test_ema" : "test", v.test);
    write(line);
  }
  void ended(const RunEnd& e) override {
    io::Json line = event("end").set("status", e.status).set("step", e.step);
    if (!e.message.empty()) line.set("message", utf8_text(e.message));
    if (!scores_.is_null())
      for (const auto& [key, value] : scores_.as_object()) line.set(key, value);
    write(line);
  }

 private:
  [[nodiscard]] io::Json json_of(const std::vector<ClassScore>& scores, std::int64_t step, bool best) const {
    io::Json::Array classes;
    for (std::size_t k = 0; k < scores.size(); ++k) {
      const ClassScore& s = scores[k];
      classes.push_back(
          io::Json::object({{"class", k < class_names_.size() ? utf8_text(class_names_[k]) : std::to_string(k)},
                            {"images", s.images},
                            {"precision", s.precision},
                            {"recall", s.recall},
                            {"f1", s.f1}}));
    }
    return io::Json::object({{"classes_step", step},
                             {"classes_best", best},
                             {"mean_f1", mean_f1(scores)},
                             {"classes", std::move(classes)}});
  }
  void set_evaluation(io::Json& line, const std::string& name, const std::optional<EvaluationReport>& e) const {
    line.set(name + "_loss", e ? detail::finite(e->loss) : io::Json());
    line.set(name + "_top1", e ? detail::finite(e->top1) : io::Json());
    line.set(name + "_top" + (top_k_ == "1" ? "k" : top_k_), e ? detail::finite(e->topk) : io::Json());
  }
  static io::Json event(const char* name) { return io::Json::object({{"event", name}}); }
  void write(io::Json line) {
    if (generation_ > 0) line.set("generation", generation_);
    careful_([&] { lines_.write(line); });
  }

  std::string top_k_;
  detail::FaultTolerantWriter careful_;
  io::JsonLines lines_;
  io::Path scores_file_;
  detail::FaultTolerantWriter keep_scores_;
  std::int64_t generation_;
  std::vector<std::string> class_names_;
  std::vector<ClassScore> last_scores_;  // of an evaluation without its report yet
  io::Json scores_;                      // of the best evaluation
  bool scores_of_best_ = false;
};

// The same curves for TensorBoard: RUN/events.out.tfevents.*.
class TensorboardLog : public FitListener {
 public:
  // summaries: write a point for each FitOptions::summary_every instead of each report.
  TensorboardLog(const io::Path& run_dir, std::function<void(const std::string&)> complain, bool summaries = false)
      : careful_("the file for TensorBoard", std::move(complain)), events_(run_dir), summaries_(summaries) {}

  void step(const StepReport& r) override {
    if (!summaries_) point(r);
  }
  void summary(const StepReport& r) override {
    if (summaries_) point(r);
  }
  void epoch(const EpochReport& r) override {
    const auto evaluation = [&](const std::string& name, const EvaluationReport& e) {
      careful_([&] {
        events_.scalars(r.step, {{name + "/loss", static_cast<float>(e.loss)},
                                 {name + "/top1", static_cast<float>(e.top1)},
                                 {name + "/topk", static_cast<float>(e.topk)}});
      });
    };
    if (r.test) evaluation("test", *r.test);
    if (r.test_ema) evaluation("test_ema", *r.test_ema);
  }

 protected:
  detail::FaultTolerantWriter careful_;
  io::EventWriter events_;

 private:
  void point(const StepReport& r) {
    std::vector<io::Scalar> values{{"train/loss", static_cast<float>(r.train_loss)},
                                   {"train/top1", static_cast<float>(r.train_top1)},
                                   {"train/images_per_second", static_cast<float>(r.images_per_second)},
                                   {"train/lr", static_cast<float>(r.lr)},
                                   {"time/data_wait", static_cast<float>(r.data_wait)},
                                   {"time/comm_wait", static_cast<float>(r.comm_wait.value_or(0))}};
    if (r.gpu_utilisation) values.push_back({"time/gpu_utilisation", static_cast<float>(*r.gpu_utilisation)});
    careful_([&] { events_.scalars(r.step, values); });
  }

  bool summaries_;
};

}  // namespace tutti
