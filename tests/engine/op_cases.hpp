// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/graph/builder.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/activations.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/nn/losses.hpp>
#include <tutti/nn/pooling.hpp>

// The table of op cases: the conformance tests compare every backend with the reference on these cases, and the
// benchmarks time their ops.
namespace tutti::testing {

struct ConvCase {
  std::string name;
  std::int64_t rows = 1;  // number of images in the tests
  std::int64_t channels = 0, height = 0, width = 0, out = 0;
  op::Window window;
  std::int64_t batch = 1;  // number of images in the benchmarks
  int groups = 1;

  // Returns the multiplications and additions of one pass over `n` rows.
  [[nodiscard]] double flops(std::int64_t n) const {
    return 2.0 * static_cast<double>(n * out * window.out_h(height) * window.out_w(width) * channels / groups) *
           window.kernel_h * window.kernel_w;
  }
};

// Returns the case of a square image and kernel with "same" padding.
inline ConvCase square_conv(std::string name, std::int64_t rows, std::int64_t channels, std::int64_t size,
                            std::int64_t out, int kernel, int stride) {
  return {std::move(name), rows, channels, size, size, out, {kernel, kernel, stride, (kernel - 1) / 2}};
}

// A ResNet and its batch size in the benchmarks. The tests use few rows, but enough for shards and chunks of several
// sizes: `rows` for layers with a height of at least 16 and fewer than 256 output channels, `few` for all other layers.
struct ResnetCase {
  std::string name;
  std::int64_t batch, rows, few;
  Graph graph;
};

// Returns four nets: ResNet-20 for CIFAR (its layers have the shapes of every depth 6n+2), the pre-activation form of
// depth 50 on 28 pixels, ResNet-18 with the CIFAR stem, and ResNet-50 on 224 pixels.
inline std::vector<ResnetCase> resnet_cases() {
  const auto net = [](std::int64_t size, const auto& record) {
    Builder b(3, size, size);
    record(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}));
    return std::move(b).take();
  };
  return {{"resnet20", 128, 19, 19, net(32, [](auto& b, ValueId x) { models::resnet_cifar(b, x, {.depth = 20}); })},
          {"preact50", 128, 11, 11,
           net(28, [](auto& b, ValueId x) { models::resnet_cifar(b, x, {.depth = 50, .preactivation = true}); })},
          {"resnet18", 64, 10, 5,
           net(32, [](auto& b, ValueId x) { models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true}); })},
          {"resnet50", 8, 2, 2, net(224, [](auto& b, ValueId x) { models::resnet(b, x, {.depth = 50}); })}};
}

// Returns a case for each different convolution of a net. Example of a name: "resnet20/32x32x16->16/k3s1".
inline std::vector<ConvCase> convolutions_of(const ResnetCase& net) {
  std::vector<ConvCase> cases;
  for (const Node& n : net.graph.nodes) {
    const auto* o = std::get_if<op::Conv2d>(&n.op);
    if (o == nullptr) continue;
    const Shape &x = net.graph[n.inputs[0]].shape, &w = net.graph[n.inputs[1]].shape;
    ConvCase c{net.name + "/" + std::to_string(x[2]) + "x" + std::to_string(x[3]) + "x" + std::to_string(x[1]) + "->" +
                   std::to_string(w[0]) + "/k" + std::to_string(o->kernel_h) + "s" + std::to_string(o->stride),
               x[2] >= 16 && w[0] < 256 ? net.rows : net.few,
               x[1],
               x[2],
               x[3],
               w[0],
               *o,
               net.batch};
    if (std::none_of(cases.begin(), cases.end(), [&](const ConvCase& k) { return k.name == c.name; }))
      cases.push_back(std::move(c));
  }
  return cases;
}

inline std::vector<ConvCase> resnet_conv_cases() {
  std::vector<ConvCase> cases;
  for (const ResnetCase& net : resnet_cases())
    for (ConvCase& c : convolutions_of(net)) cases.push_back(std::move(c));
  return cases;
}

