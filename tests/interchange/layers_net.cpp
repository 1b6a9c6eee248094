// SPDX-License-Identifier: MIT
// layers_net FOLDER: trains a net with the layers that the nets of the programs lack for a few steps, and writes a
// checkpoint into FOLDER. For test_onnx.py.
#include <iostream>
#include <string>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/pooling.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

Graph net(std::int64_t size, int classes) {
  Builder b(3, size, size);
  ValueId x = b.normalize({128, 120, 112}, {1 / 64.F, 1 / 50.F, 1 / 70.F});
  x = nn::conv_bn(b, "stem", "bn", x, {.out = 16}, {.relu = true});
  x = nn::conv_bn(b, "depthwise", "bn1", x, {.out = 48, .groups = 16}, {.relu = true});
  x = nn::avg_pool(b, "avg", nn::hard_swish(b, "act", nn::silu(b, "act1", x)), {3, 3, 1, 1}, false);
  x = nn::avg_pool(b, "avg2", nn::sigmoid(b, "gate", x), {3, 3, 2, 1});
  x = b.gelu("gelu", nn::conv(b, "grouped", x, {.out = 48, .bias = true, .groups = 4}));
  x = nn::squeeze_excitation(b, "se", nn::relu6(b, "act2", x), 4);
  x = b.add("sum", x, nn::drop_path(b, "path", nn::layer_scale(b, "scale", nn::layer_norm(b, "ln", x), 0.5), 0.3));
  x = nn::conv(b, "down", nn::concat(b, "concat", {x, b.relu("copy", x)}), {.out = 24, .stride = 2, .blur = true});
  x = nn::dropout(b, "drop", b.global_avg_pool("pool", x), 0.2);
  x = nn::layer_norm(b, "last_norm", nn::linear(b, "hidden", x, 20, Init::he_uniform));
  b.softmax_cross_entropy(nn::linear(b, "fc", x, classes, Init::he_uniform));
  return std::move(b).take();
}

void run(const std::string& folder) {
  constexpr std::int64_t size = 16;
  constexpr int classes = 6;
  BackendOptions on;
  on.gpu = false;
  on.threads = 2;
  const auto backend = make_backend("auto", on);
  Solo solo;
  Trainer trainer(*backend, solo, net(size, classes), {.optimizer = Sgd{0.9, true}});
  Loader loader(Synthetic({.size = 64, .height = size, .width = size, .classes = classes, .learnable = true}),
                {.placement = {.global_batch = 16}, .seed = 3});
  for (int step = 0; step < 6; ++step) (void)trainer.step(loader.next(), 0.05).wait();
  trainer.commit();
  Checkpoints(folder).save(trainer);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: layers_net FOLDER\n";
    return 2;
  }
  return run_main([&] { run(argv[1]); });
}
