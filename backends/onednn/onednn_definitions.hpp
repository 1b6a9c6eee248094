// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/backends/onednn/linear.hpp>
#include <tutti/backends/onednn/onednn.hpp>
#include <tutti/backends/onednn/shim.hpp>
#include <tutti/engine/cpu/weight_gradient.hpp>

// What onednn.hpp declares. Included by it, except where it is compiled elsewhere (core/separate.hpp).
namespace tutti {

// The ops that oneDNN runs, and what they share.
class Onednn::Kernels {
 public:
  explicit Kernels(CpuOps& b) : b_(b), engine_(dnnl::engine::kind::cpu, 0), convolutions_(engine_, b.threads()) {
    scratch_.resize(static_cast<std::size_t>(b.threads()));
  }

  [[nodiscard]] Partition partition(const op::Conv2d&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Conv2dBackwardData&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Conv2dBackwardWeights& o, const NodeDesc& d) {
    const auto p = problem(o, d.in[0], d.out[0].shape, d.in[1]);
    if (own_gradient(p)) {
      if (p.w.numel() < 256 * 1024) return {Division::reduce, 1, d.out[0].bytes()};
      const std::int64_t parts = (p.w[2] * p.w[3] > 1 ? p.w[1] : std::max(p.w[0], p.w[1])) / 32;
      return {Division::whole, static_cast<int>(std::clamp<std::int64_t>(parts, 1, std::max(8, 4 * threads()))), 0};
    }
    if (by_channels(p)) return {Division::whole, channel_tasks, 0};
    return {Division::reduce, 1, convolutions_.layout(p, onednn::Pass::backward_weights).desc.get_size()};
  }

  [[nodiscard]] Partition partition(const op::Linear&, const NodeDesc& d) const { return by_columns(d.in[1].shape, 0); }
  [[nodiscard]] Partition partition(const op::LinearBackwardData&, const NodeDesc& d) const {
    return by_columns(d.in[1].shape, 1);
  }

  [[nodiscard]] std::size_t pack_bytes(const Op& o, const NodeDesc& d) {
    if (const auto* f = std::get_if<op::Conv2d>(&o))
      return convolutions_.layout(problem(*f, d.in[0], d.in[1].shape, d.out[0]), onednn::Pass::forward).desc.get_size();
    if (const auto* b = std::get_if<op::Conv2dBackwardData>(&o))
      return convolutions_.layout(problem(*b, d.out[0], d.in[1].shape, d.in[0]), onednn::Pass::backward_data)
          .desc.get_size();
    return b_.pack_bytes(o, d);
  }
  void pack(const Op& o, const NodeDesc& d, const TensorRef& w, void* to) {
    if (const auto* f = std::get_if<op::Conv2d>(&o))
      return convolutions_.reorder(problem(*f, d.in[0], d.in[1].shape, d.out[0]), onednn::Pass::forward, w.data, to);
    if (const auto* b = std::get_if<op::Conv2dBackwardData>(&o))
      return convolutions_.reorder(problem(*b, d.out[0], d.in[1].shape, d.in[0]), onednn::Pass::backward_data, w.data,
                                   to);
    b_.pack(o, d, w, to);
  }

  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2d& o, const PrepareInfo& i) {
    return primitives(onednn::Pass::forward, problem(o, i.desc.in[0], i.desc.in[1].shape, i.desc.out[0]), i);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardData& o, const PrepareInfo& i) {
    return primitives(onednn::Pass::backward_data, problem(o, i.desc.out[0], i.desc.in[1].shape, i.desc.in[0]), i);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardWeights& o, const PrepareInfo& i) {
    auto p = problem(o, i.desc.in[0], i.desc.out[0].shape, i.desc.in[1]);
    if (own_gradient(p)) return own_state(p, i);
    if (i.partition.division == Division::whole) {
      p.w[0] /= channel_tasks;
      p.y[1] /= channel_tasks;
    }
    return primitives(onednn::Pass::backward_weights, p, i);
  }

  [[nodiscard]] std::shared_ptr<void> prepare(const op::Linear&, const PrepareInfo& i) {
    const Shape& w = i.desc.in[1].shape;
    return products(i, w[0], {i.desc.rows, w[1], 0, 1, w[1], w[0], true, i.desc.compute == DType::bf16});
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::LinearBackwardData&, const PrepareInfo& i) {
    const Shape& w = i.desc.in[1].shape;
    return products(i, w[1], {i.desc.rows, w[0], 0, w[1], 1, w[1], false, i.desc.compute == DType::bf16});
  }

