// SPDX-License-Identifier: MIT
// Tests gradients of convolution weights on an emulated GPU (cuda_emulator.hpp). One launch converts many gradients
// from the library's type and order to the graph's, before an op reads them.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

#include "backends/cuda_arrays.hpp"
#include "backends/emulated_cuda.hpp"
#include "engine/conformance.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
using testing::Numbers;
using Form = cuda::WeightGradients::Form;
CudaOptions options(bool graph = false) { return testing::emulated_options(graph); }
bool skipped() { return testing::no_emulator(); }

Form form(DType t, std::int64_t rows, int columns, int taps, int padded_columns) {
  return {rows, columns, taps, padded_columns, static_cast<std::size_t>(rows * taps * padded_columns) * size_of(t)};
}
// Returns the number of launches since the last call.
std::size_t launches(DType t) {
  const std::string type = t == DType::f32 ? "float" : std::string(name_of(t));
  return std::exchange(emulator::Device::instance().kernels["unpack_gradients<" + type + ">"], 0);
}

// Gradients in the library's form, and the buffers for the converted gradients.
struct Gradients {
  DType type;
  std::vector<Form> forms;
  std::vector<Numbers> made;
  std::vector<Buffer> to;

  Gradients(Emulated& backend, DType t, std::vector<Form> f) : type(t), forms(std::move(f)) {
    for (std::size_t i = 0; i < forms.size(); ++i) {
      made.push_back(testing::normal(t, forms[i].bytes / size_of(t), i));
      to.emplace_back(backend, values(i) * sizeof(float));
    }
  }
  [[nodiscard]] std::size_t values(std::size_t i) const {
    return static_cast<std::size_t>(forms[i].rows * forms[i].columns * forms[i].taps);
  }
  void make(Emulated& backend, cuda::WeightGradients& g) {
    for (std::size_t i = 0; i < forms.size(); ++i) {
      const auto bytes = testing::encode(type, made[i]);
      void* const place = g.place(type, forms[i], to[i].data());
      backend.copy_in(place, bytes.data(), bytes.size());
    }
  }
  // Returns how many converted values differ from the library's.
  [[nodiscard]] int wrong(Emulated& backend) const {
    int n = 0;
    for (std::size_t i = 0; i < forms.size(); ++i) {
      const Form& f = forms[i];
      Numbers got(values(i));
      backend.copy_out(got.data(), to[i].data(), got.size() * sizeof(float));
      for (std::int64_t k = 0, at = 0; k < f.rows; ++k)
        for (std::int64_t c = 0; c < f.columns; ++c)
          for (std::int64_t t = 0; t < f.taps; ++t, ++at)
            n += got[static_cast<std::size_t>(at)] !=
                 made[i][static_cast<std::size_t>((k * f.taps + t) * f.padded_columns + c)];
    }
    return n;
  }
};

Graph net() {
  Builder b(3, 8, 8);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  models::resnet_cifar(b, x, {.depth = 8, .width = 4});
  return std::move(b).take();
}

}  // namespace

TEST_CASE("one kernel launch converts many weight gradients, with the same bits as the library") {
  if (skipped()) return;
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name_of(t));
    Emulated backend(options());
    cuda::WeightGradients g(backend, backend.launcher());
    launches(t);
    // Numbers of taps that are constants in the kernel, and other numbers; padded channels; gradients that are smaller
    // and larger than the part of one block, and parts that end within a row.
    Gradients some(backend, t,
                   {form(t, 8, 8, 1, 8), form(t, 5, 3, 9, 4), form(t, 3, 3, 49, 8), form(t, 16, 300, 1, 304),
                    form(t, 33, 40, 9, 40), form(t, 2, 1500, 4, 1504), form(t, 1, 1, 1, 8)});
    for (const Form& f : some.forms) g.reserve(f.bytes);
    some.make(backend, g);
    CHECK(launches(t) == 0);
    g.finish();
    CHECK(launches(t) == 1);
    CHECK(some.wrong(backend) == 0);
    g.finish();
    CHECK(launches(t) == 0);
    // More gradients than one launch's argument can list.
    Gradients many(backend, t, std::vector<Form>(70, form(t, 4, 4, 9, 8)));
    for (const Form& f : many.forms) g.reserve(f.bytes);
    many.make(backend, g);
    g.finish();
    CHECK(launches(t) == 2);
    CHECK(many.wrong(backend) == 0);
  }
}

