// SPDX-License-Identifier: MIT
// torchvision_weights WEIGHTS FOLDER DEPTH CLASSES: loads the weights of torchvision's ResNet into a trainer. Writes
// the logits of a few images to FOLDER/logits.safetensors, and a checkpoint to FOLDER. test_torchvision.py runs it.
#include <array>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/load_weights.hpp>

#include "golden/formula.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t rows = 2, size = 96;

void run(const std::string& weights, const std::string& folder, int depth, int classes) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = depth, .classes = classes});
  BackendOptions on;
  on.gpu = false;
  on.threads = 2;
  const auto backend = make_backend("auto", on);
  Solo solo;
  Trainer trainer(*backend, solo, b.graph(), {});
  load_weights(trainer, weights);
  const auto images = testing::formula_images(rows * size * size * 3);
  const std::vector<std::int32_t> labels(rows);
  trainer.evaluate({images.data(), labels.data(), rows});
  const TensorRef v = trainer.executor().value(trainer.executor().graph().logits);
  const io::TensorRecord logits{"logits",
                                DType::f32,
                                v.shape,
                                {static_cast<const std::byte*>(v.data), static_cast<std::size_t>(v.shape.numel()) * 4}};
  io::save_safetensors(io::Path(folder) / "logits.safetensors", std::span(&logits, 1));
  trainer.commit();
  std::cout << Checkpoints(folder, 1, io::Json::object()).save(trainer) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: torchvision_weights WEIGHTS FOLDER DEPTH CLASSES\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], std::stoi(argv[3]), std::stoi(argv[4]));
    return 0;
  } catch (const Error& e) {
    std::cerr << e.what() << '\n';
    return e.exit_code();
  }
}
