// SPDX-License-Identifier: MIT
#include "tools/trainer/hardest_source.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/ignored_label.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/detail/trainer/batch_view.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/recipe.hpp"

namespace tutti::trainer {

namespace {

// The net that chooses the images.
Graph small_net(const RunOptions& o, const Schema& schema, const AnyDataset& train) {
  RunOptions small = o;
  small.network = "airbench96_proxy";
  Graph g = make_model(small, schema, &train);
  (void)freeze(g, "whitening.bias", "--hardest");
  return g;
}

TrainerOptions small_options(const RunOptions& o) {
  TrainerOptions t;
  t.compute = trainer_options(o).compute;
  t.optimizer = Sgd{o.mom.value(), true};
  t.weight_decay = o.wd.value();
  t.seed = o.seed;
  return t;
}

// Losses and choices by a small net, which learns on the way.
class Chooser {
 public:
  Chooser(Backend& backend, const RunOptions& o, const Schema& schema, const AnyDataset& train)
      : backend_(backend),
        net_(small_net(o, schema, train)),
        trainer_(backend, solo_, net_, small_options(o)),
        forward_(backend, net_, {small_options(o).compute}),
        logits_(forward_),
        smoothing_(o.label_smoothing) {
    const FitOptions f = fit_options(o, train.size());
    schedule_ = f.schedule;
    point_ = {0, tutti::steps_per_epoch(train.size(), o.global_batch_size, epoch_end_of(o)), f.total_steps,
              o.global_batch_size, 1};
    copy_weights();
  }

  // Returns the numbers of the `count` rows with the largest losses, in ascending order.
  std::vector<std::size_t> choose(const Batch& batch, std::size_t count) {
    const BatchView view = view_of(batch, 0, batch.count);
    forward_.train(view, {1, 1.0 / static_cast<double>(batch.count)});
    const std::span<const float> z = logits_.of_last_run(batch.count);
    const std::size_t rows = batch.labels.size(), classes = z.size() / rows;
    std::vector<double> losses(rows);
    for (std::size_t r = 0; r < rows; ++r) losses[r] = loss(z.subspan(r * classes, classes), batch.labels[r]);
    std::vector<std::size_t> order(rows);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return losses[a] > losses[b]; });
    order.resize(std::min(count, rows));
    std::sort(order.begin(), order.end());
    if (point_.step % 4 == 0) learn(view, order);
    ++point_.step;
    return order;
  }

 private:
  [[nodiscard]] double loss(std::span<const float> z, std::int32_t label) const {
    const double top = static_cast<double>(*std::max_element(z.begin(), z.end()));
    double sum = 0, mean = 0;
    for (const float v : z) {
      sum += std::exp(static_cast<double>(v) - top);
      mean += static_cast<double>(v) / static_cast<double>(z.size());
    }
    const double own = label >= 0 ? static_cast<double>(z[static_cast<std::size_t>(label)]) : top;
    return top + std::log(sum) - (1 - smoothing_) * own - smoothing_ * mean;
  }
  // Batch norm sees all rows, and the loss the chosen ones.
  void learn(BatchView view, const std::vector<std::size_t>& chosen) {
    labels_.assign(static_cast<std::size_t>(view.rows), ignored_label);
    for (const std::size_t r : chosen) labels_[r] = view.labels[r];
    view.labels = labels_.data();
    (void)trainer_.step(view, static_cast<std::int64_t>(chosen.size()), schedule_(point_)).wait();
    copy_weights();
  }
  void copy_weights() {
    backend_.memory().copy(forward_.parameter_data(), trainer_.executor().parameter_data(),
                           forward_.parameters().bytes());
    forward_.parameters_changed();
  }

  Backend& backend_;
  Graph net_;
  Solo solo_;
  Trainer trainer_;
  Executor forward_;
  tutti::detail::LogitsOnHost logits_;
  double smoothing_;
  Schedule schedule_ = schedule::Constant{0};
  SchedulePoint point_;
  std::vector<std::int32_t> labels_;
};

class HardestSource final : public BatchSource {
 public:
  HardestSource(std::unique_ptr<BatchSource> source, Backend& backend, const RunOptions& o, const Schema& schema,
                const AnyDataset& train)
      : source_(std::move(source)), chooser_(backend, o, schema, train), share_(o.hardest) {}

  void start(Position p) override {
    require_beginning(p);
    source_->start(p);
  }
  void start(Position p, const Placement& placement) override {
    require_beginning(p);
    source_->start(p, placement);
  }
  [[nodiscard]] int reads_ahead() const override { return source_->reads_ahead(); }
  [[nodiscard]] const Placement& placement() const override { return source_->placement(); }
  [[nodiscard]] Sampler sampler() const override { return source_->sampler(); }
  const Batch& next() override {
    const Batch& all = source_->next();
    const std::vector<std::size_t> chosen =
        chooser_.choose(all, static_cast<std::size_t>(std::ceil(share_ * static_cast<double>(all.count))));
    batch_ = all;
    batch_.count = batch_.global_count = static_cast<std::int64_t>(chosen.size());
    take(chosen, all.labels, labels_);
    take(chosen, all.indices, indices_);
    take(chosen, all.epochs, epochs_);
    batch_.labels = span_of(labels_);
    batch_.indices = span_of(indices_);
    batch_.epochs = span_of(epochs_);
    const std::size_t bytes = all.images.size() / std::max<std::size_t>(all.labels.size(), 1);
    pixels_.resize(chosen.size() * bytes + 64);
    void* to = pixels_.data();
    std::size_t room = pixels_.size();
    auto* const begin = static_cast<std::uint8_t*>(std::align(64, chosen.size() * bytes, to, room));
    for (std::size_t i = 0; i < chosen.size(); ++i)
      std::memcpy(begin + i * bytes, all.images.data() + chosen[i] * bytes, bytes);
    batch_.images = {begin, chosen.size() * bytes};
    started_ = true;
    return batch_;
  }
  void release() override { source_->release(); }
  [[nodiscard]] std::int64_t skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::vector<std::string> take_skip_messages() override { return source_->take_skip_messages(); }
  [[nodiscard]] double seconds_waited() const override { return source_->seconds_waited(); }
  [[nodiscard]] std::shared_ptr<const Schema> schema() const override { return source_->schema(); }
  [[nodiscard]] std::int64_t size() const override { return source_->size(); }

 private:
  void require_beginning(Position p) const {
    if (started_ || p.epoch != 0 || p.consumed != 0)
      fail<UsageError>("--hardest", "a run from its beginning, because the state of the small net is not saved",
                       {"epoch ", p.epoch + 1, ", ", p.consumed, " images"}, "start the run again");
  }
  template <class T>
  static void take(const std::vector<std::size_t>& chosen, std::span<const T> from, std::vector<T>& to) {
    to.clear();
    if (from.empty()) return;
    for (const std::size_t i : chosen) to.push_back(from[i]);
  }

  std::unique_ptr<BatchSource> source_;
  Chooser chooser_;
  double share_;
  bool started_ = false;
  Batch batch_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> indices_, epochs_;
};

}  // namespace

std::unique_ptr<BatchSource> hardest_source(std::unique_ptr<BatchSource> source, Backend& backend, const RunOptions& o,
                                            const Schema& schema, const AnyDataset& train) {
  return std::make_unique<HardestSource>(std::move(source), backend, o, schema, train);
}

}  // namespace tutti::trainer
