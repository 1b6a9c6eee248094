// SPDX-License-Identifier: MIT
// Tests that training and evaluation on an emulated GPU (cuda_emulator.hpp) give the same result for every place of the
// images.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/data/audit.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/make_source.hpp>

#include "backends/device_input.hpp"
#include "backends/emulated_cuda.hpp"
#include "data/temp_folder.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using namespace tutti::device_input;

namespace {

Graph net(std::int64_t channels = 3, std::int64_t side = 8) {
  Builder b(channels, side, side);
  const auto n = static_cast<std::size_t>(channels);
  ValueId x = b.normalize(std::vector<float>(n, 120), std::vector<float>(n, 1 / 60.F));
  x = b.bias("bias", x, b.parameter("bias.weight", Shape{channels}, {Init::normal, 0.3}));
  x = b.max_pool("max", b.relu("relu", x), {2, 2, 2, 0});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 3, {}), 0, 2);
  return std::move(b).take();
}

enum class How { pageable, pinned, resident };

// A training run that records everything that it computes.
struct Run {
  Emulated backend;
  Solo solo;
  Trainer trainer;
  std::unique_ptr<BatchSource> train, test;

  explicit Run(How how, bool graph = true, std::int64_t micro_batch = 0)
      : backend(testing::emulated_options(graph)),
        trainer(backend, solo, net(), {.ema_decay = 0.9, .seed = 5, .micro_batch = micro_batch}) {
    Augment a = Augment::cifar();
    a.pad = 2;
    train = source(how, AnyDataset(Augmented(images_of(37, 3, 8, 8), a)), {.placement = {16, 0, 1}, .seed = 9});
    test = source(how, AnyDataset(images_of(23, 3, 8, 8, 3, 2)),
                  {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true});
  }
  std::unique_ptr<BatchSource> source(How how, const AnyDataset& d, LoaderOptions o) {
    const OnDevice as = how == How::resident ? OnDevice::yes : OnDevice::no;
    std::size_t bytes = 0;
    if (how == How::pageable) return std::make_unique<Loader>(d, o);
    auto s = make_source(backend, d, std::move(o), as, &bytes);
    CHECK((bytes > 0) == (how == How::resident));
    return s;
  }
  struct Listener : FitListener {
    std::vector<double> numbers;
    void step(const StepReport& r) override { numbers.insert(numbers.end(), {r.train_loss, r.train_top1, r.lr}); }
    void epoch(const EpochReport& r) override {
      numbers.insert(numbers.end(), {r.train_loss, r.test->loss, r.test->top1, r.test_ema->loss});
      numbers.push_back(static_cast<double>(r.test->images));
    }
  } listener;

