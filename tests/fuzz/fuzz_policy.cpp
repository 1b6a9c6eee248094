// SPDX-License-Identifier: MIT
// Reads any bytes as --auto-augment. The result is either a valid policy, whose operations change an image within its
// memory, or UsageError in plain characters.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/apply_op.hpp>
#include <tutti/data/augment/draw_policy.hpp>
#include <tutti/data/augment/parse_policy.hpp>

namespace fuzz::policy {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  const std::vector<char> exact(data, data + size);
  try {
    const AugmentPolicy p = parse_policy("--fuzz", std::string_view(exact.data(), exact.size()));
    if (p.operations < 1 || p.operations > most_policy_operations || p.bins < 2) std::abort();
    constexpr int width = 7, height = 5;
    std::vector<std::uint8_t> image(width * height * 3, 99), memory;
    for (std::uint64_t i = 0; i < 4; ++i) {
      Rng rng(size, Purpose::augment, 0, i);
      const PolicyDraw draw = draw_policy(p, width, height, rng);
      for (const ImageOpCall& call : draw.all()) {
        if (!std::isfinite(call.value)) std::abort();
        apply_op(call, image, width, height, p.fill.data(), memory, cpu::detect_isa());
      }
    }
  } catch (const UsageError& e) {
    if (std::string_view(e.what()).find("[--fuzz]") != 0) std::abort();
    for (const char* c = e.what(); *c != '\0'; ++c)
      if (static_cast<unsigned char>(*c) < 0x20 || static_cast<unsigned char>(*c) >= 0x7f) std::abort();
  }
  return 0;
}

}  // namespace fuzz::policy