// Returns small convolutions with unusual sizes: channels that do not fill a vector, kernels larger than half the
// image, strides that do not divide the image, padding beyond "same", oblong images, row counts that give unequal
// shards, and shards with chunks of several sizes.
inline std::vector<ConvCase> odd_conv_cases() {
  std::vector<ConvCase> c;
  for (std::int64_t in : {1, 3, 4, 5, 16, 17, 32, 64})
    for (int kernel : {1, 3})
      c.push_back(square_conv("in " + std::to_string(in) + " kernel " + std::to_string(kernel), 3, in, 7,
                              in == 16 ? 5 : 16, kernel, 1));
  for (std::int64_t out : {1, 3, 4, 5, 17, 32, 64})
    c.push_back(square_conv("out " + std::to_string(out), 2, 8, 6, out, 3, 2));
  for (int kernel : {5, 7})
    for (int stride : {1, 2})
      c.push_back(square_conv("kernel " + std::to_string(kernel) + " stride " + std::to_string(stride), 2, 4, 9, 6,
                              kernel, stride));
  c.push_back({"oblong", 9, 5, 4, 13, 7, {3, 3, 1, 1}});
  c.push_back({"oblong kernel", 9, 4, 8, 6, 7, {1, 3, 1, 0}});
  c.push_back({"stride that leaves a rest", 3, 3, 10, 8, 4, {3, 3, 3, 0}});
  c.push_back({"1x1 with stride 3", 3, 16, 8, 8, 16, {1, 1, 3, 0}});
  c.push_back({"no padding", 4, 16, 8, 8, 16, {3, 3, 1, 0}});
  c.push_back({"wide padding", 2, 16, 5, 5, 16, {3, 3, 1, 2}});
  c.push_back({"kernel as large as the image", 2, 3, 5, 5, 4, {5, 5, 1, 0}});
  c.push_back(square_conv("one pixel", 5, 8, 1, 8, 1, 1));
  c.push_back(square_conv("products on few pixels", 3, 144, 4, 160, 1, 1));
  c.push_back(square_conv("chunks of unequal rows", 21, 16, 32, 16, 1, 1));
  c.push_back(square_conv("one row", 1, 16, 9, 16, 3, 1));
  return c;
}

// Returns convolutions in groups: depthwise ones and others, with one output or several for each channel, groups that
// fill a part of a register, a whole register or several, channels that fill no register.
inline std::vector<ConvCase> grouped_conv_cases() {
  std::vector<ConvCase> cases;
  const auto add = [&](std::int64_t rows, std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t out,
                       int groups, const op::Window& window) {
    ConvCase c{"groups", rows, channels, h, w, out, window};
    c.groups = groups;
    c.name = std::to_string(groups) + " groups, " + std::to_string(channels) + "->" + std::to_string(out) + ", k" +
             std::to_string(window.kernel_h) + "s" + std::to_string(window.stride) + "p" +
             std::to_string(window.padding) + " on " + std::to_string(h) + "x" + std::to_string(w);
    cases.push_back(std::move(c));
  };
  for (std::int64_t channels : {2, 5, 16, 24, 33})
    for (int kernel : {1, 3, 5})
      for (int stride : {1, 2})
        add(3, channels, 9, 8, channels, static_cast<int>(channels), {kernel, kernel, stride, kernel / 2});
  add(2, 20, 15, 9, 20, 20, {7, 7, 1, 3});
  add(2, 16, 5, 13, 16, 16, {3, 1, 1, 0});
  add(2, 16, 7, 7, 16, 16, {3, 3, 1, 0});
  add(2, 16, 7, 7, 16, 16, {3, 3, 1, 3});  // padding beyond the window of the gradient
  add(2, 16, 11, 11, 16, 16, {2, 2, 3, 0});
  add(2, 16, 2, 3, 16, 16, {3, 3, 1, 1});
  add(19, 32, 16, 16, 32, 32, {3, 3, 1, 1});
  add(1, 16, 1, 1, 16, 16, {1, 1, 1, 0});
  add(2, 6, 6, 5, 18, 6, {3, 3, 1, 1});  // three outputs for each channel
  add(2, 18, 6, 5, 6, 6, {3, 3, 2, 1});
  for (std::int64_t each : {2, 4, 8, 12, 16, 32})
    for (int stride : {1, 2}) add(2, 3 * each, 7, 9, 3 * each, 3, {3, 3, stride, 1});
  add(2, 32, 8, 8, 64, 2, {1, 1, 1, 0});
  add(2, 64, 8, 8, 32, 4, {3, 3, 2, 1});
  add(9, 128, 8, 8, 128, 32, {3, 3, 1, 1});
  // Lines that are computed in blocks of 14, 7 and 4 pixels.
  add(1, 16, 8, 25, 16, 16, {7, 7, 1, 3});
  for (int groups : {4, 8, 16}) add(2, 32, 5, 25, 32, groups, {3, 3, 1, 1});
  add(2, 32, 9, 43, 32, 4, {3, 3, 2, 1});
  for (int groups : {8, 32, 256}) add(1, 256, 4, 5, 256, groups, {3, 3, 1, 1});  // a kilobyte from pixel to pixel
  return cases;
}

