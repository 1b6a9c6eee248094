// SPDX-License-Identifier: MIT
// Measures the way from an encoded image to an augmented 224x224 tensor, in images/s of wall clock and per second of
// CPU time: decoding alone and with augmentation, on 1 and 2 threads. Uses imagenet-sample.tar from $TUTTI_DATA, ./data
// or ../shared/data. Also uses these images reduced to a short side of at most 480 and 256 pixels with quality 85, as
// the preparation tools store them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/images/image_augment.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#if defined(TUTTI_HAS_STB)
#include <tutti/backends/stb/stb.hpp>
#endif

#include "common/program.hpp"
#include "data/image_fixtures.hpp"

using namespace tutti;

namespace {

using test::Bytes;
using Images = std::vector<Bytes>;

double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

#if defined(TUTTI_HAS_TURBOJPEG)
// Returns the image as the preparation tools write it: they reduce it by its short side, and enlarge no image.
Bytes shrunk(const ImageDecoders& decoders, const Bytes& image, int short_side) {
  const ImageHeader h = decoders.header(image, "sample");
  DecodedImage decoded;
  decoders.decode(image, h, {{0, 0, h.width, h.height}, 0, 0, DecodeQuality::accurate}, "sample", decoded);
  const double scale = std::min(1.0, static_cast<double>(short_side) / std::min(h.width, h.height));
  const int width = std::max(1, static_cast<int>(h.width * scale)),
            height = std::max(1, static_cast<int>(h.height * scale));
  Bytes pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  const ResizeBox whole{0, 0, static_cast<double>(h.width), static_cast<double>(h.height)};
  Resizer()({decoded.pixels.data(), h.width, h.height}, whole, whole, width, height, true, false, pixels.data());

  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* to = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &to, &size);
  c.image_width = static_cast<JDIMENSION>(width);
  c.image_height = static_cast<JDIMENSION>(height);
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, 85, TRUE);
  jpeg_start_compress(&c, TRUE);
  while (c.next_scanline < c.image_height) {
    JSAMPROW row = pixels.data() + static_cast<std::size_t>(c.next_scanline) * static_cast<std::size_t>(width) * 3;
    (void)jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  Bytes out(to, to + size);
  jpeg_destroy_compress(&c);
  std::free(to);
  return out;
}
#endif

// The work of one thread on one image. The epoch changes the crop.
using Work = std::function<void(const Bytes& image, std::uint64_t index, std::uint64_t epoch)>;

Work decode_only(const ImageDecoders& decoders, const ImageAugment& augment) {
  return [decoders, augmenter = ImageAugmenter(augment)](const Bytes& image, std::uint64_t index, std::uint64_t epoch) {
    thread_local DecodedImage decoded;
    Rng rng(1, Purpose::augment, epoch, index);
    const ImageHeader h = decoders.header(image, "sample");
    decoders.decode(image, h, augmenter.request_of(augmenter.draw(h.width, h.height, rng), h), "sample", decoded);
    benchmark::DoNotOptimize(decoded.pixels.data());
  };
}
Work augmented(const ImageDecoders& decoders, const ImageAugment& augment) {
  return [decoders, augmenter = ImageAugmenter(augment)](const Bytes& image, std::uint64_t index, std::uint64_t epoch) {
    thread_local ImageAugmenter::Scratch scratch;
    thread_local Bytes out;
    out.resize(static_cast<std::size_t>(augmenter.augment().height * augmenter.augment().width * 3));
    Rng rng(1, Purpose::augment, epoch, index);
    augmenter(decoders, image, "sample", rng, scratch, out);
    benchmark::DoNotOptimize(out.data());
  };
}

void pass(benchmark::State& state, const std::string& name, const Images& images, const Work& work, int threads) try {
  std::uint64_t epoch = 0;
  double cpu = 0;
  std::mutex mutex;
  const Stopwatch wall;
  for (auto _ : state) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr error;
    const auto run = [&] {
      const double before = thread_cpu_seconds();
      try {
        // A pass has several epochs, so that the start of the threads does not count.
        constexpr std::size_t epochs = 4;
        for (std::size_t i = next++; i < epochs * images.size(); i = next++)
          work(images[i % images.size()], i % images.size(), epoch + i / images.size());
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      cpu += thread_cpu_seconds() - before;
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.push_back(std::thread(run));
    run();
    for (auto& t : others) t.join();
    if (error) std::rethrow_exception(error);
    epoch += 4;
  }
  const double n = static_cast<double>(epoch * images.size());
  state.counters["images/s"] = n / wall.seconds();
  state.counters["images/cpu_s"] = n / cpu;
} catch (const std::exception& e) {
  bench::report_failure(name, e.what());
  state.SkipWithError(e.what());
}

void add(const std::string& set, const std::string& what, const std::function<const Images&()>& images,
         const Work& work, const bench::Options& options) {
  std::vector<int> threads{1, 2};
  if (options.threads > 2) threads.push_back(options.threads);
  for (const int t : threads) {
    const std::string name = "jpeg/" + set + "/" + what + "/threads" + std::to_string(t);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& s) { pass(s, name, images(), work, t); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

void add_decoder(const std::string& set, const ImageDecoders& decoders, const std::function<const Images&()>& images,
                 const bench::Options& options) {
  const std::string by = decoders.names() + "/";
  ImageAugment whole = ImageAugment::torchvision(Split::train);
  whole.crop = CropRule::central;
  whole.share = 1;
  add(set, by + "decode", images, decode_only(decoders, whole), options);
  add(set, by + "decode_crop", images, decode_only(decoders, ImageAugment::torchvision(Split::train)), options);
  add(set, by + "horovod", images, augmented(decoders, ImageAugment::horovod(Split::train)), options);
  add(set, by + "horovod_increased", images, augmented(decoders, ImageAugment::horovod(Split::train, true)), options);
  add(set, by + "horovod_eval", images, augmented(decoders, ImageAugment::horovod(Split::test)), options);
  add(set, by + "torchvision", images, augmented(decoders, ImageAugment::torchvision(Split::train)), options);
  add(set, by + "torchvision_eval", images, augmented(decoders, ImageAugment::torchvision(Split::test)), options);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::none, [](const bench::Options& options) {
    static const Images sample = test::imagenet_sample();
    if (sample.empty()) {
      benchmark::AddCustomContext("images", "not timed: no imagenet-sample.tar in $TUTTI_DATA or ../shared/data");
      return;
    }
    benchmark::AddCustomContext("images", std::to_string(sample.size()));
    const auto full = []() -> const Images& { return sample; };
#if defined(TUTTI_HAS_TURBOJPEG)
    const ImageDecoders turbojpeg({std::make_shared<TurbojpegDecoder>()});
    add_decoder("full", turbojpeg, full, options);
    static Images shrunk_to[2];
    for (const int k : {0, 1}) {
      // The images are reduced for the first benchmark that needs them.
      const int side = k == 0 ? 480 : 256;
      const auto images = [=]() -> const Images& {
        if (shrunk_to[k].empty())
          for (const Bytes& b : sample) shrunk_to[k].push_back(shrunk(turbojpeg, b, side));
        return shrunk_to[k];
      };
      add_decoder("short" + std::to_string(side), turbojpeg, images, options);
    }
#endif
#if defined(TUTTI_HAS_STB)
    add_decoder("full", ImageDecoders({std::make_shared<StbDecoder>()}), full, options);
#endif
  });
}
