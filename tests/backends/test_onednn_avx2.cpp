// SPDX-License-Identifier: MIT
// Tests the onednn backend without AVX-512. It is a separate program, because oneDNN detects the processor only once in
// a process.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tutti/backends/onednn/onednn.hpp>
#include <tutti/backends/onednn/shim.hpp>
#include <tutti/engine/inference.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/suite.hpp"

using namespace tutti;

namespace {
// Lets oneDNN use no more than AVX2. It takes one limit in a process.
bool limited_to_avx2() {
  static const bool limited = dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2) == dnnl_success;
  return limited;
}
}  // namespace

TEST_CASE("the convolutions of ResNet-18 give the expected results on AVX2") {
  REQUIRE(limited_to_avx2());
  const testing::IsaGuard guard("avx2");
  CHECK_FALSE(OnednnBackend::has_bf16());
  OnednnBackend backend({2, cpu::ConvolutionAlgorithm::direct});
  for (const testing::ConvCase& c : testing::convolutions_of(testing::resnet_cases()[2]))
    testing::check_case(backend, testing::op_case(c), DType::f32);
  const testing::OpCase small = testing::op_case(testing::square_conv("small", 2, 16, 5, 16, 3, 1));
  CHECK_THROWS_WITH_AS(testing::check_case(backend, small, DType::bf16), doctest::Contains("use --precision f32"),
                       DeviceError);
}

TEST_CASE("an image's result of a linear layer depends neither on the other images nor on its place on AVX2") {
  REQUIRE(limited_to_avx2());
  const testing::IsaGuard guard("avx2");
  OnednnBackend backend({2, cpu::ConvolutionAlgorithm::direct});
  for (const auto& [inputs, classes] : {std::pair{64, 10}, std::pair{33, 7}, std::pair{512, 200}}) {
    CAPTURE(inputs);
    Builder b(inputs, 1, 1);
    const auto channels = static_cast<std::size_t>(inputs);
    const ValueId x = b.normalize(std::vector<float>(channels, 128.0F), std::vector<float>(channels, 1 / 64.0F));
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 1}));
    WeightedGraph net{inference_graph(b.graph()), {}};
    Rng r(5, Purpose::init);
    for (const Value& v : net.graph.values) {
      std::vector<float>& to = net.values.emplace_back();
      if (v.storage != Storage::parameter) continue;
      to.resize(static_cast<std::size_t>(v.shape.numel()));
      for (float& f : to) f = 2 * r.uniform() - 1;
    }
    Inference inference(backend, net);
    std::vector<std::uint8_t> images(19 * channels);
    for (auto& pixel : images) pixel = static_cast<std::uint8_t>(r.next());
    std::vector<std::vector<float>> alone;
    for (std::size_t i = 0; i < 19; ++i) {
      const auto y = inference.logits(std::span(images).subspan(i * channels, channels));
      alone.emplace_back(y.begin(), y.end());
    }
    for (const std::size_t rows : {2, 3, 5, 8, 13, 19}) {
      CAPTURE(rows);
      const auto y = inference.logits(std::span(images).first(rows * channels));
      for (std::size_t i = 0; i < rows; ++i) {
        CAPTURE(i);
        CHECK(std::ranges::equal(y.subspan(i * alone[i].size(), alone[i].size()), alone[i]));
      }
    }
  }
}