// One op (or a few ops) under test in a small net: images -> normalize -> bias -> op under test -> batch norm -> pool
// -> linear -> loss. The gradient that the op receives differs from element to element, and the op must compute the
// gradient of its input.
struct OpCase {
  std::string name;
  std::int64_t rows = 1, channels = 1, height = 1, width = 1;
  std::function<ValueId(Builder&, ValueId)> record;  // adds the ops; its input needs a gradient
  int classes = 10;
  float label_smoothing = 0;
  bool input_gradient = true;  // false: no bias before the op, which then reads the images like a stem
  std::function<void(Builder&, ValueId)> loss{};  // ends the net; empty: softmax cross entropy

  [[nodiscard]] Graph graph() const {
    Builder b(channels, height, width);
    std::vector<float> mean, inv_std;
    for (std::int64_t c = 0; c < channels; ++c) {
      mean.push_back(120.0F + static_cast<float>(c % 16));
      inv_std.push_back(1.0F / (60.0F + static_cast<float>(c % 7)));
    }
    ValueId x = b.normalize(std::move(mean), std::move(inv_std));
    if (input_gradient)
      x = b.bias("before", x, b.parameter("before.bias", Shape{channels}, {Init::normal, 0.2}, false));
    x = nn::batch_norm(b, "after", record(b, x), {.relu = true});
    const ValueId logits = nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 1});
    if (loss)
      loss(b, logits);
    else
      b.softmax_cross_entropy(logits, label_smoothing);
    return std::move(b).take();
  }
};

inline OpCase op_case(const ConvCase& c) {
  return {"conv " + c.name, c.rows, c.channels, c.height, c.width, [c](Builder& b, ValueId x) {
            const auto& k = c.window;
            return b.conv2d("conv", x,
                            b.parameter("conv.weight", Shape{c.out, c.channels / c.groups, k.kernel_h, k.kernel_w},
                                        {Init::he_normal, 1}),
                            k, c.groups);
          }};
}

inline ValueId second_path(Builder& b, ValueId x, const std::string& name = "other") {
  return b.bias(name, x, b.parameter(name + ".bias", Shape{b.shape(x)[1]}, {Init::normal, 1}, false));
}

// A batch norm "bn" with the ops that are fused into it. One op or two ops read its result.
struct NormCase {
  std::string name;
  std::int64_t rows = 1, channels = 1, height = 1, width = 1;
  bool relu = false, residual = false, twice = false;
};

inline OpCase op_case(const NormCase& c) {
  return {"batch norm " + c.name, c.rows, c.channels, c.height, c.width, [c](Builder& b, ValueId x) {
            const ValueId y = nn::batch_norm(
                b, "bn", x, {.relu = c.relu, .residual = c.residual ? second_path(b, x) : no_value, .momentum = 0.3F});
            return c.twice ? b.add("sum", second_path(b, y, "another"), b.relu("r", y)) : y;
          }};
}

// Returns a case for each different batch norm of a net. Example of a name: "resnet20/32x32x16/add+relu".
inline std::vector<NormCase> batch_norms_of(const ResnetCase& net) {
  std::vector<NormCase> cases;
  for (const Node& n : net.graph.nodes) {
    const auto* o = std::get_if<op::BatchNorm>(&n.op);
    if (o == nullptr) continue;
    const Shape& x = net.graph[n.inputs[0]].shape;
    const char* fused = o->relu ? o->residual ? "/add+relu" : "/relu" : o->residual ? "/add" : "/plain";
    NormCase c{net.name + "/" + std::to_string(x[2]) + "x" + std::to_string(x[3]) + "x" + std::to_string(x[1]) + fused,
               net.batch,
               x[1],
               x[2],
               x[3],
               o->relu,
               o->residual};
    if (std::none_of(cases.begin(), cases.end(), [&](const NormCase& k) { return k.name == c.name; }))
      cases.push_back(std::move(c));
  }
  return cases;
}