TEST_CASE("gradients are converted early if their buffer is full") {
  if (skipped()) return;
  const DType t = DType::bf16;
  Emulated backend(options());
  const Form f = form(t, 16, 16, 9, 16);  // 4,608 bytes
  cuda::WeightGradients g(backend, backend.launcher(), 10000);
  Gradients five(backend, t, std::vector<Form>(5, f));
  const std::size_t before = backend.allocated_bytes();
  for (const Form& each : five.forms) g.reserve(each.bytes);
  CHECK(backend.allocated_bytes() - before == 10000);
  launches(t);
  five.make(backend, g);
  g.finish();
  CHECK(launches(t) == 3);
  CHECK(five.wrong(backend) == 0);
  // A gradient that is larger than the buffer.
  const Form large = form(t, 64, 16, 9, 16);
  g.reserve(large.bytes);
  Gradients more(backend, t, {f, large, f});
  more.make(backend, g);
  g.finish();
  CHECK(launches(t) == 3);
  CHECK(more.wrong(backend) == 0);
}

TEST_CASE(
    "one launch converts the weight gradients of a step, captured or not; a listener that needs them earlier starts "
    "more launches") {
  if (skipped()) return;
  const Graph graph = net();
  const auto batch = testing::random_batch(graph, 4, 1);
  for (DType t : {DType::f32, DType::f16}) {
    CAPTURE(name_of(t));
    Emulated backend(options(true));
    Executor e(backend, graph, {t});
    testing::randomize(e, 1);
    launches(t);
    std::vector<std::byte> first;
    for (const std::size_t expected :
         {1, 1, 1, 0, 0}) {  // two started (the first packs weights), one captured, two replayed
      e.train(batch.view(), {1, 0.25});
      CHECK(launches(t) == expected);
      const auto now = testing::fetch(backend, e.gradient_data(), e.parameters().bytes());
      if (first.empty()) first = now;
      CHECK(now == first);
    }
    backend.zero(e.gradient_data(), e.parameters().bytes());
    std::vector<std::byte> seen(first.size());
    std::size_t asked = 0, from = 0;
    e.train(batch.view(), {1, 0.25}, [&](std::size_t ready) {
      const std::size_t end = ready < e.parameters().slices.size() ? e.parameters().slices[ready].offset * sizeof(float)
                                                                   : e.parameters().bytes();
      if (++asked % 3 != 0 && ready < e.parameters().slices.size()) return;
      backend.finish_gradients();
      backend.copy_out(seen.data() + from, static_cast<std::byte*>(e.gradient_data()) + from, end - from);
      from = end;
    });
    CHECK(from == first.size());
    CHECK(seen == first);
    const std::size_t started = launches(t);
    CHECK(started > 1);
    CHECK(started < asked);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("an aborted run does not affect the next one") {
  if (skipped()) return;
  const DType t = DType::bf16;
  bool fails = true;
  auto custom = std::make_shared<CustomOp>();
  custom->name = "fails";
  custom->shape = [](const CustomOp::Shapes& s) { return s; };
  const auto copy = [&](const TensorRef& from, const TensorRef& to) {
    const std::size_t bytes = static_cast<std::size_t>(from.shape.numel()) * size_of(from.dtype);
    emulator::Device::instance().submit([=] { std::memcpy(to.data, from.data, bytes); });
  };
  custom->forward["cuda"] = [&](std::span<const TensorRef> in, std::span<const TensorRef> out) { copy(in[0], out[0]); };
  custom->backward["cuda"] = [&](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    if (fails) throw std::runtime_error("half way");
    copy(in[0], out[0]);
  };
  Builder b(3, 8, 8);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = b.custom("half way", custom, {x}).at(0);
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 8}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {}));
  const Graph graph = std::move(b).take();
  const auto batch = testing::random_batch(graph, 4, 1);
  Emulated backend(options());
  launches(t);
  {
    Executor e(backend, graph, {t});
    CHECK_THROWS_WITH_AS(e.train(batch.view(), {1, 0.25}), "half way", std::runtime_error);
    CHECK(launches(t) == 0);
  }
  // The memory of the failed executor's gradients is freed, so a write to it would fault.
  fails = false;
  Executor e(backend, net(), {t});
  e.train(testing::random_batch(net(), 4, 1).view(), {1, 0.25});
  CHECK(launches(t) == 1);
}
