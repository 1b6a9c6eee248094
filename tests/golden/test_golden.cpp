// SPDX-License-Identifier: MIT
// Compares ops and a net with PyTorch's numbers. README.md describes the files.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/pooling.hpp>

#include "engine/built_backends.hpp"
#include "resnet8.hpp"

using namespace tutti;
using namespace tutti::golden;

namespace {

// Runs one op in f64 on given operands.
class OpRun {
 public:
  explicit OpRun(const Golden& g) : g_(g) {}

  OpRun& in(const std::string& name, bool activation = true) {
    return put(activation ? g_.nhwc(name) : g_.plain(name), g_.shape(name));
  }
  OpRun& put(Doubles data, const Shape& shape, DType t = DType::f64) {
    data_.push_back(std::move(data));
    call_.in[static_cast<std::size_t>(call_.inputs++)] = {data_.back().data(), t, shape};
    return *this;
  }
  OpRun& which(const std::vector<std::uint8_t>& bytes, const Shape& shape) {
    call_.in[static_cast<std::size_t>(call_.inputs++)] = {const_cast<std::uint8_t*>(bytes.data()), DType::u8, shape};
    return *this;
  }
  OpRun& labels(const std::string& name) {
    const Doubles d = g_.plain(name);
    labels_.assign(d.begin(), d.end());
    call_.in[static_cast<std::size_t>(call_.inputs++)] = {labels_.data(), DType::i32, g_.shape(name)};
    return *this;
  }
  OpRun& out(const Shape& shape) {
    data_.emplace_back(static_cast<std::size_t>(shape.numel()), 0.0);
    outputs_.push_back(data_.size() - 1);
    call_.out[static_cast<std::size_t>(call_.outputs++)] = {data_.back().data(), DType::f64, shape};
    return *this;
  }
  OpRun& out_like(const std::string& name) { return out(g_.shape(name)); }
  OpRun& out_bytes(std::vector<std::uint8_t>& bytes, const Shape& shape) {
    bytes.assign(static_cast<std::size_t>(shape.numel()), 0);
    call_.out[static_cast<std::size_t>(call_.outputs++)] = {bytes.data(), DType::u8, shape};
    return *this;
  }
  template <class O>
  OpRun& run(const O& o, double inv_batch = 1) {
    scalars_.inv_global_batch = inv_batch;
    call_.scalars = &scalars_;
    call_.count_rows = call_.in[0].shape[0];
    ReferenceBackend().kernel(o, {})->run(call_);
    return *this;
  }
  void check(std::size_t k, const std::string& name, bool activation = true) {
    compare(name, data_[outputs_[k]], activation ? g_.nhwc(name) : g_.plain(name), 1e-6);
  }
  [[nodiscard]] const Doubles& input(std::size_t k) const { return data_[k]; }
  [[nodiscard]] const Doubles& output(std::size_t k) const { return data_[outputs_[k]]; }

 private:
  const Golden& g_;
  std::vector<Doubles> data_;
  std::vector<std::size_t> outputs_;
  std::vector<std::int32_t> labels_;
  StepScalars scalars_;
  Call call_;
};

}  // namespace

TEST_CASE("ops: convolutions") {
  const Golden g("ops.safetensors");
  for (const auto& [name, window] : std::vector<std::pair<std::string, op::Window>>{{"conv1x1", {1, 1, 1, 0}},
                                                                                    {"conv1x1_s2", {1, 1, 2, 0}},
                                                                                    {"conv3x3", {3, 3, 1, 1}},
                                                                                    {"conv3x3_s2", {3, 3, 2, 1}},
                                                                                    {"conv7x7_s2", {7, 7, 2, 3}}}) {
    const std::string x = name + ".x", w = name + ".w", y = name + ".y", dy = name + ".dy";
    OpRun(g).in(x).in(w, false).out_like(y).run(op::Conv2d{window}).check(0, y);
    OpRun(g).in(dy).in(w, false).out_like(x).run(op::Conv2dBackwardData{window}).check(0, name + ".dx");
    OpRun(g).in(x).in(dy).out_like(w).run(op::Conv2dBackwardWeights{window}).check(0, name + ".dw", false);
  }
}