  void run(const op::Linear&, Call& c) {
    const std::int64_t first = first_column(c, c.in[1].shape[0]), in = c.in[1].shape[1];
    multiply(c, {c.in[0].data, at(c.in[1], first * in), at(c.out[0], first), at(c.in[2], first)});
  }
  void run(const op::LinearBackwardData&, Call& c) {
    const std::int64_t first = first_column(c, c.in[1].shape[1]);
    multiply(c, {c.in[0].data, at(c.in[1], first), at(c.out[0], first), nullptr});
  }
  void run(const op::Conv2d&, Call& c) {
    const auto& state = *static_cast<const State*>(c.state);
    const std::int64_t rows = c.out[0].shape[0];
    if (!onednn::blocked(state.problem, onednn::Pass::forward))
      return execute(c, {c.in[0].data, c.in[1].data, c.out[0].data}, rows);
    std::byte *const x = scratch(c.worker) + state.slice_offset, *const y = scratch(c.worker) + state.output_offset;
    const std::size_t unit = size_of(c.in[0].dtype);
    onednn::to_blocks(static_cast<const std::byte*>(c.in[0].data), x, c.in[0].shape, rows, unit, false);
    execute(c, {x, c.in[1].data, y}, rows);
    onednn::to_blocks(y, static_cast<std::byte*>(c.out[0].data), c.out[0].shape, rows, unit, true);
  }
  void run(const op::Conv2dBackwardData&, Call& c) {
    execute(c, {c.in[0].data, c.in[1].data, c.out[0].data}, c.out[0].shape[0]);
  }
  void run(const op::Conv2dBackwardWeights&, Call& c) {
    auto& state = *static_cast<State*>(c.state);
    if (own_gradient(state.problem))
      return c.in[0].dtype == DType::bf16 ? run_own<bf16>(c, state) : run_own<float>(c, state);
    if (c.phase == Phase::whole) return run_channels(c);
    const std::size_t n = state.weight_bytes / sizeof(float);
    auto* mine = reinterpret_cast<float*>(c.partial);
    if (c.phase == Phase::finish) {
      for (int l = 1; l < c.lanes; ++l)
        cpu::accumulate(isa(), mine, reinterpret_cast<const float*>(c.partial_of(l)), n);
      convolutions_.reorder(state.problem, onednn::Pass::backward_weights, mine, c.out[0].data);
      return;
    }
    // oneDNN overwrites its result, so only a lane's first chunk may go straight into the lane's sum.
    auto* target = c.first_chunk ? mine : reinterpret_cast<float*>(scratch(c.worker) + state.weight_offset);
    execute(c, {c.in[0].data, c.in[1].data, target}, c.in[0].shape[0]);
    if (!c.first_chunk) cpu::accumulate(isa(), mine, static_cast<const float*>(target), n);
  }

 private:
  struct Products {
    std::map<std::int64_t, std::unique_ptr<onednn::Primitive>> by_columns;
    std::vector<onednn::Primitive*> of_task;
  };
  struct State {
    onednn::Problem problem;
    std::map<std::int64_t, std::unique_ptr<onednn::Primitive>> by_rows;
    std::size_t weight_bytes = 0, weight_offset = 0, slice_offset = 0, output_offset = 0;
  };

