// SPDX-License-Identifier: MIT
// Tests the CUDA backend on a GPU: every op in every precision against the reference backend.
#include <tutti/backends/cuda/cuda.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/need_gpu.hpp"
#include "backends/step_cases.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using testing::no_gpu;

namespace {

CudaOptions options(bool deterministic = false, bool graph = false) {
  CudaOptions o;
  o.tf32 = false;  // the tests compare with exact products
  o.deterministic = deterministic;
  o.graph = graph;
  return o;
}

}  // namespace

TEST_CASE("gpu: the convolutions of ResNet give the expected results") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_convolutions(backend, testing::resnet_conv_cases());
}
TEST_CASE("gpu: convolutions with unusual shapes give the expected results") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("gpu: deterministic convolutions with unusual shapes give the expected results") {
  if (no_gpu()) return;
  CudaBackend backend(options(true));
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("gpu: all ops except convolutions give the expected results in f32") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_other_ops(backend, DType::f32);
}
TEST_CASE("gpu: all ops except convolutions give the expected results in bf16") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_other_ops(backend, DType::bf16);
}
TEST_CASE("gpu: all ops except convolutions give the expected results in f16") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_other_ops(backend, DType::f16);
}
TEST_CASE("gpu: every op of whole nets gives the expected results") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_models(backend);
}
TEST_CASE("gpu: weight updates, norms, averages and accumulation give the expected results") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_updates(backend);
}
TEST_CASE("gpu: the conversions of sums of logical ranks give the bits of the reference") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_integer_passes(backend);
}
TEST_CASE("gpu: the loss has the expected values, and invalid labels are an error") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_loss(backend);
}
TEST_CASE("gpu: gelu is right at known values, far from zero and for NaN") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_gelu(backend);
}
TEST_CASE("gpu: a NaN in the weights makes the loss NaN") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_nan_is_not_lost(backend);
}
TEST_CASE("gpu: f64 is refused when the plan is made") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  testing::check_no_f64(backend);
}
TEST_CASE("gpu: two deterministic runs give the same bits") {
  if (no_gpu()) return;
  testing::check_determinism([](int) { return std::make_unique<CudaBackend>(options(true)); });
}
TEST_CASE("gpu: keep_all changes only the addresses of values") {
  if (no_gpu()) return;
  CudaBackend backend(options(true));
  testing::check_keep_all(backend);
}

TEST_CASE("gpu: captured steps give the same results as other steps") {
  if (no_gpu()) return;
  const Graph net = testing::small_resnet(false);
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const auto train = [&](bool graph) {
      CudaBackend backend(options(true, graph));
      Solo solo;
      TrainerOptions o;
      o.compute = t;
      o.dynamic_loss_scale = t == DType::f16;
      Trainer trainer(backend, solo, net, o);
      std::vector<double> losses;
      for (int i = 0; i < 12; ++i) {
        const std::int64_t rows = i % 3 == 2 ? 17 : 32;
        const auto batch = testing::random_batch(net, rows, static_cast<std::uint64_t>(i % 2));
        losses.push_back(trainer.step(batch.view(), rows, 0.1 / (1 + i)).wait().metrics.loss);
        losses.push_back(trainer.evaluate(batch.view()).loss);
      }
      auto weights =
          testing::fetch(backend, trainer.executor().parameter_data(), trainer.executor().parameters().bytes());
      return std::pair(losses, weights);
    };
    CHECK(train(false) == train(true));
  }
}

TEST_CASE("gpu: updates on the device equal those of the reference backend") {
  if (no_gpu()) return;
  testing::check_steps_beside_reference([] { return std::make_unique<CudaBackend>(options(true, true)); }, 2e-3);
}
TEST_CASE("gpu: steps that the device ends equal steps that the host ends") {
  if (no_gpu()) return;
  testing::check_steps_beside_host([](bool graph) { return std::make_unique<CudaBackend>(options(true, graph)); });
}

TEST_CASE("gpu: training lowers the loss in every precision") {
  if (no_gpu()) return;
  const Graph net = testing::small_resnet(false);
  const auto batch = testing::random_batch(net, 64, 5);
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    CudaBackend backend(options());
    Solo solo;
    TrainerOptions o;
    o.compute = t;
    o.dynamic_loss_scale = t == DType::f16;
    Trainer trainer(backend, solo, net, o);
    const double before = trainer.step(batch.view(), 64, 0.05).wait().metrics.loss;
    double after = before;
    for (int i = 0; i < 60; ++i) after = trainer.step(batch.view(), 64, 0.05).wait().metrics.loss;
    CHECK(after < 0.7 * before);
  }
}

