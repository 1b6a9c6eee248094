// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/planner.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/metrics.hpp>
#include <tutti/train/weight_packs.hpp>

namespace tutti {

struct ExecutorOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on Reference, f16 on CUDA
  bool keep_all = false;
};

// Runs a model on a backend: owns its arenas, makes a plan per batch size and mode, and walks the plan's segments.
template <Backend B>
class Executor {
 public:
  using Options = ExecutorOptions;
  // Called during a training run when the first `slices` slices of the gradient arena are final.
  using OnReady = std::function<void(std::size_t slices)>;

  // `forward`: a model recorded on a Builder. `gradients`: memory of parameters().bytes() in the backend's space to use
  // as gradient arena, or null.
  Executor(B& backend, const Graph& forward, Options options = {}, void* gradients = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  [[nodiscard]] B& backend() const noexcept { return b_; }
  [[nodiscard]] const Graph& graph() const noexcept { return train_; }
  [[nodiscard]] const ArenaLayout& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const ArenaLayout& states() const noexcept { return states_; }
  [[nodiscard]] DType compute() const noexcept { return options_.compute; }
  // The arenas. Whoever writes parameters calls parameters_changed() afterwards.
  [[nodiscard]] void* parameter_data() const noexcept { return parameter_data_.data(); }
  [[nodiscard]] void* gradient_data() const noexcept { return gradients_; }
  [[nodiscard]] void* state_data() const noexcept { return state_data_.data(); }
  void parameters_changed() noexcept { packs_.set_stale(true); }

  // Makes the plan for a batch size ahead of its first use and allocates what it needs.
  const Plan& prepare(std::int64_t rows, bool training);

  // Forward and backward; fills the gradient arena with d(sum of losses * scalars).
  Metrics train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready = {});
  // Of the run that is going on or the last one; final as soon as a slice of gradients is. Waits where a device runs
  // it.
  [[nodiscard]] Metrics metrics() const;
  // They lie there in the backend's memory, as four f64.
  [[nodiscard]] const void* metrics_data() const { return value(train_.metrics).data; }

  // A part of a step that nobody waits for: calls begin(), starts forward and backward, and calls end(), which starts
  // what belongs behind; a backend that captures such parts replays all of it, unless begin, on_ready or end would do
  // other things than before, which `key` tells. The backend has the numbers of the step from elsewhere (DeviceStep),
  // and end() repacks the weights it changes. Of a batch without rows, begin() and end() alone.
  template <class Begin, class End>
  void start(const BatchView& batch, const std::vector<std::uint64_t>& key, const OnReady& on_ready, Begin&& begin,
             End&& end);
  // After weights have changed, in the order of the backend's work.
  void repack() {
    packs_.set_stale(true);
    packs_.run();
  }
  // Forward with the running statistics.
  Metrics evaluate(const BatchView& batch);

  // Where a value of the last run lies: logits always, others with keep_all.
  [[nodiscard]] TensorRef value(ValueId v) const;

  struct MemoryUse {
    std::size_t parameters, gradients, states, activations, scratch, packed;
  };
  [[nodiscard]] MemoryUse memory() const {
    return {parameters_.bytes(),  parameters_.bytes(), states_.bytes(),
            activations_.bytes(), scratch_.bytes(),    packs_.bytes()};
  }

  // Nanoseconds of CPU time per node and phase, summed over workers, while profiling is on.
  struct Profile {
    std::vector<std::array<std::int64_t, 4>> nodes;
  };
  void profile(Profile* p) {
    profile_ = p;
    if (p != nullptr) p->nodes.assign(train_.nodes.size(), {});
  }

 private:
  struct Prepared {
    Plan plan;
    const Graph* graph;
    std::vector<std::shared_ptr<void>> states;  // per node
    std::uint64_t id = next_id();               // of this process
  };
  static constexpr bool replays = requires(B & b, const std::vector<std::uint64_t>& key, const StepScalars* s) {
    b.replay(key, s, [] {});
  };
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  Prepared& prepared(std::int64_t rows, bool training) {
    auto& slot = plans_[{rows, training}];
    if (!slot) slot = make(rows, training);
    return *slot;
  }