  // audit: folder of the audit log.
  FitResult go(FitOptions o, Checkpoints* c = nullptr, const std::string& audit = {}) {
    o.global_batch = 16;
    o.report_every = 1;
    Coordinator coordinator(trainer, {.checkpoints = c, .listeners = {&listener}, .audit = audit});
    return fit(trainer, *train, test.get(), coordinator, o);
  }
  std::vector<std::byte> bits() {
    trainer.commit();
    std::vector<std::byte> all;
    for (bool optimizer : {false, true})
      for (const auto& s : trainer.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
    return all;
  }
};

std::string text_of(const std::filesystem::path& p) {
  std::ifstream in(p);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("training gives the same bits from pageable memory, pinned slots and images on the device") {
  if (testing::no_emulator()) return;
  with_both([] {
    const test::TempFolder folder;
    std::optional<std::vector<std::byte>> bits;
    std::vector<double> numbers;
    std::string audit_text;
    for (const bool graph : {false, true})
      for (const How how : {How::pageable, How::pinned, How::resident})
        for (const std::int64_t micro_batch : {0, 6}) {
          if (micro_batch > 0 && graph) continue;
          const auto own = folder / ("audit" + std::to_string(static_cast<int>(how)) + std::to_string(graph) +
                                     std::to_string(micro_batch));
          std::filesystem::create_directories(own);
          const auto file = audit_file(own, 0);
          Run run(how, graph, micro_batch);
          run.go({.epochs = 3}, nullptr, own.string());
          CHECK(run.trainer.counters().step == 9);
          CAPTURE(graph);
          CAPTURE(static_cast<int>(how));
          if (!bits) {
            bits = run.bits();
            numbers = run.listener.numbers;
            audit_text = text_of(file);
            const std::vector<std::string> files{file.string()};
            for (std::int64_t epoch = 0; epoch < 3; ++epoch) CHECK(check_audit(files, epoch, 37).exactly_once());
          }
          CHECK(text_of(file) == audit_text);
          if (micro_batch == 0) {
            CHECK(run.bits() == *bits);
            CHECK(run.listener.numbers == numbers);
          }
        }
    CHECK(numbers.size() == 9 * 3 + 3 * 5);
    CHECK(numbers.back() == 23);
  });
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a run stopped within an epoch continues with the same images on the device") {
  if (testing::no_emulator()) return;
  Run whole(How::resident);
  whole.go({.epochs = 3});
  const test::TempFolder folder;
  {
    Checkpoints checkpoints(folder.path(), 2, io::Json::object());
    Run first(How::resident);
    int polls = 0;
    const FitResult r =
        first.go({.epochs = 3, .stop_requested = [&] { return ++polls == 5; }}, &checkpoints, folder.path().string());
    CHECK(r.interrupted);
    CHECK(r.counters.consumed > 0);
  }
  for (const How how : {How::resident, How::pinned}) {
    const auto run_folder = folder / ("run" + std::to_string(static_cast<int>(how)));
    std::filesystem::create_directories(run_folder);
    const auto copy = audit_file(run_folder, 0);
    std::filesystem::copy_file(audit_file(folder.path(), 0), copy);
    std::filesystem::copy(folder / "checkpoints", run_folder / "checkpoints", std::filesystem::copy_options::recursive);
    Checkpoints checkpoints(run_folder, 2, io::Json::object());
    Run second(how);
    REQUIRE(checkpoints.resume_latest(second.trainer, [](const std::string& w) { FAIL(w); }));
    second.go({.epochs = 3}, &checkpoints, run_folder.string());
    CHECK(second.bits() == whole.bits());
    const std::vector<std::string> files{copy.string()};
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) CHECK(check_audit(files, epoch, 37).exactly_once());
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("the input of every step has the same address, with room for the largest batch") {
  if (testing::no_emulator()) return;
  Run run(How::resident);
  auto& e = run.trainer.executor();
  e.prepare(16, true);
  e.prepare(10, false);
  const void* at = nullptr;
  for (int i = 0; i < 7; ++i) {
    const Batch& b = run.train->next();
    run.trainer.evaluate(view_of(b, 0, b.count));
    const TensorRef images = e.value(e.graph().images);
    if (at == nullptr) at = images.data;
    CHECK(images.data == at);
    // The input of the op equals the batch.
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(images.shape.numel()));
    run.backend.copy_out(bytes.data(), images.data, bytes.size());
    CHECK(bytes == gathered(run.backend, b).images);
  }
}

TEST_CASE("views of test images give the same metrics if the device crops them and if the host copies them") {
  if (testing::no_emulator()) return;
  const AnyDataset d = AnyDataset(
      Augmented(images_of(13, 3, 9, 8),
                Augment{.height = 8, .pad = 2, .pad_mode = PadMode::reflect, .random_crop = true, .mirror = true}));
  Emulated backend(testing::emulated_options());
  Solo solo;
  Trainer trainer(backend, solo, net(), {.seed = 5});
  const LoaderOptions o{.placement = {5, 0, 1}, .seed = 4, .one_pass = true, .threads = 0};
  Loader loader(d, o);
  ResidentSource resident(backend, d, o);
  for (const int level : {0, 1, 2}) {
    const EvaluationReport a = evaluate_views(trainer, loader, test_views(level)),
                           b = evaluate_views(trainer, resident, test_views(level));
    CHECK(a.loss == b.loss);
    CHECK(a.top1 == b.top1);
    CHECK(a.images == 13);
    CHECK(b.images == 13);
  }
  // Compares the pixels, including those of mirrored windows.
  const Shape shape{1, 3, 8, 8};
  loader.start({0, 0});
  resident.start({0, 0});
  const Batch& host = loader.next();
  const Batch& device = resident.next();
  bool mirrored = false;
  for (const TestView& v : {TestView{0, 0, true, 1}, {3, -2, false, 1}, {-7, 7, true, 1}, {1, 1, true, 1}}) {
    std::vector<std::uint8_t> expected(host.images.size());
    make_view(host.images.data(), host.count, shape, v, expected.data());
    std::vector<ImageWindow> windows;
    make_view(device.windows, shape, v, windows);
    for (const auto& w : device.windows) mirrored = mirrored || w.mirror != 0;
    Batch shown = device;
    shown.windows = windows;
    CHECK(gathered(backend, shown).images == expected);
  }
  CHECK(mirrored);
}

TEST_CASE("batches whose image size differs from that of the net are refused") {
  if (testing::no_emulator()) return;
  Run run(How::resident);
  LoaderOptions o;
  o.threads = 0;
  ResidentSource other(run.backend, images_of(4, 3, 9, 8), o);
  const Batch& b = other.next();
  CHECK_THROWS_WITH_AS(run.trainer.evaluate(view_of(b, 0, b.count)), doctest::Contains("windows of 3 channels, 9x8"),
                       ShapeError);
}

TEST_CASE("the batches of a run come from device memory if the data set fits") {
  if (testing::no_emulator()) return;
  auto& device = emulator::Device::instance();
  Emulated backend(testing::emulated_options(true));
  CpuBackend host;
  const AnyDataset fixed = images_of(50, 3, 8, 8);
  struct Random {
    MemoryDataset d = images_of(50, 3, 8, 8);
    [[nodiscard]] std::int64_t size() const { return d.size(); }
    [[nodiscard]] const Schema& schema() const { return d.schema(); }
    void read(std::int64_t i, Rng& r, Sample s) const { d.read(i, r, s); }
  };
  const AnyDataset random = Random{};
  LoaderOptions l;
  l.threads = 0;
  const auto resident = [&](auto& b, const AnyDataset& d, OnDevice wanted) {
    std::size_t bytes = 0;
    const auto source = make_source(b, d, l, wanted, &bytes, "--data-on-device");
    CHECK((dynamic_cast<Loader*>(source.get()) == nullptr) == (bytes > 0));
    return bytes;
  };
  CHECK(resident(backend, fixed, OnDevice::automatic) == 50 * (3 * 8 * 8 + 4));
  CHECK(resident(backend, fixed, OnDevice::yes) > 0);
  CHECK(resident(backend, fixed, OnDevice::no) == 0);
  CHECK(resident(backend, random, OnDevice::automatic) == 0);
  CHECK_THROWS_WITH_AS(resident(backend, random, OnDevice::yes), doctest::Contains("computed anew at each read"),
                       UsageError);
  CHECK(resident(host, fixed, OnDevice::automatic) == 0);
  CHECK_THROWS_WITH_AS(resident(host, fixed, OnDevice::yes), doctest::Contains("only --backend cuda supports it"),
                       UsageError);
  // The images need more than a quarter of the free memory in the first case, and more than all of it in the second.
  const std::size_t capacity = device.capacity;
  device.capacity = device.memory.used() + 30000;
  CHECK(resident(backend, fixed, OnDevice::automatic) == 0);
  device.capacity = device.memory.used() + 5000;
  CHECK_THROWS_WITH_AS(resident(backend, fixed, OnDevice::yes), doctest::Contains("--data-on-device"), DeviceError);
  device.capacity = capacity;
  CHECK(resident(backend, fixed, OnDevice::automatic) > 0);
}

TEST_CASE("the pinned slots of a loader are not freed while an upload may read them") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options(true));
  Buffer slot(backend, 4096), labels(backend, 64);
  const AnyDataset d = images_of(9, 3, 8, 8);
  LoaderOptions l;
  l.placement.global_batch = 4;
  l.threads = 0;
  l.slots = 1;  // so that the next batch overwrites the previous one
  {
    const auto source = make_source(backend, d, l, OnDevice::no);
    Loader plain(d, l);
    std::vector<std::uint8_t> seen(4 * 192);
    for (int step = 0; step < 5; ++step) {
      const Batch& b = source->next();
      backend.upload(b.images.data(), b.images.size(), b.labels.data(), b.labels.size() * 4, slot.data(),
                     labels.data());
      const Batch& expected = plain.next();
      const std::vector<std::uint8_t> wanted(expected.images.begin(), expected.images.end());
      if (step % 2 == 0) source->start(b.after);
      seen.resize(wanted.size());
      if (step % 2 == 1) source->release();
      backend.copy_out(seen.data(), slot.data(), seen.size());
      CHECK(seen == wanted);
    }
    const Batch& b = source->next();
    backend.upload(b.images.data(), b.images.size(), b.labels.data(), b.labels.size() * 4, slot.data(), labels.data());
  }
  // The emulator ends the program if the host frees memory before an upload has read it.
  backend.synchronise();
}