TEST_CASE("ops: pooling and linear") {
  const Golden g("ops.safetensors");
  for (const std::string name : {"max_pool", "max_pool_negative"}) {
    const op::Window window{3, 3, 2, 1};
    std::vector<std::uint8_t> which;
    const Shape ys = g.shape(name + ".y");
    OpRun(g).in(name + ".x").out(ys).out_bytes(which, ys).run(op::MaxPool{window}).check(0, name + ".y");
    OpRun(g)
        .in(name + ".dy")
        .which(which, ys)
        .out_like(name + ".x")
        .run(op::MaxPoolBackward{window})
        .check(0, name + ".dx");
  }
  OpRun(g).in("global_avg_pool.x").out_like("global_avg_pool.y").run(op::GlobalAvgPool{}).check(0, "global_avg_pool.y");
  OpRun(g)
      .in("global_avg_pool.dy")
      .out_like("global_avg_pool.x")
      .run(op::GlobalAvgPoolBackward{})
      .check(0, "global_avg_pool.dx");
  OpRun(g).in("linear.x").in("linear.w").in("linear.b").out_like("linear.y").run(op::Linear{}).check(0, "linear.y");
  OpRun(g).in("linear.dy").in("linear.w").out_like("linear.x").run(op::LinearBackwardData{}).check(0, "linear.dx");
  OpRun weights(g);
  weights.in("linear.x").in("linear.dy").out_like("linear.w").out_like("linear.b").run(op::LinearBackwardWeights{});
  weights.check(0, "linear.dw");
  weights.check(1, "linear.db");
}

TEST_CASE("ops: batch norm") {
  const Golden g("ops.safetensors");
  for (const auto& [name, relu, residual] : std::vector<std::tuple<std::string, bool, bool>>{
           {"batch_norm", false, false}, {"batch_norm_relu", true, false}, {"batch_norm_add_relu", true, true}}) {
    const auto n = [&name = name](const char* what) { return name + what; };
    OpRun forward(g);
    forward.in(n(".x")).in(n(".gamma")).in(n(".beta")).in(n(".running_mean")).in(n(".running_var"));
    if (residual) forward.in(n(".residual"));
    forward.out_like(n(".y")).out_like(n(".mean")).out_like(n(".inv_std"));
    forward.run(op::BatchNorm{1e-5F, 0.1F, relu, residual});
    forward.check(0, n(".y"));
    forward.check(1, n(".mean"));
    forward.check(2, n(".inv_std"));
    compare(n(".new_running_mean"), forward.input(3), g.plain(n(".new_running_mean")), 1e-6);
    compare(n(".new_running_var"), forward.input(4), g.plain(n(".new_running_var")), 1e-6);
    OpRun backward(g);
    const Shape c = g.shape(n(".gamma"));
    backward.in(n(".dy")).in(n(".x")).in(n(".gamma")).in(n(".beta")).put(forward.output(1), c);
    backward.put(forward.output(2), c);
    if (residual) backward.put(forward.output(0), g.shape(n(".y")));
    backward.out_like(n(".x")).out(c).out(c);
    if (residual) backward.out_like(n(".residual"));
    backward.run(op::BatchNormBackward{relu, residual, false});
    backward.check(0, n(".dx"));
    backward.check(1, n(".dgamma"));
    backward.check(2, n(".dbeta"));
    if (residual) backward.check(3, n(".dresidual"));
    if (!g.has(n(".y_inference"))) continue;
    OpRun inference(g);
    inference.in(n(".x")).in(n(".gamma")).in(n(".beta")).in(n(".running_mean")).in(n(".running_var"));
    inference.out_like(n(".y")).run(op::BatchNormInference{1e-5F, relu, residual});
    inference.check(0, n(".y_inference"));
  }
}