  std::unique_ptr<Prepared> make(std::int64_t rows, bool training) {
    auto p = std::make_unique<Prepared>();
    p->graph = training ? &train_ : &eval_;
    PlanOptions o;
    o.rows = rows;
    o.compute = options_.compute;
    o.master = parameters_.dtype;
    o.training = training;
    o.lanes = b_.lanes();
    o.chunk_bytes = b_.chunk_bytes();
    o.keep_all = options_.keep_all;
    const PlanQueries queries{[&](const Op& any, const NodeDesc& d) {
                                return visit_op(any, [&]<class O>(const O& x) {
                                  if constexpr (RunsOp<B, O>)
                                    return b_.partition(x, d);
                                  else
                                    return Partition{};
                                });
                              },
                              [&](const Op& any, const NodeDesc& d) { return b_.pack_bytes(any, d); },
                              WeightPacks<B>::once};
    const auto plan_of = [&](std::int64_t n) {
      o.rows = n;
      return make_plan(*p->graph, o, queries, parameters_, states_);
    };
    p->plan = plan_of(rows);
    if constexpr (requires { b_.free_bytes(); }) require_room(p->plan, plan_of);
    prepare_nodes(*p);
    reserve_slot(rows);
    grow(activations_, p->plan.activation_bytes);
    scratch_stride_ = std::max(scratch_stride_, p->plan.scratch_bytes);
    grow(scratch_, scratch_stride_ * static_cast<std::size_t>(b_.threads()));
    if (training && packs_.bytes() < p->plan.packed_bytes)
      packs_.describe(train_, p->plan, parameters_, parameter_data_, p->states);
    // Evaluation reads the training plan's packed weights; forward nodes have the same numbers in both graphs.
    if (!training && packs_.bytes() < p->plan.packed_bytes) prepared(rows, true);
    return p;
  }

  // Of memory that a run with this plan allocates, on a device.
  [[nodiscard]] std::size_t needed_bytes(const Plan& p) const {
    return p.activation_bytes + p.scratch_bytes + p.packed_bytes + slot_image_bytes(p.rows) + slot_label_bytes(p.rows);
  }
  // Where memory is short and says how short, the largest batch that fits is named before anything is allocated.
  template <class F>
  void require_room(const Plan& wanted, F&& plan_of) {
    const std::size_t own =
        activations_.bytes() + scratch_.bytes() + packs_.bytes() + staged_images_.bytes() + staged_labels_.bytes();
    const std::size_t room = b_.free_bytes() + own;
    if (needed_bytes(wanted) <= room) return;
    // Parameters, gradients and optimizer state are there already: whoever trains allocates them first.
    std::size_t held = 2 * parameters_.bytes() + states_.bytes();
    if constexpr (requires { b_.allocated_bytes(); }) held = b_.allocated_bytes() - own;
    std::int64_t fits = 0;
    for (std::int64_t low = 1, high = wanted.rows - 1; low <= high;) {
      const std::int64_t middle = low + (high - low) / 2;
      const bool enough = needed_bytes(plan_of(middle)) <= room;
      (enough ? low : high) = enough ? middle + 1 : middle - 1;
      if (enough) fits = middle;
    }
    const auto mib = [](std::size_t n) { return std::to_string((n + 0xfffff) >> 20) + " MiB"; };
    fail<DeviceError>(b_.name(),
                      mib(needed_bytes(wanted)) + " of memory beside the " + mib(held) +
                          " of parameters, gradients and optimizer state for a batch of " + std::to_string(wanted.rows),
                      mib(room) + " free",
                      fits > 0
                          ? "at most about " + std::to_string(fits) + " rows fit: use --batch-size, or --precision bf16"
                          : "not even one row fits: end other programs that use the device");
  }