TEST_CASE("images are normalised into four channels if only convolutions read them") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options());
  const auto normalised = [](const Graph& g) {
    for (const Node& n : g.nodes)
      if (std::holds_alternative<op::Normalize>(n.op)) return n.outputs[0];
    return no_value;
  };
  for (const std::int64_t channels : {1, 2, 3, 4, 5})
    for (const bool also_relu : {false, true}) {
      CAPTURE(channels);
      CAPTURE(also_relu);
      const auto n = static_cast<std::size_t>(channels);
      Builder b(channels, 6, 6);
      const ValueId x = b.normalize(std::vector<float>(n, 100), std::vector<float>(n, 1 / 50.F));
      ValueId y = nn::conv_bn(b, "stem", "stem_bn", x, {.out = 8, .kernel = 3}, {.relu = true});
      if (also_relu)
        y = b.add("add", y, nn::conv_bn(b, "second", "second_bn", b.relu("relu", x), {.out = 8, .kernel = 3}, {}));
      b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 3, {}));
      const Graph net = std::move(b).take();
      Executor e(backend, net, {DType::f32, true});
      ReferenceBackend reference;
      Executor r(reference, net);
      testing::randomize(e, 1);
      testing::randomize(r, 1);
      const auto batch = testing::random_batch(net, 3, 1);
      CHECK(e.train(batch.view(), {1, 1 / 3.}).loss ==
            doctest::Approx(r.train(batch.view(), {1, 1 / 3.}).loss).epsilon(1e-4));
      const TensorRef v = e.value(normalised(e.graph()));
      const std::int64_t wide = also_relu || channels > 4 ? channels : 4;
      REQUIRE(v.shape == Shape{3, wide, 6, 6});
      std::vector<float> got(static_cast<std::size_t>(v.shape.numel()));
      backend.copy_out(got.data(), v.data, got.size() * sizeof(float));
      int wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t pixel = i / static_cast<std::size_t>(wide), c = i % static_cast<std::size_t>(wide);
        const float expected = c < n ? (static_cast<float>(batch.images[pixel * n + c]) - 100) * (1 / 50.F) : 0;
        wrong += got[i] != expected;
      }
      CHECK(wrong == 0);
      // Compares the gradient of the stem's weights, in the order of the weights.
      const auto mine = testing::fetch(backend, e.gradient_data(), e.parameters().bytes());
      const auto theirs = testing::fetch(reference, r.gradient_data(), r.parameters().bytes());
      const Slice& s = *e.parameters().find("stem.weight");
      for (std::size_t i = s.offset; i < s.offset + s.count; ++i) {
        float a = 0, t = 0;
        std::memcpy(&a, mine.data() + i * sizeof a, sizeof a);
        std::memcpy(&t, theirs.data() + i * sizeof t, sizeof t);
        CHECK(a == doctest::Approx(t).epsilon(1e-3));
      }
    }
}
