// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/float/f16.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/add_ends.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/batch_slot.hpp>
#include <tutti/engine/plan/arenas.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/engine/plan/plan_walk.hpp>
#include <tutti/engine/plan/planner.hpp>
#include <tutti/engine/plan/prepared_plan.hpp>
#include <tutti/engine/plan/require_room.hpp>
#include <tutti/engine/plan/weight_packs.hpp>
#include <tutti/engine/require_bf16.hpp>
#include <tutti/graph/fold_norms.hpp>
#include <tutti/graph/weighted_graph.hpp>

namespace tutti {

// How a net predicts.
struct InferenceOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on ReferenceBackend, f16 on CUDA
  // Folds batch norms into the weights of the convolutions before them, if the backend's convolutions add a bias, a
  // residual and a relu at their ends. This changes the rounding. Batch norms without a convolution before them stay;
  // if a folded weight is too large for f32, no batch norm is folded.
  bool fold_norms = true;
};

// Runs a net without training: no gradients, and only the memory of the largest batch's forward pass. The weights are
// copied, and packed once in the form that the kernels read. All threads of the backend work on a batch; if it has
// fewer images than threads, they share each image. Without folding, the logits have the bits of Executor::evaluate(),
// if the kernels compute the same bits for parts of an image (NodeDesc::parts). To train, use an Executor.
class Inference {
 public:
  using Options = InferenceOptions;

