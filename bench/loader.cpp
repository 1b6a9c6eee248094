// SPDX-License-Identifier: MIT
// Measures the data pipeline without a training step, in images/s of wall clock and per second of CPU time, with 0 (the
// caller reads), 1 and 2 threads of the loader. Images are padded, cropped and mirrored; those of ImageNet are decoded
// and cropped as in torchvision, without more, with the augmentation of timm's rsb-a1 (bicubic, RandAugment), or with
// that of torchvision's recipe of 2021 (TrivialAugmentWide, random erasing). Uses CIFAR-10 from $TUTTI_DATA or ./data,
// and imagenet-sample.tar from $TUTTI_DATA,
// ./data or ../shared/data.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/augment/parse_policy.hpp>
#include <tutti/data/images/encoded_images.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>

#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif

#include "common/program.hpp"
#include "data/image_fixtures.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t batch = 128;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void read_batches(benchmark::State& state, const std::string& name, const std::function<AnyDataset()>& open,
                  int threads) try {
  LoaderOptions o;
  o.placement.global_batch = batch;
  o.threads = threads;
  Loader loader(open(), o);
  loader.start({});
  // Takes the batches that were read before the clock started.
  for (int i = 0; i < 2 * o.slots; ++i) loader.next();
  std::int64_t images = 0;
  const Stopwatch wall;
  const double before = cpu_seconds();
  for (auto _ : state) {
    const Batch& b = loader.next();
    benchmark::DoNotOptimize(b.images.data());
    images += b.count;
  }
  const auto n = static_cast<double>(images);
  state.counters["images/s"] = n / wall.seconds();
  state.counters["images/cpu_s"] = n / (cpu_seconds() - before);
} catch (const std::exception& e) {
  bench::report_failure(name, e.what());
  state.SkipWithError(e.what());
}

#if defined(TUTTI_HAS_TURBOJPEG)
// The images of the sample, each of which is used many times.
struct Sample {
  std::shared_ptr<const std::vector<test::Bytes>> images;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(images->size()) * 100; }
  std::int32_t read(std::int64_t i, test::Bytes& bytes) const {
    bytes = (*images)[static_cast<std::size_t>(i) % images->size()];
    return static_cast<std::int32_t>(static_cast<std::size_t>(i) % images->size());
  }
  [[nodiscard]] std::string where(std::int64_t i) const { return "imagenet-sample.tar, record " + std::to_string(i); }
  [[nodiscard]] int classes() const { return static_cast<int>(images->size()); }
  [[nodiscard]] std::int64_t block() const { return 1; }
};

#endif

void add(const std::string& set, const std::function<AnyDataset()>& open, const bench::Options& options) {
  std::vector<int> threads{0, 1, 2};
  if (options.threads > 2) threads.push_back(options.threads);
  for (const int t : threads) {
    const std::string name = "loader/" + set + "/b" + std::to_string(batch) + "/threads" + std::to_string(t);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& s) { read_batches(s, name, open, t); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

#if defined(TUTTI_HAS_TURBOJPEG)
void add_imagenet(const bench::Options& options) {
  auto images = std::make_shared<const std::vector<test::Bytes>>(test::imagenet_sample());
  if (images->empty()) {
    benchmark::AddCustomContext("imagenet", "not timed: no imagenet-sample.tar in $TUTTI_DATA or ../shared/data");
    return;
  }
  const auto add_set = [&](const std::string& set, const ImageAugment& augment) {
    const auto open = [images, augment] {
      return AnyDataset(EncodedImages("imagenet sample", Sample{images},
                                      ImageDecoders({std::make_shared<TurbojpegDecoder>()}), augment));
    };
    add(set, open, options);
  };
  const ImageAugment plain = ImageAugment::torchvision(Split::train);
  add_set("imagenet", plain);
  ImageAugment rsb = plain, trivial = plain;
  rsb.interpolation = Interpolation::bicubic;
  rsb.policy = parse_policy("rsb_a1", "rand-m7-mstd0.5-inc1");
  rsb.policy.interpolation = Interpolation::bicubic;
  add_set("rsb_a1", rsb);
  trivial.policy = AugmentPolicy::trivial_wide();
  trivial.erasing = RandomErasing::torchvision(0.1);
  add_set("torchvision_v2", trivial);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::none, [](const bench::Options& options) {
    add(
        "synthetic", [] { return AnyDataset(Augmented(Synthetic({.learnable = true}), Augment::cifar())); }, options);
#if defined(TUTTI_HAS_TURBOJPEG)
    add_imagenet(options);
#endif
    const char* const data = std::getenv("TUTTI_DATA");
    const std::filesystem::path folder = data != nullptr && *data != 0 ? data : "data";
    try {
      (void)cifar10::find(folder, Split::train);
    } catch (const DataError& e) {
      benchmark::AddCustomContext("cifar10", std::string("not timed: ") + e.what());
      return;
    }
    // The images are read once, for the first benchmark that needs them.
    const auto images = [folder] {
      static const MemoryDataset train = load_cifar10(folder, Split::train);
      return AnyDataset(Augmented(train, Augment::cifar()));
    };
    add("cifar10", images, options);
  });
}