// Returns the fully connected layer "fc", [rows, in] to [rows, out].
inline OpCase linear_case(const std::string& name, std::int64_t rows, std::int64_t in, int out) {
  return {name, rows, in, 1, 1, [](Builder&, ValueId x) { return x; }, out};
}

// Returns layers of constant depthwise convolutions.
inline std::vector<OpCase> blur_cases() {
  return {{"blur", 3, 17, 9, 8, [](Builder& b, ValueId x) { return nn::blur(b, "blur", x, 2); }},
          {"convolution of a blur", 3, 16, 9, 8,
           [](Builder& b, ValueId x) { return nn::conv(b, "c", x, {.out = 5, .stride = 2, .blur = true}); }}};
}

// Returns activations and average pools in every width of channels.
inline std::vector<OpCase> layer_op_cases() {
  std::vector<OpCase> cases;
  for (std::int64_t channels : {1, 5, 16, 24, 64}) {
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t h, std::int64_t w, auto record) {
      cases.push_back({name + " of " + std::to_string(channels), rows, channels, h, w, record});
    };
    add("sigmoid", 3, 7, 5, [](Builder& b, ValueId x) { return nn::sigmoid(b, "s", x); });
    add("silu", 3, 7, 5, [](Builder& b, ValueId x) { return nn::silu(b, "s2", second_path(b, nn::silu(b, "s1", x))); });
    add("batch norm and silu", 3, 7, 5,
        [](Builder& b, ValueId x) { return nn::silu(b, "s", nn::batch_norm(b, "bn", x)); });
    add("hard-swish", 3, 7, 5, [](Builder& b, ValueId x) {
      // From about -7 to 7.
      return nn::hard_swish(b, "h", b.add("twice", b.add("sum", x, x), b.add("sum2", x, x)));
    });
    add("average pool 2/2", 9, 6, 7, [](Builder& b, ValueId x) { return nn::avg_pool(b, "a", x, {2, 2, 2, 0}); });
    add("average pool 2/2 of an odd size", 9, 7, 5, [](Builder& b, ValueId x) {
      return nn::avg_pool(b, "a", x, {2, 2, 2, 0}, false, true);
    });
    for (const bool count : {false, true})
      add(std::string("average pool 3/2 ") + (count ? "with" : "without") + " padding", 5, 9, 8,
          [count](Builder& b, ValueId x) {
            return nn::avg_pool(b, "a", x, {3, 3, 2, 1}, count);
          });
    add("average pool 3/1", 2, 5, 6, [](Builder& b, ValueId x) {
      return nn::avg_pool(b, "a", x, {3, 3, 1, 1}, false);
    });
  }
  return cases;
}

// Returns losses with two labels for a row, and of each class for itself. The CUDA backend has no kernels for them.
inline std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  for (const bool mixed : {false, true})
    for (const float smoothing : {0.0F, 0.1F})
      for (const int kind : {0, 1, 2, 3}) {
        if (kind == 0 && !mixed) continue;
        OpCase c{"loss " + std::to_string(kind) + (mixed ? " mixed" : "") + (smoothing > 0 ? " smoothed" : ""),
                 13,
                 8,
                 3,
                 3,
                 [](Builder&, ValueId x) { return x; },
                 6};
        c.loss = [=](Builder& b, ValueId logits) {
          if (mixed) b.mix_labels();
          if (kind == 0)
            b.softmax_cross_entropy(logits, smoothing);
          else
            nn::binary_cross_entropy(
                b, logits,
                {.label_smoothing = smoothing, .threshold = kind == 2 ? 0.2F : -1, .sum_classes = kind == 3});
        };
        cases.push_back(std::move(c));
      }
  return cases;
}

