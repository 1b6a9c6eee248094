// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/require_room.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>

using namespace tutti;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// A backend that reports a given amount of free memory.
struct Short : ReferenceBackend {
  std::size_t free = 100 * mib;
  [[nodiscard]] std::string name() const override { return "short"; }
  [[nodiscard]] std::size_t free_bytes() const override { return free; }
};
// A backend that also reports the memory that it has allocated, and a hint.
struct Knowing : Short {
  explicit Knowing(std::string advice = "--option") : hint(std::move(advice)) {}
  std::string hint;
  [[nodiscard]] std::size_t allocated_bytes() const noexcept override { return 70 * mib; }
  [[nodiscard]] std::string memory_hint() const override { return hint; }
};

std::string refusal(Backend&& b, std::int64_t rows, std::size_t a_row, std::size_t own = 0) {
  try {
    require_room(b, {rows, static_cast<std::size_t>(rows) * a_row, own, 50 * mib},
                 [&](std::int64_t n) { return static_cast<std::size_t>(n) * a_row; });
  } catch (const DeviceError& e) {
    return e.what();
  }
  return {};
}

Graph net() {
  Builder b(3, 16, 16);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv", "bn", x, {.out = 8}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {}));
  return std::move(b).take();
}

// A ReferenceBackend that reports little free memory.
struct Little : ReferenceBackend {
  std::size_t free = 1 * mib;
  [[nodiscard]] std::size_t free_bytes() const override { return free; }
  [[nodiscard]] std::string memory_hint() const override { return "--smaller"; }
};

}  // namespace

TEST_CASE("the error gives the required, allocated and free memory, and the largest batch that fits") {
  CHECK(refusal(Short{}, 100, mib) == "");
  CHECK(refusal(Short{}, 101, mib) ==
        "[short] expected 101 MiB of memory in addition to the 50 MiB of parameters, gradients and optimizer state for "
        "a batch "
        "of 101, got 100 MiB free. hint: at most about 100 rows fit: use --batch-size, or --precision bf16.");
  // Earlier runs allocated 20 MiB of the 70 MiB, and this run can use them, so they count as free.
  CHECK(refusal(Knowing{}, 120, mib, 20 * mib) == "");
  CHECK(refusal(Knowing{""}, 300, mib, 20 * mib) ==
        "[short] expected 300 MiB of memory in addition to the 50 MiB of parameters, gradients and optimizer state for "
        "a batch "
        "of 300, got 120 MiB free. hint: at most about 120 rows fit: use --batch-size, or --precision bf16.");
  CHECK(refusal(Short{}, 2, 200 * mib) ==
        "[short] expected 400 MiB of memory in addition to the 50 MiB of parameters, gradients and optimizer state for "
        "a batch "
        "of 2, got 100 MiB free. hint: not even one row fits: end other programs that use the device.");
}

TEST_CASE("the advice of the backend comes after the other hints") {
  CHECK(refusal(Knowing{}, 300, mib)
            .ends_with("hint: at most about 100 rows fit: use --batch-size, --precision bf16, or --option."));
  CHECK(refusal(Knowing{}, 1, 200 * mib)
            .ends_with("hint: not even one row fits: end other programs that use the device, or use --option."));
}

TEST_CASE("an executor checks the memory before an allocation, and the batch that the error gives fits") {
  Little b;
  Executor e(b, net());
  std::string said;
  try {
    e.prepare(4000, true);
  } catch (const DeviceError& error) {
    said = error.what();
  }
  CHECK(said.find("for a batch of 4000, got 1 MiB free. hint: at most about ") != std::string::npos);
  CHECK(said.ends_with(" rows fit: use --batch-size, --precision bf16, or --smaller."));
  CHECK(e.memory().activations == 0);
  const std::string before = "at most about ";
  const auto fits = std::stoll(said.substr(said.find(before) + before.size()));
  CHECK(fits > 0);
  CHECK(e.prepare(fits, true).rows == fits);
  CHECK_THROWS_AS(e.prepare(2 * fits + 8, true), DeviceError);
  b.free = 1000 * mib;
  CHECK(e.prepare(2 * fits + 8, true).rows == 2 * fits + 8);
}
