// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/float/f16.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/engine/plan/plan_walk.hpp>
#include <tutti/engine/plan/prepared_plan.hpp>
#include <tutti/engine/value_watcher.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/graph/ops.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

// The range of a tensor's numbers. Least, greatest and mean are those of the finite ones.
struct ValueRange {
  std::int64_t count = 0, nan = 0, infinite = 0;
  double least = std::numeric_limits<double>::infinity(), greatest = -std::numeric_limits<double>::infinity(), mean = 0;
  [[nodiscard]] bool finite() const noexcept { return nan == 0 && infinite == 0; }

  template <class T>
  static ValueRange of(const T* values, std::size_t n) {
    ValueRange r;
    r.count = static_cast<std::int64_t>(n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto v = static_cast<double>(values[i]);
      if (std::isnan(v)) {
        ++r.nan;
      } else if (std::isinf(v)) {
        ++r.infinite;
      } else {
        sum += v;
        r.least = std::min(r.least, v);
        r.greatest = std::max(r.greatest, v);
      }
    }
    const std::int64_t finite = r.count - r.nan - r.infinite;
    if (finite > 0) r.mean = sum / static_cast<double>(finite);
    return r;
  }
  // Returns the range of a tensor in a backend's memory; an empty range for a tensor without memory.
  static ValueRange of(Memory& memory, const TensorRef& t) {
    if (t.data == nullptr) return {};
    const auto n = static_cast<std::size_t>(t.shape.numel());
    std::vector<std::byte> bytes(n * size_of(t.dtype));
    memory.copy_out(bytes.data(), t.data, bytes.size());
    const auto as = [&](auto value) { return of(reinterpret_cast<const decltype(value)*>(bytes.data()), n); };
    switch (t.dtype) {
      case DType::f64:
        return as(double{});
      case DType::bf16:
        return as(bf16{});
      case DType::f16:
        return as(f16{});
      case DType::u8:
        return as(std::uint8_t{});
      case DType::i32:
        return as(std::int32_t{});
      case DType::i64:
        return as(std::int64_t{});
      default:
        return as(float{});
    }
  }
  [[nodiscard]] std::string text() const {
    char line[160];
    std::snprintf(line, sizeof line, "min %.4g max %.4g mean %.4g", least, greatest, mean);
    std::string all = count > nan + infinite ? line : "no finite value";
    if (nan > 0) all += ", " + std::to_string(nan) + " NaN";
    if (infinite > 0) all += ", " + std::to_string(infinite) + " Inf";
    return all;
  }
};

// Prints a line for each op: its name, its layer, and shape, type and range of its result. At the first op that makes a
// NaN, ends the run with NotFiniteError, which includes the op's inputs.
class ValueTrace final : public ValueWatcher {
 public:
  explicit ValueTrace(std::function<void(const std::string&)> print = print_line) : print_(std::move(print)) {}

  void ran(const PlanWalk& walk, Memory& memory, const PreparedPlan& p, const Segment& segment) override {
    const auto [node, phase] = segment.steps.front();
    const auto i = static_cast<std::size_t>(node);
    // A later segment completes this op.
    if (phase == Phase::reduce && p.plan.partitions[i].division == Division::two_pass) return;
    const auto operand = [&](ValueId v) {
      const ValuePlace& at = p.plan.values[static_cast<std::size_t>(v)];
      return TensorRef{at.where == ValueStorage::nowhere ? nullptr : walk.find(at), at.desc.dtype, at.desc.shape};
    };
    if (node == 0)
      print_("trace: pass " + std::to_string(++passes_) + (p.plan.training ? ", training, " : ", evaluation, ") +
             std::to_string(p.plan.rows) + " rows");
    const Graph& g = *p.graph;
    const Node& n = g.nodes[i];
    const std::string op = std::string(name_of(n.op)) + " '" + n.name + "'";
    for (const ValueId v : n.outputs) {
      const TensorRef out = operand(v);
      const ValueRange r = ValueRange::of(memory, out);
      if (r.count == 0) continue;
      const std::string what = to_string(out.shape) + " " + std::string(name_of(out.dtype));
      std::string line = "trace: " + op;
      line.append(" -> ").append(g[v].name).append(" ").append(what).append(" ").append(r.text());
      print_(line);
      if (r.infinite > 0 && first_infinity_.empty()) first_infinity_ = op;
      if (r.nan == 0) continue;
      std::string given;
      bool finite = true;
      for (const ValueId input : n.inputs) {
        if (g[input].storage == Storage::state) continue;  // the op may have changed it
        const ValueRange of_input = ValueRange::of(memory, operand(input));
        if (of_input.count == 0) continue;
        finite = finite && of_input.finite();
        given += (given.empty() ? "its inputs were " : "; ") + g[input].name + ": " + of_input.text();
      }
      std::string hint =
          given + (finite ? "; the NaN arose in this op: lower --lr, set --clip-norm, or check the op"
                          : "; check the source of these values: the update before this step, or the data");
      if (!first_infinity_.empty()) hint += "; the first infinity arose in " + first_infinity_;
      fail<NotFiniteError>({op, " in pass ", passes_}, {"numbers in ", what}, {r.nan, " NaN of ", r.count}, hint);
    }
  }

 private:
  static void print_line(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

  std::function<void(const std::string&)> print_;
  std::string first_infinity_;
  std::int64_t passes_ = 0;
};

}  // namespace tutti