  void prepare_nodes(Prepared& p) {
    p.states.resize(p.graph->nodes.size());
    for (const Segment& seg : p.plan.segments)
      for (const Step& step : seg.steps) {
        const auto i = static_cast<std::size_t>(step.node);
        const Node& n = p.graph->nodes[i];
        if (n.inputs.size() > Call::max_operands || n.outputs.size() > Call::max_operands)
          fail<UsageError>(n.name, "at most 16 operands", std::to_string(std::max(n.inputs.size(), n.outputs.size())));
        if (p.states[i]) continue;
        PrepareInfo info;
        for (ValueId v : n.inputs) info.desc.in.push_back(p.plan.desc(v));
        for (ValueId v : n.outputs) info.desc.out.push_back(p.plan.desc(v));
        info.desc.compute = p.plan.compute;
        info.desc.rows = p.plan.rows;
        info.desc.lanes = p.plan.lanes;
        info.partition = p.plan.partitions[i];
        info.chunk_rows = seg.whole ? std::vector<std::int64_t>{p.plan.rows} : chunk_sizes(p.plan, seg.chunk_rows);
        info.workers = b_.threads();
        p.states[i] = visit_op(n.op, [&](const auto& o) { return prepare_op(n, o, info); });
      }
  }
  template <class O>
  std::shared_ptr<void> prepare_op(const Node& n, const O& o, const PrepareInfo& info) {
    if constexpr (std::is_same_v<O, op::Custom>)
      return custom_kernel(n, *o.def, o.def->forward);
    else if constexpr (std::is_same_v<O, op::CustomBackward>)
      return custom_kernel(n, *o.def, o.def->backward);
    else if constexpr (RunsOp<B, O>)
      return b_.prepare(o, info);
    else  // an optional op, which only a backend's own lower() makes
      fail(n.name, "an op that backend '" + b_.name() + "' runs", std::string(name_of(n.op)));
  }
  std::shared_ptr<void> custom_kernel(const Node& n, const CustomOp& def,
                                      const std::map<std::string, CustomOp::Kernel>& kernels) {
    auto it = kernels.find(b_.name());
    if (it == kernels.end() && std::is_base_of_v<HostMemory, B>) it = kernels.find("host");
    if (it == kernels.end())
      fail<UsageError>(n.name, "a kernel of the custom op '" + def.name + "' for backend '" + b_.name() + "'", "none",
                       "add it to CustomOp::forward and CustomOp::backward");
    return std::make_shared<CustomOp::Kernel>(it->second);
  }

  static std::vector<std::int64_t> chunk_sizes(const Plan& p, std::int64_t chunk) {
    std::vector<std::int64_t> sizes;
    for (int l = 0; l < p.lanes; ++l)
      for (std::int64_t r = p.lane_begin(l), end = p.lane_begin(l + 1); r < end; r += chunk) {
        const std::int64_t n = std::min(chunk, end - r);
        if (std::find(sizes.begin(), sizes.end(), n) == sizes.end()) sizes.push_back(n);
      }
    return sizes;
  }

  void grow(Buffer<B>& buffer, std::size_t bytes) {
    if (buffer.bytes() >= bytes) return;
    buffer = {};
    buffer = Buffer<B>(b_, bytes);
  }