  // Weight gradients of 1x1 convolutions, and of those with a stride, are our own kernel's work where there is one for
  // this processor: its products of matrices reach 80 % of the peak where oneDNN's convolutions reach 50 to 70. So are
  // the large ones in bf16. A large gradient is cut into parts of its channels, each a task over all rows, since a
  // partial sum of megabytes per lane would cost more to add than it saves; each element is summed in the same order
  // however it is cut.
  [[nodiscard]] bool own_gradient(const onednn::Problem& p) const {
    if (p.window.stride == 1 && p.w[2] * p.w[3] > 1 && !(p.bf16 && by_channels(p))) return false;
    return p.bf16 ? cpu::has_weight_gradient<bf16>(isa(), p.w[1], p.w[0])
                  : cpu::has_weight_gradient<float>(isa(), p.w[1], p.w[0]);
  }
  std::shared_ptr<void> own_state(const onednn::Problem& p, const PrepareInfo& i) {
    auto s = std::make_shared<State>();
    s->problem = p;
    const std::int64_t columns = cpu::weight_gradient_floats(p.w[1], p.w[0]);
    s->weight_offset = static_cast<std::size_t>(columns) * sizeof(float);
    const bool whole = i.partition.division == Division::whole && p.w[2] * p.w[3] > 1;
    const std::int64_t widest = whole ? (p.w[1] / 16 / i.partition.tasks + 1) * 16 : 0;
    reserve(s->weight_offset + static_cast<std::size_t>(p.w[0] * p.w[2] * p.w[3] * widest) * sizeof(float));
    return s;
  }
  template <class T>
  void run_own(Call& c, State& state) {
    const Shape& w = state.problem.w;
    const std::int64_t places = w[2] * w[3];
    auto* const out = static_cast<float*>(c.out[0].data);
    // [outputs][places][inputs] -> a part of [outputs][inputs in all][places]
    const auto turn = [&](const float* from, std::int64_t first, std::int64_t inputs) {
      for (std::int64_t o = 0; o < w[0]; ++o, from += places * inputs) {
        float* to = out + (o * w[1] + first) * places;
        for (std::int64_t k = 0; k < inputs; ++k)
          for (std::int64_t place = 0; place < places; ++place) *to++ = from[place * inputs + k];
      }
    };
    if (c.phase == Phase::finish) {
      auto* const sum = reinterpret_cast<float*>(c.partial);
      for (int l = 1; l < c.lanes; ++l)
        cpu::accumulate(isa(), sum, reinterpret_cast<const float*>(c.partial_of(l)),
                        static_cast<std::size_t>(w.numel()));
      return turn(sum, 0, w[1]);
    }
    cpu::WeightGradientArgs<T> g;
    g.window = state.problem.window;
    const TensorRef &x = c.in[0], &dy = c.in[1];
    g.rows = x.shape[0];
    g.h = x.shape[2];
    g.w = x.shape[3];
    g.channels = g.inputs = w[1];
    g.out_h = dy.shape[2];
    g.out_w = dy.shape[3];
    g.outputs = g.part_outputs = w[0];
    g.x = static_cast<const T*>(x.data);
    g.dy = static_cast<const T*>(dy.data);
    g.columns = reinterpret_cast<float*>(scratch(c.worker));
    if (c.phase == Phase::reduce) {
      g.add = !c.first_chunk;
      g.dw = reinterpret_cast<float*>(c.partial);
    } else {
      const bool cut_outputs = places == 1 && w[0] > w[1];
      const std::int64_t all = (cut_outputs ? w[0] : w[1]) / 16;
      const std::int64_t first = all * c.task / c.tasks * 16, count = all * (c.task + 1) / c.tasks * 16 - first;
      (cut_outputs ? g.first_output : g.first_input) = first;
      (cut_outputs ? g.part_outputs : g.inputs) = count;
      if (places > 1) {
        g.dw = reinterpret_cast<float*>(scratch(c.worker) + state.weight_offset);
      } else {
        g.dw = out + g.first_output * w[1] + g.first_input;
      }
    }
    const bool in_place = c.phase == Phase::whole && places == 1;
    g.dw_place = g.inputs;
    g.dw_output = in_place ? w[1] : places * g.inputs;
    cpu::weight_gradient<T>(g);
    if (c.phase == Phase::whole && !in_place) turn(g.dw, g.first_input, g.inputs);
  }

  // Else large ones are cut by output channels: a task gathers its channels of dy.
  static constexpr int channel_tasks = 8;
  static bool by_channels(const onednn::Problem& p) {
    return p.w.numel() >= 1024 * 1024 && p.w[0] % (16 * channel_tasks) == 0;
  }
  void run_channels(Call& c) {
    auto& state = *static_cast<State*>(c.state);
    const TensorRef& dy = c.in[1];
    const std::size_t unit = size_of(dy.dtype), channels = static_cast<std::size_t>(dy.shape[1]) * unit,
                      mine = channels / channel_tasks;
    std::byte* const room = scratch(c.worker);
    std::byte* const slice = room + state.slice_offset;
    const std::byte* from = static_cast<const std::byte*>(dy.data) + static_cast<std::size_t>(c.task) * mine;
    const std::size_t pixels = static_cast<std::size_t>(dy.shape.numel() / dy.shape[1]);
    for (std::size_t i = 0; i < pixels; ++i) std::memcpy(slice + i * mine, from + i * channels, mine);
    std::byte* const dw = room + state.weight_offset;
    execute(c, {c.in[0].data, slice, dw}, c.in[0].shape[0]);
    const auto part = static_cast<std::size_t>(c.out[0].shape.numel()) / channel_tasks;
    convolutions_.reorder(state.problem, onednn::Pass::backward_weights, dw,
                          static_cast<float*>(c.out[0].data) + static_cast<std::size_t>(c.task) * part);
  }
  // Fully connected: tasks share out the columns of the result.
  static Partition by_columns(const Shape& w, int extent) {
    return {Division::whole, w.numel() < 64 * 1024 ? 1 : linear_tasks(w[extent])};
  }
  static std::int64_t first_column(const Call& c, std::int64_t columns) { return columns * c.task / c.tasks; }
  static void* at(const TensorRef& t, std::int64_t element) {
    return static_cast<std::byte*>(t.data) + static_cast<std::size_t>(element) * size_of(t.dtype);
  }
  std::shared_ptr<void> products(const PrepareInfo& i, std::int64_t columns, onednn::Product p) {
    auto s = std::make_shared<Products>();
    for (int t = 0; t < i.partition.tasks; ++t) {
      p.columns = columns * (t + 1) / i.partition.tasks - columns * t / i.partition.tasks;
      auto& primitive = s->by_columns[p.columns];
      if (!primitive) primitive = onednn::make_product(engine_, p, i.workers);
      reserve(primitive->scratch_bytes());
      s->of_task.push_back(primitive.get());
    }
    return s;
  }
  void multiply(Call& c, const std::array<void*, 4>& data) {
    static_cast<Products*>(c.state)->of_task[static_cast<std::size_t>(c.task)]->run(c.worker, data, scratch(c.worker));
  }