TEST_CASE("layers: convolutions in groups") {
  const Golden g("layers.safetensors");
  for (const auto& [name, conv] :
       std::vector<std::pair<std::string, op::Conv2d>>{{"conv3x3_groups", {{3, 3, 1, 1}, 3}},
                                                       {"conv3x3_depthwise", {{3, 3, 1, 1}, 5}},
                                                       {"conv5x5_depthwise_s2", {{5, 5, 2, 2}, 4}}}) {
    const std::string x = name + ".x", w = name + ".w", y = name + ".y", dy = name + ".dy";
    OpRun(g).in(x).in(w, false).out_like(y).run(conv).check(0, y);
    OpRun(g).in(dy).in(w, false).out_like(x).run(op::Conv2dBackwardData{conv, conv.groups}).check(0, name + ".dx");
    OpRun(g).in(x).in(dy).out_like(w).run(op::Conv2dBackwardWeights{conv, conv.groups}).check(0, name + ".dw", false);
  }
  // A blur's weights are constants of its layer.
  Builder b(4, 7, 6);
  nn::blur(b, "blur", b.normalize({0, 0, 0, 0}, {1, 1, 1, 1}), 2);
  const Node& blur = b.graph().nodes.back();
  const std::vector<float>& weights = *b.graph()[blur.inputs[1]].init.given;
  OpRun(g)
      .in("blur.x")
      .put(Doubles(weights.begin(), weights.end()), Shape{4, 1, 3, 3})
      .out_like("blur.y")
      .run(std::get<op::Conv2d>(blur.op))
      .check(0, "blur.y");
}

TEST_CASE("layers: activations, average pool, factors, concatenation, layer norm and layer scale") {
  const Golden g("layers.safetensors");
  const auto both = [&](const std::string& name, const auto& forward, const auto& backward, const char* reads) {
    const std::string x = name + ".x", y = name + ".y";
    OpRun(g).in(x).out_like(y).run(forward).check(0, y);
    OpRun back(g);
    back.in(name + ".dy");
    if (*reads != 0) back.in(name + reads);
    back.out_like(x).run(backward).check(0, name + ".dx");
  };
  for (const auto kind : {op::ActivationKind::sigmoid, op::ActivationKind::silu, op::ActivationKind::hard_swish,
                          op::ActivationKind::relu6})
    both(std::string(op::name_of(kind, false)), op::Activation{kind}, op::ActivationBackward{kind},
         kind == op::ActivationKind::sigmoid ? ".y" : ".x");
  const op::Window window{3, 3, 2, 1};
  both("avg_pool", op::AvgPool{{window}}, op::AvgPoolBackward{{window}}, "");
  both("avg_pool_inside", op::AvgPool{{window, false}}, op::AvgPoolBackward{{window, false}}, "");
  const op::AvgWindow ceil{{2, 2, 2, 0}, false, true};
  both("avg_pool_ceil", op::AvgPool{ceil}, op::AvgPoolBackward{ceil}, "");

  OpRun(g).in("multiply.x").in("multiply.f").out_like("multiply.y").run(op::Multiply{}).check(0, "multiply.y");
  OpRun(g).in("multiply.dy").in("multiply.f").out_like("multiply.x").run(op::Multiply{}).check(0, "multiply.dx");
  OpRun(g)
      .in("multiply.dy")
      .in("multiply.x")
      .out_like("multiply.f")
      .run(op::MultiplyBackward{})
      .check(0, "multiply.df");

  OpRun(g).in("concat.a").in("concat.b").out_like("concat.y").run(op::Concat{}).check(0, "concat.y");
  OpRun(g).in("concat.dy").out_like("concat.a").run(op::ConcatBackward{0}).check(0, "concat.da");
  OpRun(g).in("concat.dy").out_like("concat.b").run(op::ConcatBackward{3}).check(0, "concat.db");

  OpRun norm(g);
  norm.in("layer_norm.x").in("layer_norm.gamma", false).in("layer_norm.beta", false).out_like("layer_norm.y");
  norm.run(op::LayerNorm{}).check(0, "layer_norm.y");
  OpRun back(g);
  back.in("layer_norm.dy").in("layer_norm.x").in("layer_norm.gamma", false);
  back.out_like("layer_norm.x").out_like("layer_norm.gamma").out_like("layer_norm.beta").run(op::LayerNormBackward{});
  back.check(0, "layer_norm.dx");
  back.check(1, "layer_norm.dgamma", false);
  back.check(2, "layer_norm.dbeta", false);

  OpRun(g)
      .in("layer_scale.x")
      .in("layer_scale.gamma", false)
      .out_like("layer_scale.y")
      .run(op::Multiply{})
      .check(0, "layer_scale.y");
  OpRun(g)
      .in("layer_scale.dy")
      .in("layer_scale.x")
      .out_like("layer_scale.gamma")
      .run(op::MultiplyBackward{})
      .check(0, "layer_scale.dgamma", false);
}