  [[nodiscard]] std::byte* base(const ValuePlace& at) const {
    switch (at.where) {
      case Where::image:
        return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(batch_.images));
      case Where::labels:
        return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(batch_.labels));
      case Where::parameter:
        return parameter_data_.at(at.offset);
      case Where::state:
        return state_data_.at(at.offset);
      case Where::gradient:
        return static_cast<std::byte*>(gradients_) + at.offset;
      case Where::activation:
        return activations_.at(at.offset);
      case Where::scratch:
        return scratch_.at(at.offset);
      case Where::nowhere:
        break;
    }
    return nullptr;
  }

  // Fills a call's operands for rows [row, row + n).
  void fill(const Prepared& p, Call& c, NodeId node, std::int64_t row, std::int64_t n, int worker) const {
    const auto i = static_cast<std::size_t>(node);
    const Node& nd = p.graph->nodes[i];
    const auto operand = [&](ValueId v, TensorRef& t) {
      const ValuePlace& at = p.plan.values[static_cast<std::size_t>(v)];
      t.dtype = at.desc.dtype;
      t.shape = at.desc.shape;
      std::byte* data = base(at);
      if ((*p.graph)[v].per_row) {
        t.shape[0] = n;
        if (at.where == Where::scratch)
          data += static_cast<std::size_t>(worker) * scratch_stride_;
        else
          data += static_cast<std::size_t>(row) * at.desc.row_bytes();
      }
      t.data = data;
    };
    c.inputs = static_cast<int>(nd.inputs.size());
    c.outputs = static_cast<int>(nd.outputs.size());
    for (std::size_t k = 0; k < nd.inputs.size(); ++k) operand(nd.inputs[k], c.in[k]);
    for (std::size_t k = 0; k < nd.outputs.size(); ++k) operand(nd.outputs[k], c.out[k]);
    if (std::byte* const packed = packs_.of(i); packed != nullptr) {
      c.in[1].data = packed;
      c.in[1].dtype = options_.compute;
    }
    c.worker = worker;
    c.lanes = p.plan.lanes;
    c.count_rows = p.plan.rows;
    c.state = p.states[i].get();
    c.scalars = scalars_known_ ? nullptr : &scalars_;
    c.node = nd.name;
    c.partial_stride = (p.plan.partitions[i].partial_bytes + 63) / 64 * 64;
    c.partial = activations_.at(p.plan.partial_offset[i]);
  }

  void dispatch(const Prepared& p, NodeId node, Call& c) {
    const auto start = profile_ != nullptr ? now() : 0;
    visit_op(p.graph->nodes[static_cast<std::size_t>(node)].op, [&]<class O>(const O& o) {
      if constexpr (RunsOp<B, O>) b_.run(o, c);
    });
    if (profile_ != nullptr) {
      auto& cell = profile_->nodes[static_cast<std::size_t>(node)][static_cast<std::size_t>(c.phase)];
      std::atomic_ref(cell).fetch_add(now() - start, std::memory_order_relaxed);
    }
  }
  // Of this thread's CPU time: what a busy neighbour takes is not counted.
  static std::int64_t now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  }

  Metrics run(Prepared& p, const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready) {
    bind(batch);
    scalars_ = scalars;
    scalars_known_ = false;
    last_ = &p;
    // A backend that can replay what it was told before does so, where nobody listens in between.
    if constexpr (replays) {
      if (!on_ready) {
        make_key(&p);
        b_.replay(key_, &scalars_, [&] { run_segments(p, on_ready); });
        packs_.set_stale(false);
        return metrics();
      }
    }
    run_segments(p, on_ready);
    return metrics();
  }

  void run_segments(Prepared& p, const OnReady& on_ready) {
    packs_.run();
    std::size_t ready = 0;
    for (const Segment& seg : p.plan.segments) {
      if (seg.whole)
        run_whole(p, seg);
      else
        run_rows(p, seg);
      if (seg.ready > ready) {
        ready = seg.ready;
        if (on_ready) on_ready(ready);
      }
    }
  }

  // Everything that decides what run_segments() asks of the backend; p: null for a part without rows.
  void make_key(const Prepared* p) {
    key_.assign({p != nullptr ? p->id : 0, id_, packs_.id(), packs_.stale() ? 1U : 0U});
    for (const void* at : {static_cast<const void*>(batch_.images), static_cast<const void*>(batch_.labels),
                           static_cast<const void*>(activations_.data()), static_cast<const void*>(scratch_.data())})
      key_.push_back(reinterpret_cast<std::uintptr_t>(at));
  }

  void run_whole(Prepared& p, const Segment& seg) {
    const NodeId node = seg.steps[0].node;
    const int tasks = p.plan.partitions[static_cast<std::size_t>(node)].tasks;
    b_.parallel(tasks, [&](int task, int worker) {
      Call c;
      fill(p, c, node, 0, p.plan.rows, worker);
      c.task = task;
      c.tasks = tasks;
      dispatch(p, node, c);
    });
  }

  void run_rows(Prepared& p, const Segment& seg) {
    b_.parallel(p.plan.lanes, [&](int lane, int worker) {
      const std::int64_t begin = p.plan.lane_begin(lane), end = p.plan.lane_begin(lane + 1);
      for (std::int64_t row = begin; row < end; row += seg.chunk_rows)
        for (const Step& step : seg.steps) {
          Call c;
          fill(p, c, step.node, row, std::min(seg.chunk_rows, end - row), worker);
          c.phase = step.phase;
          c.lane = lane;
          c.first_chunk = row == begin;
          c.partial = c.partial_of(lane);
          dispatch(p, step.node, c);
        }
    });
    b_.parallel(static_cast<int>(seg.finishes.size()), [&](int t, int worker) {
      const NodeId node = seg.finishes[static_cast<std::size_t>(t)];
      Call c;
      fill(p, c, node, 0, p.plan.rows, worker);
      c.phase = Phase::finish;
      dispatch(p, node, c);
    });
  }

  void bind(const BatchView& batch) {
    if constexpr (std::is_base_of_v<HostMemory, B>) {
      batch_ = batch;
    } else {
      reserve_slot(batch.rows);
      void *const images = staged_images_.data(), *const labels = staged_labels_.data();
      if (batch.resident != nullptr) {
        gather(batch, images, labels);
      } else {
        const std::size_t image_bytes = slot_image_bytes(batch.rows), label_bytes = slot_label_bytes(batch.rows);
        if constexpr (requires { b_.upload(images, image_bytes, labels, label_bytes, images, labels); }) {
          b_.upload(batch.images, image_bytes, batch.labels, label_bytes, images, labels);
        } else {
          b_.copy_in(images, batch.images, image_bytes);
          b_.copy_in(labels, batch.labels, label_bytes);
        }
      }
      batch_ = {static_cast<const std::uint8_t*>(images), static_cast<const std::int32_t*>(labels), batch.rows};
    }
  }
  void gather(const BatchView& batch, void* images, void* labels) {
    const Shape& s = train_[train_.images].shape;
    const ResidentImages& from = *batch.resident;
    if (from.channels != s[1] || from.out_height != s[2] || from.out_width != s[3])
      fail<ShapeError>("Executor", "images " + to_string(s),
                       "windows of " + std::to_string(from.channels) + " channels, " + std::to_string(from.out_height) +
                           "x" + std::to_string(from.out_width));
    if constexpr (requires { b_.gather_images(from, batch.windows, batch.rows, images, labels); })
      b_.gather_images(from, batch.windows, batch.rows, images, labels);
    else
      fail<UsageError>("Executor", "images of the host", "images in the memory of another backend");
  }

  // The slot on the device that steps read: of the largest plan's size from the beginning, because what is captured
  // keeps its address.
  void reserve_slot(std::int64_t rows) {
    if constexpr (!std::is_base_of_v<HostMemory, B>) {
      grow(staged_images_, slot_image_bytes(rows));
      grow(staged_labels_, slot_label_bytes(rows));
    }
  }
  [[nodiscard]] std::size_t slot_image_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * train_[train_.images].shape.row_numel());
  }
  static std::size_t slot_label_bytes(std::int64_t rows) {
    return static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  }

  B& b_;
  Options options_;
  Graph train_, eval_;
  ArenaLayout parameters_, states_;
  Buffer<B> parameter_data_, state_data_, own_gradients_, activations_, scratch_, staged_images_, staged_labels_;
  void* gradients_ = nullptr;
  std::size_t scratch_stride_ = 0;
  WeightPacks<B> packs_{b_};
  std::map<std::pair<std::int64_t, bool>, std::unique_ptr<Prepared>> plans_;
  Prepared* last_ = nullptr;
  BatchView batch_;
  StepScalars scalars_;
  bool scalars_known_ = false;  // to the backend
  std::uint64_t id_ = next_id();
  std::vector<std::uint64_t> key_;  // of the run, in the same memory each time
  Profile* profile_ = nullptr;
};

