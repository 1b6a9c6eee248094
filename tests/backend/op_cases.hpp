// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tutti/graph/builder.hpp>
#include <tutti/nn/layers.hpp>

// The one table of op cases: the conformance tests compare every backend on it, the benchmarks time its convolutions.
namespace tutti::testing {

struct ConvCase {
  std::string name;
  std::int64_t rows = 1;  // of the tests; benchmarks take their own
  std::int64_t channels = 0, height = 0, width = 0, out = 0;
  op::Window window;

  // Multiplications and additions of one pass over `n` rows.
  [[nodiscard]] double flops(std::int64_t n) const {
    return 2.0 * static_cast<double>(n * out * window.out_h(height) * window.out_w(width) * channels) *
           window.kernel_h * window.kernel_w;
  }
};

// A square convolution with "same" padding.
inline ConvCase square_conv(std::string name, std::int64_t rows, std::int64_t channels, std::int64_t size,
                            std::int64_t out, int kernel, int stride) {
  return {std::move(name), rows, channels, size, size, out, {kernel, kernel, stride, (kernel - 1) / 2}};
}

// Every convolution of the CIFAR ResNets (6n+2), ResNet-18 with the CIFAR stem, and ResNet-50 at 224 pixels.
inline std::vector<ConvCase> resnet_conv_cases() {
  return {
      square_conv("cifar stem", 19, 3, 32, 16, 3, 1),
      square_conv("cifar stage 1", 19, 16, 32, 16, 3, 1),
      square_conv("cifar stage 2 entry", 19, 16, 32, 32, 3, 2),
      square_conv("cifar stage 2 projection", 19, 16, 32, 32, 1, 2),
      square_conv("cifar stage 2", 19, 32, 16, 32, 3, 1),
      square_conv("cifar stage 3 entry", 19, 32, 16, 64, 3, 2),
      square_conv("cifar stage 3 projection", 19, 32, 16, 64, 1, 2),
      square_conv("cifar stage 3", 19, 64, 8, 64, 3, 1),
      square_conv("28 pixels stage 1 projection", 11, 16, 28, 16, 1, 1),
      square_conv("28 pixels stage 3", 11, 64, 7, 64, 3, 1),
      square_conv("resnet18 stem", 10, 3, 32, 64, 3, 1),
      square_conv("resnet18 stage 1", 10, 64, 32, 64, 3, 1),
      square_conv("resnet18 stage 2 entry", 10, 64, 32, 128, 3, 2),
      square_conv("resnet18 stage 2 projection", 10, 64, 32, 128, 1, 2),
      square_conv("resnet18 stage 2", 10, 128, 16, 128, 3, 1),
      square_conv("resnet18 stage 3 entry", 5, 128, 16, 256, 3, 2),
      square_conv("resnet18 stage 3", 5, 256, 8, 256, 3, 1),
      square_conv("resnet18 stage 4 entry", 5, 256, 8, 512, 3, 2),
      square_conv("resnet18 stage 4", 5, 512, 4, 512, 3, 1),
      square_conv("imagenet stem", 2, 3, 224, 64, 7, 2),
      square_conv("resnet50 stage 1 reduce", 2, 256, 56, 64, 1, 1),
      square_conv("resnet50 stage 1", 2, 64, 56, 64, 3, 1),
      square_conv("resnet50 stage 1 expand", 2, 64, 56, 256, 1, 1),
      square_conv("resnet50 stage 2 projection", 2, 256, 56, 512, 1, 2),
      square_conv("resnet50 stage 2 entry", 2, 128, 56, 128, 3, 2),
      square_conv("resnet50 stage 3 expand", 2, 256, 14, 1024, 1, 1),
      square_conv("resnet50 stage 4", 2, 512, 7, 512, 3, 1),
      square_conv("resnet50 stage 4 reduce", 2, 2048, 7, 512, 1, 1),
  };
}

// Small ones with awkward numbers: channels that fill no vector, kernels larger than the image's half, strides that do
// not divide, padding beyond "same", oblong images, rows that make uneven lanes, chunks of several sizes in a lane.
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
  c.push_back(square_conv("chunks of unequal rows", 21, 16, 32, 16, 1, 1));
  c.push_back(square_conv("one row", 1, 16, 9, 16, 3, 1));
  return c;
}

// One op (or a few) under test in a small net: images -> normalize -> bias -> [it] -> batch norm -> pool -> linear ->
// loss, so that it gets gradients that differ everywhere and has to pass them on.
struct OpCase {
  std::string name;
  std::int64_t rows = 1, channels = 1, height = 1, width = 1;
  std::function<ValueId(Builder&, ValueId)> record;  // on an activation that wants its gradient
  int classes = 10;
  float label_smoothing = 0;