  static onednn::Problem problem(const op::Window& o, const TensorDesc& x, const Shape& w, const TensorDesc& y) {
    return {o, x.shape, w, y.shape, x.dtype == DType::bf16};
  }

  std::shared_ptr<void> primitives(onednn::Pass pass, const onednn::Problem& p, const PrepareInfo& i) {
    auto s = std::make_shared<State>();
    s->problem = p;
    std::size_t need = 0;
    for (std::int64_t rows : i.chunk_rows) {
      auto primitive = convolutions_.make(p, pass, rows, i.workers);
      need = std::max(need, primitive->scratch_bytes());
      s->by_rows.emplace(rows, std::move(primitive));
    }
    if (pass == onednn::Pass::backward_weights) {
      s->weight_bytes = convolutions_.layout(p, pass).desc.get_size();
      s->weight_offset = (need + 63) / 64 * 64;
      s->slice_offset = s->weight_offset + (s->weight_bytes + 63) / 64 * 64;
      need = s->slice_offset;
      if (i.partition.division == Division::whole)
        need += static_cast<std::size_t>(i.desc.in[1].shape.numel()) / channel_tasks * size_of(i.desc.in[1].dtype);
    }
    if (blocked(p, pass)) {
      s->slice_offset = (need + 63) / 64 * 64;
      const std::int64_t most = *std::max_element(i.chunk_rows.begin(), i.chunk_rows.end());
      const std::size_t input = static_cast<std::size_t>(most * p.x.row_numel()) * size_of(i.desc.compute);
      s->output_offset = s->slice_offset + (input + 63) / 64 * 64;
      need = s->output_offset + static_cast<std::size_t>(most * p.y.row_numel()) * size_of(i.desc.compute);
    }
    reserve(need);
    return s;
  }
  void reserve(std::size_t bytes) {
    for (auto& room : scratch_)
      if (room.bytes() < bytes) room = Buffer(host_, bytes);
  }

  [[nodiscard]] std::byte* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].at(0); }

  void execute(Call& c, const std::array<void*, 3>& data, std::int64_t rows) {
    auto& state = *static_cast<State*>(c.state);
    state.by_rows.find(rows)->second->run(c.worker, data, scratch(c.worker));
  }

  [[nodiscard]] int threads() const { return b_.threads(); }
  [[nodiscard]] cpu::Isa isa() const noexcept { return b_.isa(); }

  CpuOps& b_;
  dnnl::engine engine_;
  onednn::Convolutions convolutions_;
  HostMemory host_;
  std::vector<Buffer> scratch_;  // per worker: oneDNN's scratchpad, then one weight gradient
};

TUTTI_CORE_FUNCTION Onednn::Onednn(CpuOptions o)
    : CpuOps(o, &onednn::OneOmpThread::for_this_thread), kernels_(std::make_unique<Kernels>(*this)) {}

TUTTI_CORE_FUNCTION Onednn::~Onednn() = default;

TUTTI_CORE_FUNCTION std::string Onednn::description() const {
  return "oneDNN " + onednn::version() + ", own kernels " + std::string(cpu::name_of(isa()));
}

TUTTI_CORE_FUNCTION void Onednn::parallel(int tasks, FunctionRef<void(int, int)> f) {
  const onednn::OneOmpThread guard;
  CpuOps::parallel(tasks, f);
}

TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> Onednn::kernel(const Op& op, const NodeDesc& desc) {
  if (auto k = kernel_among<op::Conv2d, op::Conv2dBackwardData, op::Conv2dBackwardWeights, op::Linear,
                            op::LinearBackwardData>(*kernels_, op, desc))
    return k;
  return CpuOps::kernel(op, desc);
}

}  // namespace tutti
