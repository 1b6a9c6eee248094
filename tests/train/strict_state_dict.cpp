// SPDX-License-Identifier: MIT
// strict_state_dict FOLDER: trains the net of tests/golden/make_golden.py for several steps and saves a checkpoint in
// FOLDER. Then writes the net's results for a few images to FOLDER/evaluation.safetensors. test_pytorch_loads.py runs
// this program.
#include <array>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/train/checkpointing.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t rows = 6, size = 16, steps = 3, micro_batches = 2;

void run(const std::string& folder) {
  Builder b(3, size, size);
  models::resnet_cifar(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 8, .width = 4});
  CpuBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, b.graph(), {.ema_decay = 0.9, .seed = 3});

  Rng rng(1, Purpose::user);
  std::vector<std::uint8_t> images(rows * 3 * size * size);
  for (auto& i : images) i = static_cast<std::uint8_t>(rng.below(256));
  const std::vector<std::int32_t> labels{3, 0, 9, 5, 3, 7};
  const BatchView batch{images.data(), labels.data(), rows};
  const std::vector<BatchView> parts(micro_batches, batch);
  for (std::int64_t step = 0; step < steps; ++step) trainer.step(parts, rows * micro_batches, 0.1);
  trainer.commit();
  const std::string checkpoint = Checkpoints(folder, 1, io::Json::object()).save(trainer);

  const auto logits = [&] {
    trainer.evaluate(batch);
    const TensorRef v = trainer.executor().value(trainer.executor().graph().logits);
    const auto* first = static_cast<const float*>(v.data);
    return std::vector<float>(first, first + v.shape.numel());
  };
  const std::vector<float> mine = logits();
  std::vector<float> averaged;
  trainer.with_ema([&] { averaged = logits(); });
  const std::int64_t batches = steps * micro_batches;
  const Shape shape{rows, static_cast<std::int64_t>(mine.size()) / rows};
  const std::array<io::TensorRecord, 4> records{
      io::TensorRecord{"images", DType::u8, {rows, size, size, 3}, std::as_bytes(std::span(images))},
      io::TensorRecord{"logits", DType::f32, shape, std::as_bytes(std::span(mine))},
      io::TensorRecord{"ema.logits", DType::f32, shape, std::as_bytes(std::span(averaged))},
      io::TensorRecord{"batches", DType::i64, Shape{}, std::as_bytes(std::span(&batches, 1))}};
  io::save_safetensors(io::Path(folder) / "evaluation.safetensors", records);
  std::cout << checkpoint << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: strict_state_dict FOLDER\n";
    return 2;
  }
  return run_main([&] { run(argv[1]); });
}
