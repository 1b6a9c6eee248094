// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/reference/integer_loops.hpp>
#include <tutti/engine/step/integer_block.hpp>

#include "engine/comparison.hpp"
#include "engine/suite.hpp"

namespace tutti::testing {

namespace {

constexpr std::size_t gap = 16;

// Blocks of several lengths, with every kind of unit; between them are elements of no block.
std::vector<IntegerBlock> blocks_of_all_kinds(std::size_t& elements) {
  std::vector<IntegerBlock> blocks;
  elements = 0;
  for (const std::int32_t exponent : {-149, -148, -128, -127, -126, -125, -60, -23, -1, 0, 1, 100, 126, 127})
    for (const std::uint32_t count : {1U, 3U, 15U, 16U, 17U, 63U, 64U, 1000U, 4095U, 4096U}) {
      blocks.push_back({elements, count, exponent});
      elements += (count + 15) / 16 * 16 + gap;
    }
  return blocks;
}

std::vector<float> values_for(const std::vector<IntegerBlock>& blocks, std::size_t elements) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> in_units{0,     -0.0F,      0.5F,       -0.5F,        1.5F,          2.5F,
                                    -2.5F, 8388607.5F, -8388608.F, 2147483520.F, -2147483520.F, 2147483648.F,
                                    -3e9F, 1e30F,      inf,        -inf,         1e-20F,        0.49999997F};
  std::vector<float> v(elements, 7);
  Rng r(11, Purpose::user);
  for (std::size_t b = 0; b < blocks.size(); ++b)
    for (std::size_t i = 0; i < blocks[b].count; ++i) {
      float& x = v[blocks[b].begin + i];
      const float unit = std::ldexp(1.0F, blocks[b].exponent);
      if (r.uniform() < 0.2F)
        x = unit * in_units[static_cast<std::size_t>(r.uniform() * static_cast<float>(in_units.size() - 1))];
      else if (r.uniform() < 0.05F)
        x = std::numeric_limits<float>::denorm_min() * std::floor(100 * r.uniform());
      else
        x = unit * static_cast<float>(r.normal()) * std::exp2(30 * r.uniform());
    }
  // A NaN and an infinity in some blocks only, so that the others have finite maxima.
  for (std::size_t b = 0; b < blocks.size(); b += 7) v[blocks[b].begin] = std::numeric_limits<float>::quiet_NaN();
  return v;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

void check_integer_passes(Backend& backend) {
  CAPTURE(backend.description());
  std::size_t elements = 0;
  const std::vector<IntegerBlock> blocks = blocks_of_all_kinds(elements);
  const std::vector<float> values = values_for(blocks, elements);
  std::vector<std::int32_t> earlier(elements);
  Rng r(5, Purpose::user);
  for (auto& q : earlier) q = static_cast<std::int32_t>(r.next());
  const Held<IntegerBlock> held(backend, blocks);
  const auto* const table = static_cast<const IntegerBlock*>(held.data());
  // 0: into other memory; 1: in place; 2: in place, added; 3: added to the sums so far.
  for (int form = 0; form < 4; ++form) {
    CAPTURE(form);
    for (const std::size_t count : {blocks.size(), std::size_t{1}, std::size_t{0}}) {
      const std::size_t first = count == 1 ? 5 : 0;
      std::vector<std::int32_t> expected = earlier;
      if (form == 1 || form == 2) std::memcpy(expected.data(), values.data(), elements * sizeof(float));
      std::vector<std::uint32_t> expected_maxima(blocks.size(), 99);
      reference::to_integers({blocks.data() + first, count, values.data(), expected.data(),
                              form >= 2 ? earlier.data() : nullptr, expected_maxima.data() + first});
      const Held<float> from(backend, values);
      const Held<std::int32_t> sums(backend, earlier);
      const Held<std::uint32_t> maxima(backend, std::vector<std::uint32_t>(blocks.size(), 99));
      auto* const in_place = static_cast<std::int32_t*>(static_cast<void*>(from.data()));
      backend.to_integers({table + first, count, static_cast<const float*>(from.data()),
                           form == 1 || form == 2 ? in_place : static_cast<std::int32_t*>(sums.data()),
                           form >= 2 ? static_cast<const std::int32_t*>(sums.data()) : nullptr,
                           static_cast<std::uint32_t*>(maxima.data()) + first});
      std::vector<std::int32_t> got(elements);
      backend.memory().copy_out(got.data(), form == 1 || form == 2 ? in_place : sums.data(), elements * sizeof(float));
      CHECK(same(got, expected));
      CHECK(maxima.fetch() == expected_maxima);
    }
  }
  earlier[blocks[9].begin] = std::numeric_limits<std::int32_t>::min();
  earlier[blocks[9].begin + 1] = std::numeric_limits<std::int32_t>::max();
  std::vector<float> expected(elements);
  std::memcpy(expected.data(), earlier.data(), elements * sizeof(float));
  reference::from_integers({blocks.data(), blocks.size(), earlier.data(), expected.data()});
  const Held<std::int32_t> sums(backend, earlier);
  backend.from_integers({table, blocks.size(), static_cast<const std::int32_t*>(sums.data()),
                         static_cast<float*>(static_cast<void*>(sums.data()))});
  std::vector<float> got(elements);
  backend.memory().copy_out(got.data(), sums.data(), elements * sizeof(float));
  CHECK(same(got, expected));
}

}  // namespace tutti::testing