TEST_CASE("gpu: memory, streams, events and pinned memory work") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  Buffer a(backend, 1000), b(backend, 1000);
  const auto pinned = cuda::allocate_pinned(1000);
  auto* const bytes = static_cast<unsigned char*>(pinned.get());
  for (int i = 0; i < 1000; ++i) bytes[i] = static_cast<unsigned char>(i);
  backend.copy_in(a.data(), bytes, 1000);
  backend.copy(b.data(), a.data(), 1000);
  std::vector<unsigned char> back(1000);
  backend.copy_out(back.data(), b.data(), 1000);
  CHECK(std::memcmp(back.data(), bytes, 1000) == 0);
  backend.zero(b.data(), 500);
  backend.copy_out(back.data(), b.data(), 1000);
  CHECK(back[499] == 0);
  CHECK(back[500] == bytes[500]);

  const cuda::Stream other(backend.device());
  cuda::Event done(backend.device(), true), later(backend.device(), true);
  done.record(backend.device().stream());
  done.hold_up(other.get());
  later.record(other.get());
  later.wait();
  CHECK(later.happened());
  CHECK(later.seconds_since(done) >= 0);
  CHECK(backend.free_bytes() > 0);
  CHECK_THROWS_WITH_AS((void)backend.allocate(std::size_t{1} << 50), doctest::Contains(" free of "), DeviceError);
  // The backend still works after the error.
  backend.synchronise();
}

TEST_CASE("gpu: batches from pinned slots and from images on the device equal the batches of the loader") {
  if (no_gpu()) return;
  CudaBackend backend(options());
  Schema s;
  s.name = "test";
  s.classes = 10;
  for (const auto& shape : {std::pair<std::int64_t, std::int64_t>{3, 32}, {1, 28}, {3, 30}, {3, 224}}) {
    const std::int64_t channels = shape.first, side = shape.second;
    const std::int64_t size = side == 224 ? 60 : 1000, batch = side == 224 ? 25 : 256;
    s.channels = channels;
    s.height = s.width = side;
    s.mean.assign(static_cast<std::size_t>(channels), 0);
    s.stddev.assign(static_cast<std::size_t>(channels), 1);
    Rng r(7, Purpose::user);
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size * s.image_bytes()));
    for (auto& p : pixels) p = static_cast<std::uint8_t>(r.next());
    std::vector<std::int32_t> labels(static_cast<std::size_t>(size));
    for (auto& l : labels) l = static_cast<std::int32_t>(r.below(10));
    const MemoryDataset images(s, std::move(pixels), std::move(labels));
    Augment reflecting = Augment::cifar();
    reflecting.pad_mode = PadMode::reflect;
    for (const AnyDataset& d : {AnyDataset(images), AnyDataset(Augmented(images, Augment::cifar())),
                                AnyDataset(Augmented(images, reflecting))}) {
      const LoaderOptions plain{.placement = {batch, 0, 1}, .seed = 3, .threads = 2};
      LoaderOptions slots = plain;
      slots.slots = 2;
      slots.allocate = [&](std::size_t n) { return backend.allocate_pinned(n); };
      slots.before_reuse = [&] { backend.wait_for_uploads(); };
      Loader expected(d, plain), pinned(d, slots);
      ResidentSource resident(backend, d, plain);
      // The host starts many steps before the device runs them. Copies what each step finds in its slot.
      constexpr int steps = 12;
      const auto most = static_cast<std::size_t>(batch * s.image_bytes());
      const std::size_t most_labels = static_cast<std::size_t>(batch) * sizeof(std::int32_t), each = most + most_labels;
      Buffer slot(backend, most), label_slot(backend, most_labels), seen(backend, 2 * steps * each);
      const auto keep = [&](std::size_t at) {
        backend.copy(seen.at(at * each), slot.data(), most);
        backend.copy(seen.at(at * each + most), label_slot.data(), most_labels);
      };
      for (std::size_t i = 0; i < steps; ++i) {
        const Batch& a = resident.next();
        backend.gather_images(*a.resident, a.windows.data(), a.count, slot.data(), label_slot.data());
        keep(2 * i);
        const Batch& b = pinned.next();
        backend.upload(b.images.data(), b.images.size(), b.labels.data(), b.labels.size_bytes(), slot.data(),
                       label_slot.data());
        keep(2 * i + 1);
      }
      std::vector<std::uint8_t> all(seen.bytes());
      backend.copy_out(all.data(), seen.data(), all.size());
      int wrong = 0;
      for (std::size_t i = 0; i < steps; ++i) {
        const Batch& e = expected.next();
        for (std::size_t k : {2 * i, 2 * i + 1})
          wrong += std::memcmp(all.data() + k * each, e.images.data(), e.images.size()) != 0 ||
                   std::memcmp(all.data() + k * each + most, e.labels.data(), e.labels.size_bytes()) != 0;
      }
      CAPTURE(side);
      CHECK(wrong == 0);
    }
  }
}
