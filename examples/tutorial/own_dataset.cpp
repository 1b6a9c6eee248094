// SPDX-License-Identifier: MIT
// ctest:
// A data set of one's own: where a dot stands in the image is what is to be learnt.
#include <algorithm>
#include <cstdio>

#include <tutti/tutti.hpp>

using namespace tutti;

// [dataset]
// size(), schema() and read() make a data set. read() is const, may be called by several threads at once, and draws
// from `rng` alone: so a sample is the same whoever reads it, on whatever rank.
class Dots {
 public:
  Dots() {
    schema_.name = "dots";
    schema_.channels = 1;
    schema_.height = schema_.width = 8;
    schema_.classes = 4;  // quarters of the image
    schema_.mean = {32};
    schema_.stddev = {64};
  }
  std::int64_t size() const { return 512; }
  const Schema& schema() const { return schema_; }
  void read(std::int64_t i, Rng& rng, Slot slot) const {
    slot.label = static_cast<std::int32_t>(i % 4);
    std::fill(slot.image.begin(), slot.image.end(), std::uint8_t{0});
    const auto y = rng.below(4) + (slot.label / 2) * 4, x = rng.below(4) + (slot.label % 2) * 4;
    slot.image[y * 8 + x] = 255;  // [height, width, channels]
  }

 private:
  Schema schema_;
};
static_assert(Dataset<Dots>);
// [/dataset]

int main() try {
  const Dots dots;
  Builder b(1, 8, 8);
  ValueId x = b.normalize(dots.schema().mean, {1 / dots.schema().stddev[0]});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8, .stride = 2}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 16, .stride = 2}, {.relu = true});
  x = nn::conv_bn(b, "conv3", "bn3", x, {.out = 32, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::xavier_normal, 1}));

  Loader loader(dots, {.placement = {.global_batch = 32}, .seed = 1, .threads = 2});
  Reference backend;
  Solo solo;
  Trainer trainer(backend, solo, b.graph(), {.optimizer = Sgd{0.9, true}});
  double accuracy = 0;
  for (int step = 0; step < 64; ++step) {
    const Batch& batch = loader.next();
    const auto result = trainer.step(batch, 0.05).wait();
    accuracy = result.metrics.top1_rate();
  }
  std::printf("training accuracy %.2f\n", accuracy);
  return accuracy > 0.5 ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