  [[nodiscard]] Graph graph() const {
    Builder b(channels, height, width);
    std::vector<float> mean, inv_std;
    for (std::int64_t c = 0; c < channels; ++c) {
      mean.push_back(120.0F + static_cast<float>(c % 16));
      inv_std.push_back(1.0F / (60.0F + static_cast<float>(c % 7)));
    }
    ValueId x = b.normalize(std::move(mean), std::move(inv_std));
    x = b.bias("before", x, b.parameter("before.bias", Shape{channels}, {Init::normal, 0.2}, false));
    x = nn::batch_norm(b, "after", record(b, x), {.relu = true});
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 1}),
                            label_smoothing);
    return std::move(b).take();
  }
};

inline OpCase op_case(const ConvCase& c) {
  return {"conv " + c.name, c.rows, c.channels, c.height, c.width, [c](Builder& b, ValueId x) {
            const auto& k = c.window;
            return b.conv2d(
                "conv", x,
                b.parameter("conv.weight", Shape{c.out, c.channels, k.kernel_h, k.kernel_w}, {Init::he_normal, 1}), k);
          }};
}

// Everything but convolutions.
inline std::vector<OpCase> other_op_cases() {
  std::vector<OpCase> cases;
  const auto second_path = [](Builder& b, ValueId x, const std::string& name = "other") {
    return b.bias(name, x, b.parameter(name + ".bias", Shape{b.shape(x)[1]}, {Init::normal, 1}, false));
  };
  // Batch norm: each flag, channels of whole vectors and not, one read of the result or two.
  int i = 0;
  for (std::int64_t channels : {1, 3, 16, 17, 32, 48, 64, 100, 256})
    for (bool relu : {false, true})
      for (bool residual : {false, true})
        for (bool twice : {false, true}) {
          if (channels > 64 && (relu != residual || twice)) continue;
          // One that needs several chunks a lane.
          const bool large = channels == 64 && relu && residual && twice;
          const std::int64_t size = large ? 32 : 5 + i % 4, rows = large ? 19 : 2 + i % 17;
          ++i;
          cases.push_back({"batch norm " + std::to_string(channels) + (relu ? " relu" : "") +
                               (residual ? " residual" : "") + (twice ? " read twice" : ""),
                           rows, channels, size, size + 1, [=](Builder& b, ValueId x) {
                             const ValueId y = nn::batch_norm(
                                 b, "bn", x,
                                 {.relu = relu, .residual = residual ? second_path(b, x) : no_value, .momentum = 0.3F});
                             return twice ? b.add("sum", second_path(b, y, "another"), b.relu("r", y)) : y;
                           }});
        }
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
    cases.push_back({"relu and add" + of, 3, channels, 7, 5,
                     [=](Builder& b, ValueId x) { return b.add("sum", b.relu("r", x), second_path(b, x)); }});
  }
  cases.push_back({"max pool 3/1", 2, 17, 5, 5, [](Builder& b, ValueId x) {
                     return b.max_pool("pool1", x, {3, 3, 1, 1});
                   }});
  cases.push_back({"sum with itself", 3, 7, 3, 3, [](Builder& b, ValueId x) { return b.add("sum", x, x); }});
  cases.push_back({"values read three times", 3, 16, 4, 4, [=](Builder& b, ValueId x) {
                     const ValueId y = b.relu("r", x);
                     return b.add("s2", b.add("s1", y, second_path(b, y)), b.relu("r2", y));
                   }});
  const auto same = [](Builder&, ValueId x) { return x; };
  // Normalize, pool, linear and the loss, which every case ends in, on other sizes.
  for (std::int64_t channels : {2, 4, 6, 33})
    cases.push_back({"images of " + std::to_string(channels), 7, channels, 5, 11, same});
  for (int classes : {1, 2, 5, 16, 17, 100, 1000})
    cases.push_back({"classes " + std::to_string(classes), 13, 48, 2, 2, same, classes});
  cases.push_back({"linear of 2048", 4, 2048, 1, 1, same, 1000});
  cases.push_back({"label smoothing", 6, 8, 3, 3, same, 10, 0.1F});
  cases.push_back({"label smoothing, two classes", 6, 8, 3, 3, same, 2, 0.5F});
  cases.push_back({"many rows", 300, 4, 2, 2, same, 10});
  return cases;
}

}  // namespace tutti::testing
