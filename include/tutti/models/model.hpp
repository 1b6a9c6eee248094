// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti {

struct LayerOptions {    // options of a layer of Model, with a square kernel
  std::int64_t out = 0;  // channels
  int kernel = 3;
  int stride = 1;
  bool relu = true;    // whether the layer ends with relu
  std::string name{};  // name of its tensors; empty: a word and the layer's number, such as "conv2" and "bn2"
  Initializer init = Init::he_normal;
};

struct ClassifierOptions {  // options of Model::classifier()
  std::string name = "fc";
  Initializer init = Init::xavier_normal;
  float label_smoothing = 0;
  int top_k = 5;
};

// A net for images of a data set: it takes extents, normalisation and the number of classes from the schema, and gives
// each layer a name. It is also a Builder, so functions of nn and models, and your own ops, can use its values.
//   Model net(images.schema());
//   auto x = net.conv_bn(net.images(), {.out = 16});
//   net.classifier(net.residual(x, {.out = 32, .stride = 2}));
class Model : public Builder {
 public:
  // Throws UsageError if the schema is not valid.
  TUTTI_CORE_FUNCTION explicit Model(const Schema& images);

  // Returns the images, normalised with mean and deviation of the schema: [N, channels, height, width].
  [[nodiscard]] ValueId images() const noexcept { return normalised_; }
  [[nodiscard]] int classes() const noexcept { return classes_; }

  // Adds a convolution with a bias: "convN".
  TUTTI_CORE_FUNCTION ValueId conv(ValueId x, const LayerOptions& o);
  // Adds a convolution, batch norm and relu: "convN" and "bnN".
  TUTTI_CORE_FUNCTION ValueId conv_bn(ValueId x, const LayerOptions& o);
  // Adds a basic block of He et al. 2015: two convolutions, of which the first one has the stride. The input is added
  // before the last relu. If the shape changes, a 1x1 convolution converts the input. Names: "layerN.conv1",
  // "layerN.bn1" and so on.
  TUTTI_CORE_FUNCTION ValueId residual(ValueId x, const LayerOptions& o);
  // Adds batch norm and relu: "bnN".
  TUTTI_CORE_FUNCTION ValueId batch_norm(ValueId x, bool relu = true);
  // Adds a fully connected layer for [N, C] or [N, C, 1, 1]: "linearN".
  TUTTI_CORE_FUNCTION ValueId linear(ValueId x, const LayerOptions& o);
  TUTTI_CORE_FUNCTION ValueId relu(ValueId x);
  TUTTI_CORE_FUNCTION ValueId gelu(ValueId x);
  TUTTI_CORE_FUNCTION ValueId add(ValueId a, ValueId b);
  TUTTI_CORE_FUNCTION ValueId max_pool(ValueId x, int kernel = 2, int stride = 2);
  TUTTI_CORE_FUNCTION ValueId global_avg_pool(ValueId x);

  // Ends the net: adds global average pooling unless x is [N, C] already, a fully connected layer with the classes of
  // the data set, softmax and cross entropy. Returns the logits.
  TUTTI_CORE_FUNCTION ValueId classifier(ValueId x, const ClassifierOptions& o = {});

  using Builder::add;
  using Builder::batch_norm;
  using Builder::gelu;
  using Builder::global_avg_pool;
  using Builder::linear;
  using Builder::max_pool;
  using Builder::relu;

 private:
  // Returns the name in the options or, if it is empty, `word` with the layer's number.
  std::string name_of(const char* word, const std::string& given, int& count);

  ValueId normalised_ = no_value;
  int classes_ = 0;
  int convs_ = 0, norms_ = 0, blocks_ = 0, linears_ = 0, relus_ = 0, gelus_ = 0, adds_ = 0, pools_ = 0;
};

#if TUTTI_CORE_DEFINITIONS

TUTTI_CORE_FUNCTION Model::Model(const Schema& images) : Builder(images.channels, images.height, images.width) {
  images.check();
  classes_ = images.classes;
  std::vector<float> inverse;
  for (const float s : images.stddev) inverse.push_back(1 / s);
  normalised_ = normalize(images.mean, std::move(inverse));
}