TEST_CASE("ops: softmax cross entropy") {
  const Golden g("ops.safetensors");
  for (const auto& [name, smoothing] :
       std::vector<std::pair<std::string, float>>{{"cross_entropy", 0.0F}, {"cross_entropy_smooth", 0.1F}}) {
    OpRun r(g);
    const double rows = static_cast<double>(g.shape(name + ".logits")[0]);
    r.in(name + ".logits").labels(name + ".labels").out(Shape{4}).out_like(name + ".logits");
    r.run(op::SoftmaxCrossEntropy{smoothing, 5, true}, 1 / rows);
    compare(name + ".loss", {r.output(0)[0] / rows}, g.plain(name + ".loss"), 1e-6);
    r.check(1, name + ".dlogits");
  }
}

TEST_CASE("optimizers: five steps") {
  const Golden g("optim.safetensors");
  const Doubles gradients = g.plain("gradients");
  const auto steps = [&](const std::string& name, const auto& update, double lr, double decay) {
    Doubles w = g.plain("w0"), expected = g.plain(name + ".w"), a(w.size()), b(w.size());
    UpdateCall u;
    u.dtype = DType::f64;
    u.slots = {a.data(), b.data()};
    u.count = w.size();
    u.weights = w.data();
    u.lr = lr;
    u.weight_decay = decay;
    Doubles history;
    for (std::size_t i = 0; i * w.size() < gradients.size(); ++i) {
      u.gradients = gradients.data() + i * w.size();
      u.step = static_cast<std::int64_t>(i) + 1;
      ReferenceBackend().update(update, u);
      history.insert(history.end(), w.begin(), w.end());
    }
    compare(name, history, expected, 1e-6);
  };
  const double lr = g.number("lr"), m = g.number("momentum"), decay = g.number("sgd_decay");
  steps("sgd", SgdUpdate{0, false}, lr, 0);
  steps("sgd_momentum", SgdUpdate{m, false}, lr, 0);
  steps("sgd_momentum_decay", SgdUpdate{m, false}, lr, decay);
  steps("sgd_nesterov", SgdUpdate{m, true}, lr, 0);
  steps("sgd_nesterov_decay", SgdUpdate{m, true}, lr, decay);
  steps("adamw", AdamwUpdate{}, g.number("adamw_lr"), g.number("adamw_decay"));
  steps("adamw_no_decay", AdamwUpdate{}, g.number("adamw_lr"), 0);
}

TEST_CASE("resnet8: reference, f64") {
  ReferenceBackend backend;
  check_resnet8(backend, DType::f64, in_f64);
}
TEST_CASE("resnet8: reference, f32 and bf16") {
  ReferenceBackend backend;
  check_resnet8(backend, DType::f32, in_f32);
  check_resnet8(backend, DType::bf16, in_16_bits);
}
TEST_CASE("resnet8: every CPU backend") {
  testing::on_processor_backends([](Backend& backend) {
    check_resnet8(backend, DType::f32, in_f32);
    if (backend.computes_in(DType::bf16)) check_resnet8(backend, DType::bf16, in_16_bits);
  });
}
// The library selects its kernels by the GPU and the shape. Some kernels lose a few bits of f32 for speed.
TEST_CASE("gpu: resnet8: cuda") {
  for (const bool deterministic : {false, true}) {
    BackendOptions o;
    o.tf32 = false;
    o.deterministic = deterministic;
    o.graph = false;
    o.fusion = "off";  // because the test compares the activations of each layer
    const auto backend = testing::gpu_backend(o);
    if (!backend) return;
    check_resnet8(*backend, DType::f32, {1e-4, 5e-4, 1e-4, 1e-3});
    check_resnet8(*backend, DType::bf16, in_16_bits);
    check_resnet8(*backend, DType::f16, in_16_bits);
  }
}