// What is called from outside is defined out here, so that it can be compiled elsewhere.

template <Backend B>
Executor<B>::Executor(B& backend, const Graph& forward, Options options, void* gradients)
    : b_(backend), options_(options) {
  if (options.compute != DType::f32 && options.compute != DType::bf16 && options.compute != DType::f64 &&
      options.compute != DType::f16)
    fail<UsageError>("Executor", "a compute type of f32, bf16, f16 or f64", std::string(name_of(options.compute)));
  if constexpr (!requires { requires B::has_f16; })
    if (options.compute == DType::f16)
      fail<UsageError>("Executor", "a compute type of f32 or bf16 on backend '" + b_.name() + "'", "f16",
                       "f16 runs on the cuda backend alone");
  if constexpr (requires { requires !B::has_f64; })
    if (options.compute == DType::f64)
      fail<UsageError>("Executor", "a compute type of f32 or bf16 on backend '" + b_.name() + "'", "f64",
                       "f64 runs on the reference backend alone");
  const Graph fused = fuse(forward);
  train_ = differentiate(fused);
  // A backend may run chains of ops as one.
  if constexpr (requires { b_.lower(train_, options.compute); }) b_.lower(train_, options.compute);
  eval_ = inference(fused);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters_ = parameter_layout(train_, master);
  states_ = state_layout(train_, master);
  parameter_data_ = Buffer<B>(b_, parameters_.bytes());
  state_data_ = Buffer<B>(b_, states_.bytes());
  if (gradients == nullptr) {
    own_gradients_ = Buffer<B>(b_, parameters_.bytes());
    gradients = own_gradients_.data();
  }
  gradients_ = gradients;
}