TUTTI_CORE_FUNCTION std::string Model::name_of(const char* word, const std::string& given, int& count) {
  ++count;
  return given.empty() ? word + std::to_string(count) : given;
}

TUTTI_CORE_FUNCTION ValueId Model::conv(ValueId x, const LayerOptions& o) {
  const std::string name = name_of("conv", o.name, convs_);
  const ValueId y =
      nn::conv(*this, name, x, {.out = o.out, .kernel = o.kernel, .stride = o.stride, .bias = true, .init = o.init});
  return o.relu ? Builder::relu(name + ".relu", y) : y;
}
TUTTI_CORE_FUNCTION ValueId Model::conv_bn(ValueId x, const LayerOptions& o) {
  const std::string conv = name_of("conv", o.name, convs_);
  const std::string norm = name_of("bn", o.name.empty() ? "" : o.name + ".bn", norms_);
  return nn::conv_bn(*this, conv, norm, x, {.out = o.out, .kernel = o.kernel, .stride = o.stride, .init = o.init},
                     {.relu = o.relu});
}
TUTTI_CORE_FUNCTION ValueId Model::residual(ValueId x, const LayerOptions& o) {
  const std::string name = name_of("layer", o.name, blocks_);
  const auto conv = [&](int kernel, int stride) {
    return nn::ConvOptions{.out = o.out, .kernel = kernel, .stride = stride, .init = o.init};
  };
  if (shape(x).rank() != 4) fail<ShapeError>(name, "an input [N,C,H,W]", to_string(shape(x)));
  ValueId shortcut = x;
  if (o.stride != 1 || shape(x)[1] != o.out)
    shortcut = nn::conv_bn(*this, name + ".downsample.0", name + ".downsample.1", x, conv(1, o.stride), {});
  const ValueId y = nn::conv_bn(*this, name + ".conv1", name + ".bn1", x, conv(o.kernel, o.stride), {.relu = true});
  return nn::conv_bn(*this, name + ".conv2", name + ".bn2", y, conv(o.kernel, 1),
                     {.relu = o.relu, .residual = shortcut});
}
TUTTI_CORE_FUNCTION ValueId Model::batch_norm(ValueId x, bool relu) {
  return nn::batch_norm(*this, name_of("bn", {}, norms_), x, {.relu = relu});
}
TUTTI_CORE_FUNCTION ValueId Model::linear(ValueId x, const LayerOptions& o) {
  const std::string name = name_of("linear", o.name, linears_);
  const ValueId y = nn::linear(*this, name, x, o.out, o.init);
  return o.relu ? Builder::relu(name + ".relu", y) : y;
}
TUTTI_CORE_FUNCTION ValueId Model::relu(ValueId x) { return Builder::relu(name_of("relu", {}, relus_), x); }
TUTTI_CORE_FUNCTION ValueId Model::gelu(ValueId x) { return Builder::gelu(name_of("gelu", {}, gelus_), x); }
TUTTI_CORE_FUNCTION ValueId Model::add(ValueId a, ValueId b) { return Builder::add(name_of("add", {}, adds_), a, b); }
TUTTI_CORE_FUNCTION ValueId Model::max_pool(ValueId x, int kernel, int stride) {
  return Builder::max_pool(name_of("pool", {}, pools_), x, {kernel, kernel, stride, (kernel - 1) / 2});
}
TUTTI_CORE_FUNCTION ValueId Model::global_avg_pool(ValueId x) {
  return Builder::global_avg_pool(name_of("pool", {}, pools_), x);
}
TUTTI_CORE_FUNCTION ValueId Model::classifier(ValueId x, const ClassifierOptions& o) {
  if (shape(x).rank() == 4) x = global_avg_pool(x);
  const ValueId logits = nn::linear(*this, o.name, x, classes_, o.init);
  softmax_cross_entropy(logits, o.label_smoothing, o.top_k);
  return logits;
}

#endif

}  // namespace tutti
