// SPDX-License-Identifier: MIT
// takes long
// Tests the onednn backend's own weight gradients and fully connected layers: every way to divide the work, and the
// fallback if the processor lacks an instruction set.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include <tutti/backends/onednn/onednn.hpp>

#include "engine/suite.hpp"

using namespace tutti;

namespace {

// Large gradients, which the backend divides into parts over all rows, and small ones, which it sums for each shard.
// Some shapes fill whole tiles, and some leave a remainder.
std::vector<testing::ConvCase> cases() {
  std::vector<testing::ConvCase> c;
  c.push_back(testing::square_conv("large, cut by outputs", 5, 256, 7, 1024, 1, 1));
  c.push_back(testing::square_conv("large, cut by inputs", 5, 1024, 7, 256, 1, 1));
  c.push_back(testing::square_conv("large, with a stride", 3, 528, 7, 512, 1, 2));
  c.push_back(testing::square_conv("large 3x3", 3, 352, 5, 352, 3, 1));
  c.push_back(testing::square_conv("large 3x3 with a stride", 3, 176, 9, 176, 3, 2));
  c.push_back(testing::square_conv("very large 3x3", 3, 384, 5, 384, 3, 1));
  c.push_back(testing::square_conv("small", 19, 48, 13, 80, 1, 1));
  c.push_back(testing::square_conv("small, of more inputs than outputs", 19, 112, 13, 48, 1, 1));
  c.push_back({"small, with a border", 3, 64, 7, 9, 16, {1, 1, 1, 1}});
  c.push_back(testing::square_conv("small, many chunks", 11, 16, 40, 112, 1, 1));
  c.push_back(testing::square_conv("small 3x3 with a stride", 19, 48, 11, 16, 3, 2));
  c.push_back(testing::square_conv("added up in uneven tasks", 8, 480, 5, 528, 1, 1));
  c.push_back(testing::square_conv("3x3 with a stride, added up in tasks", 7, 144, 5, 160, 3, 2));
  c.push_back(testing::square_conv("odd pixels", 1, 16, 5, 16, 1, 1));
  return c;
}

std::vector<std::byte> gradients(const Graph& g, std::int64_t rows, DType precision, int threads) {
  OnednnBackend backend({threads});
  Executor e(backend, g, {precision});
  testing::randomize(e, 1);
  const auto batch = testing::random_batch(g, rows, 1);
  e.train(batch.view(), {1, 1.0 / static_cast<double>(rows)});
  std::vector<std::byte> bytes(e.parameters().bytes());
  std::memcpy(bytes.data(), e.gradient_data(), bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE("weight gradients agree with the reference") {
  OnednnBackend backend({2});
  testing::check_convolutions(backend, cases());
}
TEST_CASE("weight gradients agree with the reference if they are divided into tasks for 24 threads") {
  OnednnBackend backend({24});
  testing::check_convolutions(backend, cases());
}
TEST_CASE("weight gradients agree with the reference on smaller instruction sets") {
  // A processor with AMX has the largest one, whose name switches AMX off.
  const cpu::Isa here = cpu::detect_isa();
  for (const cpu::Isa isa : cpu::isas) {
    if (isa == cpu::Isa::baseline || isa > here) continue;
    const testing::IsaGuard guard(cpu::name_of(isa).data());
    OnednnBackend backend({2});
    testing::check_convolutions(backend, {cases()[0], cases()[4], cases()[5], cases()[8]});
  }
}
TEST_CASE("weight gradients have the same bits for any small number of threads") {
  for (const DType t : {DType::f32, DType::bf16}) {
    if (t == DType::bf16 && !OnednnBackend::has_bf16()) continue;
    for (const auto& c : cases()) {
      CAPTURE(c.name);
      const Graph g = testing::op_case(c).graph();
      const auto one = gradients(g, c.rows, t, 1);
      for (const int threads : {2, 3, 4}) CHECK(gradients(g, c.rows, t, threads) == one);
      // More threads do not make more shards for so few rows, but they make more tasks.
      if (c.rows <= 8) CHECK(gradients(g, c.rows, t, 24) == one);
    }
    const auto fc = testing::linear_case("fc", 5, 512, 333);
    const auto one = gradients(fc.graph(), fc.rows, t, 1);
    for (const int threads : {2, 3, 4}) CHECK(gradients(fc.graph(), fc.rows, t, threads) == one);
  }
}
TEST_CASE("fully connected layers that are divided into uneven parts are correct") {
  OnednnBackend backend({2});
  for (const DType t : testing::fast_precisions(backend))
    for (const auto& [rows, in, out] : {std::array{5, 512, 333}, {1, 2048, 1000}, {17, 300, 257}, {3, 4099, 40}})
      testing::check_case(backend, testing::linear_case("linear", rows, in, out), t);
}