// Returns all cases except convolutions.
inline std::vector<OpCase> other_op_cases() {
  std::vector<OpCase> cases;
  // Batch norm: every combination of the flags, channel counts that are whole vectors and channel counts that are not,
  // and a result that one op or two ops read.
  int i = 0;
  for (std::int64_t channels : {1, 3, 16, 17, 32, 48, 64, 100, 256})
    for (bool relu : {false, true})
      for (bool residual : {false, true})
        for (bool twice : {false, true}) {
          if (channels > 64 && (relu != residual || twice)) continue;
          // This case is so large that each shard has several chunks.
          const bool large = channels == 64 && relu && residual && twice;
          const std::int64_t size = large ? 32 : 5 + i % 4, rows = large ? 19 : 2 + i % 17;
          ++i;
          cases.push_back(op_case(NormCase{std::to_string(channels) + (relu ? " relu" : "") +
                                               (residual ? " residual" : "") + (twice ? " read twice" : ""),
                                           rows, channels, size, size + 1, relu, residual, twice}));
        }
  // With this many channels, several tasks add the sums of the channels.
  cases.push_back(op_case(NormCase{"2048 relu residual", 9, 2048, 2, 3, true, true, false}));
  cases.push_back({"batch norm, fixed gamma", 4, 16, 5, 5, [](Builder& b, ValueId x) {
                     return nn::batch_norm(b, "bn", x, {.relu = true, .eps = 2e-5F, .fixed_gamma = true});
                   }});
  cases.push_back({"batch norm of one value a channel", 2, 16, 1, 1,
                   [](Builder& b, ValueId x) { return nn::batch_norm(b, "bn", x); }});
  for (std::int64_t channels : {1, 5, 16, 24, 64}) {
    const std::string of = " of " + std::to_string(channels);
    cases.push_back({"max pool 3/2" + of, 5, channels, 9, 8, [](Builder& b, ValueId x) {
                       return b.max_pool("pool1", x, {3, 3, 2, 1});
                     }});
    cases.push_back({"max pool 2/2" + of, 9, channels, 6, 7, [](Builder& b, ValueId x) {
                       return b.max_pool("pool1", x, {2, 2, 2, 0});
                     }});
    cases.push_back({"gelu" + of, 3, channels, 7, 5,
                     [](Builder& b, ValueId x) { return b.gelu("g2", second_path(b, b.gelu("g1", x), "between")); }});
    cases.push_back({"batch norm and gelu" + of, 3, channels, 7, 5,
                     [](Builder& b, ValueId x) { return b.gelu("g", nn::batch_norm(b, "bn", x)); }});
    cases.push_back({"relu and add" + of, 3, channels, 7, 5,
                     [](Builder& b, ValueId x) { return b.add("sum", b.relu("r", x), second_path(b, x)); }});
  }
  cases.push_back({"max pool 3/1", 2, 17, 5, 5, [](Builder& b, ValueId x) {
                     return b.max_pool("pool1", x, {3, 3, 1, 1});
                   }});
  cases.push_back({"sum with itself", 3, 7, 3, 3, [](Builder& b, ValueId x) { return b.add("sum", x, x); }});
  cases.push_back({"values read three times", 3, 16, 4, 4, [](Builder& b, ValueId x) {
                     const ValueId y = b.relu("r", x);
                     return b.add("s2", b.add("s1", y, second_path(b, y)), b.relu("r2", y));
                   }});
  const auto same = [](Builder&, ValueId x) { return x; };
  // Every case contains normalize, pool, linear and the loss. These cases test the four ops with more sizes.
  for (std::int64_t channels : {2, 4, 6, 33})
    cases.push_back({"images of " + std::to_string(channels), 7, channels, 5, 11, same});
  for (int classes : {1, 2, 5, 16, 17, 100, 1000})
    cases.push_back({"classes " + std::to_string(classes), 13, 48, 2, 2, same, classes});
  cases.push_back(linear_case("linear of 2048", 4, 2048, 1000));
  cases.push_back({"label smoothing", 6, 8, 3, 3, same, 10, 0.1F});
  cases.push_back({"label smoothing, two classes", 6, 8, 3, 3, same, 2, 0.5F});
  cases.push_back({"many rows", 300, 4, 2, 2, same, 10});
  for (OpCase& c : layer_op_cases()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace tutti::testing