template <Backend B>
Executor<B>::~Executor() = default;

template <Backend B>
const Plan& Executor<B>::prepare(std::int64_t rows, bool training) {
  return prepared(rows, training).plan;
}

template <Backend B>
Metrics Executor<B>::train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready) {
  return run(prepared(batch.rows, true), batch, scalars, on_ready);
}

template <Backend B>
template <class Begin, class End>
void Executor<B>::start(const BatchView& batch, const std::vector<std::uint64_t>& key, const OnReady& on_ready,
                        Begin&& begin, End&& end) {
  Prepared* const p = batch.rows > 0 ? &prepared(batch.rows, true) : nullptr;
  if (p != nullptr) {
    bind(batch);
    last_ = p;
  }
  scalars_known_ = true;
  // Weights that somebody changed between the steps are no part of what is captured.
  packs_.run();
  const auto all = [&] {
    begin();
    if (p != nullptr) run_segments(*p, on_ready);
    end();
  };
  if constexpr (replays) {
    make_key(p);
    key_.insert(key_.end(), key.begin(), key.end());
    b_.replay(key_, nullptr, all);
  } else {
    all();
  }
  packs_.set_stale(false);
}

template <Backend B>
Metrics Executor<B>::metrics() const {
  const TensorRef m = value(train_.metrics);
  std::array<double, 4> host{};
  b_.copy_out(host.data(), m.data, sizeof host);
  return {host[0], host[1], host[2], host[3]};
}

template <Backend B>
Metrics Executor<B>::evaluate(const BatchView& batch) {
  return run(prepared(batch.rows, false), batch, StepScalars{}, {});
}

template <Backend B>
TensorRef Executor<B>::value(ValueId v) const {
  if (last_ == nullptr || v < 0 || static_cast<std::size_t>(v) >= last_->plan.values.size())
    fail<UsageError>("Executor", "a value of the last run's graph", "value " + std::to_string(v),
                     "gradients exist after train() only");
  const ValuePlace& at = last_->plan.values[static_cast<std::size_t>(v)];
  if (at.where == Where::scratch || at.where == Where::nowhere)
    fail<UsageError>("Executor", "a value that the plan keeps", graph()[v].name, "set ExecutorOptions::keep_all");
  return {base(at), at.desc.dtype, at.desc.shape};
}

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
#include <tutti/backend/reference.hpp>
namespace tutti {
TUTTI_CORE_INSTANCE(template class Executor<Reference>);
}
#endif