  // net: an inference_graph() with its weights. The backend must outlive this object. Throws UsageError for a compute
  // type that the backend does not have, and if a parameter or a statistic does not have as many values as its shape.
  Inference(Backend& backend, const WeightedGraph& net, const Options& options = {})
      : Inference(backend, options, ready(backend, net, options)) {}
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  // Returns the graph that runs: without the batch norms that were folded.
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }
  [[nodiscard]] std::int64_t classes() const { return graph_[graph_.logits].shape.row_numel(); }
  // Returns the bytes of an image: height * width * channels.
  [[nodiscard]] std::size_t image_bytes() const {
    return static_cast<std::size_t>(graph_[graph_.images].shape.row_numel());
  }

  // Makes the plan for batches of `rows` images and packs the weights, so that the first call of logits() is as fast as
  // the next ones. Prepare the largest batch first: otherwise memory is allocated twice. Throws UsageError for less
  // than one row, and DeviceError if the batch needs more memory than the device has.
  void prepare(std::int64_t rows) {
    prepared(rows);
    packs_.run();
  }

  // Returns the net's output [rows, classes] for images [rows, height, width, channels], valid until the next call.
  // Throws as prepare() does.
  [[nodiscard]] std::span<const float> logits(const std::uint8_t* images, std::int64_t rows) {
    PreparedPlan& p = prepared(rows);
    labels_.resize(static_cast<std::size_t>(rows));  // not used
    slot_.bind({images, labels_.data(), rows}, graph_);
    b_.replay(span_of(key_of(p)), &scalars_, [&] { walk_.run(p, {}); });
    packs_.set_stale(false);
    return copy_out(p);
  }
  // The same for as many images as fill `images`. Throws UsageError if they are not whole images.
  [[nodiscard]] std::span<const float> logits(std::span<const std::uint8_t> images) {
    if (images.empty() || images.size() % image_bytes() != 0)
      fail<UsageError>("Inference", {"whole images of ", image_bytes(), " bytes"}, {images.size(), " bytes"},
                       "an image has height * width * channels bytes");
    return logits(images.data(), static_cast<std::int64_t>(images.size() / image_bytes()));
  }

  // Adds the nanoseconds of CPU time of each node of graph(), summed over threads, to `p` from now on; null ends it.
  void profile(PlanWalk::Profile* p) {
    if (p != nullptr) p->resize(graph_.nodes.size());
    walk_.profile(p);
  }

 private:
  Inference(Backend& backend, const Options& o, WeightedGraph net)
      : b_(backend),
        graph_(std::move(net.graph)),
        compute_(o.compute),
        arenas_(b_.memory()),
        slot_(b_, graph_),
        packs_(b_),
        walk_(b_, arenas_, slot_, packs_) {
    b_.reuse_weights();  // they never change
    parameters_ = parameter_layout(graph_, compute_ == DType::f64 ? DType::f64 : DType::f32);
    states_ = state_layout(graph_, parameters_.dtype);
    // There are no gradients; any address except null is accepted.
    arenas_.allocate(parameters_, states_,
                     [this](const ArenaLayout&, const ArenaLayout&) { return static_cast<void*>(this); });
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const Storage storage = graph_.values[v].storage;
      if (storage == Storage::parameter) put(parameters_, arenas_.parameters(), v, net.values[v]);
      if (storage == Storage::state) put(states_, arenas_.states(), v, net.values[v]);
    }
    walk_.set_scalars(&scalars_);
  }

  // Checks the net, and returns it as it will run.
  [[nodiscard]] static WeightedGraph ready(const Backend& b, const WeightedGraph& net, const Options& o) {
    if (o.compute == DType::bf16) require_bf16(b);
    if (!b.computes_in(o.compute))
      fail<UsageError>("Inference", {"a compute type of backend '", b.name(), "'"}, name_of(o.compute));
    if (net.values.size() != net.graph.values.size())
      fail<UsageError>("Inference", {"values for ", net.graph.values.size(), " values of the graph"},
                       net.values.size());
    for (std::size_t v = 0; v < net.values.size(); ++v) {
      const Value& value = net.graph.values[v];
      if (value.storage != Storage::parameter && value.storage != Storage::state) continue;
      const auto count = static_cast<std::size_t>(value.shape.numel());
      if (net.values[v].size() != count)
        fail<UsageError>("Inference", {count, " values of ", value.name}, net.values[v].size());
    }
    if (!o.fold_norms || !b.ends_convolutions()) return net;
    WeightedGraph folded = tutti::fold_norms(net);
    for (const std::vector<float>& values : folded.values)
      if (!std::all_of(values.begin(), values.end(), [](float x) { return math::is_finite(static_cast<double>(x)); }))
        return net;
    add_ends(folded.graph);
    return folded;
  }

  template <class To>
  static std::vector<std::byte> bytes_of(const std::vector<float>& values) {
    std::vector<std::byte> raw(values.size() * sizeof(To));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const To w = static_cast<To>(values[i]);
      std::memcpy(raw.data() + i * sizeof(To), &w, sizeof w);
    }
    return raw;
  }
  void put(const ArenaLayout& layout, const Buffer& arena, std::size_t v, const std::vector<float>& values) {
    const Slice& s = *layout.find(graph_.values[v].name);
    const auto raw = layout.dtype == DType::f64 ? bytes_of<double>(values) : bytes_of<float>(values);
    b_.memory().copy_in(arena.at(s.offset * size_of(layout.dtype)), raw.data(), raw.size());
  }

  [[nodiscard]] std::unique_ptr<PreparedPlan> lay_out(std::int64_t rows) {
    auto p = std::make_unique<PreparedPlan>();
    p->graph = &graph_;
    PlanOptions o;
    o.compute = compute_;
    o.master = parameters_.dtype;
    o.training = false;
    o.shards = b_.shards();
    o.chunk_bytes = b_.chunk_bytes();
    o.rows = rows;
    // With fewer rows than threads, threads share each image.
    o.parts = rows < b_.threads() ? b_.threads() : 1;
    p->plan = make_plan(graph_, o, plan_queries(b_, *p), parameters_, states_);
    return p;
  }
  [[nodiscard]] std::size_t run_bytes(const Plan& p) const {
    return p.activation_bytes + p.scratch_bytes + p.packed_bytes + slot_.bytes_for(p.rows, graph_);
  }
  PreparedPlan& prepared(std::int64_t rows) {
    for (const auto& p : plans_)
      if (p->plan.rows == rows) return *p;
    auto made = lay_out(rows);
    require_room(b_,
                 {rows, run_bytes(made->plan),
                  arenas_.activations().bytes() + arenas_.scratch().bytes() + packs_.bytes() + slot_.bytes(),
                  parameters_.bytes() + states_.bytes()},
                 [&](std::int64_t n) { return run_bytes(lay_out(n)->plan); });
    prepare_kernels(b_, *made);
    slot_.reserve(rows, graph_);
    arenas_.reserve(made->plan, b_.threads());
    // Plans for other batch sizes read the weights that the first plan's kernels pack.
    if (plans_.empty()) packs_.describe(graph_, made->plan, parameters_, arenas_.parameters(), made->kernels);
    return *plans_.emplace_back(std::move(made));
  }

  // Returns everything that determines what a walk requests of the backend.
  const std::vector<std::uint64_t>& key_of(const PreparedPlan& p) {
    key_.assign({p.id, id_, packs_.id(), packs_.stale() ? 1U : 0U});
    for (const void* at :
         {static_cast<const void*>(slot_.images()), static_cast<const void*>(slot_.labels()),
          static_cast<const void*>(arenas_.activations().data()), static_cast<const void*>(arenas_.scratch().data())})
      key_.push_back(reinterpret_cast<std::uintptr_t>(at));
    return key_;
  }

  std::span<const float> copy_out(const PreparedPlan& p) {
    const ValuePlace& at = p.plan.values[static_cast<std::size_t>(graph_.logits)];
    const auto count = static_cast<std::size_t>(p.plan.rows * classes());
    raw_.resize(count * size_of(at.desc.dtype));
    b_.memory().copy_out(raw_.data(), walk_.find(at), raw_.size());
    values_.resize(count);
    const auto convert = [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < count; ++i) {
        T v;
        std::memcpy(&v, raw_.data() + i * sizeof v, sizeof v);
        values_[i] = static_cast<float>(v);
      }
    };
    if (at.desc.dtype == DType::f16)
      convert(f16{});
    else
      with_float_type(at.desc.dtype, convert);
    return span_of(values_);
  }

  Backend& b_;
  Graph graph_;
  DType compute_;
  ArenaLayout parameters_, states_;
  Arenas arenas_;
  BatchSlot slot_;
  WeightPacks packs_;
  PlanWalk walk_;
  StepScalars scalars_;
  std::vector<std::unique_ptr<PreparedPlan>> plans_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> key_;
  std::uint64_t id_ = next_run_id();
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

}  // namespace tutti
