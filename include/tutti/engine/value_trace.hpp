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

#include <tutti/core/bf16.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/f16.hpp>
#include <tutti/engine/value_watcher.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti {

// What numbers a tensor holds. Least, greatest and mean are those of the finite ones.
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
  // Of a tensor in a backend's memory; nothing of one that lies nowhere.
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
    std::string all = count > nan + infinite ? line : "nothing finite";
    if (nan > 0) all += ", " + std::to_string(nan) + " NaN";
    if (infinite > 0) all += ", " + std::to_string(infinite) + " Inf";
    return all;
  }
};

// Prints a line for each op: its name, its layer, and shape, type and range of what it has computed. Ends the run by
// NotFiniteError at the first one that makes a NaN, and says what it was given.
class ValueTrace final : public ValueWatcher {
 public:
  explicit ValueTrace(std::function<void(const std::string&)> print = print_line) : print_(std::move(print)) {}

  void ran(Memory& memory, const Graph& g, const Node& n, const std::vector<TensorRef>& in,
           const std::vector<TensorRef>& out) override {
    const std::string op = std::string(name_of(n.op)) + " '" + n.name + "'";
    for (std::size_t k = 0; k < out.size(); ++k) {
      const ValueRange r = ValueRange::of(memory, out[k]);
      if (r.count == 0) continue;
      const std::string what = to_string(out[k].shape) + " " + std::string(name_of(out[k].dtype));
      print_("trace: " + op + " -> " + g[n.outputs[k]].name + " " + what + " " + r.text());
      if (r.infinite > 0 && first_infinity_.empty()) first_infinity_ = op;
      if (r.nan > 0) stop(memory, g, n, in, op, what, r);
    }
  }

 private:
  static void print_line(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

  [[noreturn]] void stop(Memory& memory, const Graph& g, const Node& n, const std::vector<TensorRef>& in,
                         const std::string& op, const std::string& what, const ValueRange& r) const {
    std::string given;
    bool finite = true;
    for (std::size_t k = 0; k < in.size(); ++k) {
      const ValueRange of_input = ValueRange::of(memory, in[k]);
      if (of_input.count == 0) continue;
      finite = finite && of_input.finite();
      given += (given.empty() ? "it was given " : "; ") + g[n.inputs[k]].name + ": " + of_input.text();
    }
    std::string hint = given + (finite ? "; so it made the NaN itself: lower --lr, set --clip-norm, or look at this op"
                                       : "; look at what made these: the update before this step, or the data");
    if (!first_infinity_.empty()) hint += "; the first infinity came of " + first_infinity_;
    fail<NotFiniteError>(op, "numbers in " + what, std::to_string(r.nan) + " NaN of " + std::to_string(r.count), hint);
  }

  std::function<void(const std::string&)> print_;
  std::string first_infinity_;
};

}  // namespace tutti
