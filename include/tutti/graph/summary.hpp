// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>

namespace tutti {

// Returns the floating-point operations of the forward pass for one row: two for each multiply-add of a convolution or
// linear layer. Training needs about three times as many.
[[nodiscard]] inline std::int64_t forward_flops(const Graph& g, const Node& n) {
  if (!std::holds_alternative<op::Conv2d>(n.op) && !std::holds_alternative<op::Linear>(n.op)) return 0;
  const Shape &w = g[n.inputs[1]].shape, &y = g[n.outputs[0]].shape;
  const std::int64_t pixels = y.rank() == 4 ? y[2] * y[3] : 1;
  return 2 * w.numel() * pixels;
}
[[nodiscard]] inline std::int64_t forward_flops(const Graph& g) {  // for one row
  std::int64_t sum = 0;
  for (const Node& n : g.nodes)
    if (!n.backward) sum += forward_flops(g, n);
  return sum;
}

[[nodiscard]] inline std::int64_t parameter_count(const Graph& g) {  // Returns the number of trained numbers.
  std::int64_t sum = 0;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) sum += v.shape.numel();
  return sum;
}

namespace detail {

inline std::string scaled(double v, const char* const (&units)[4]) {
  int u = 0;
  for (; u < 3 && v >= 1000; ++u) v /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, v < 10 ? "%.2f %s" : v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
  return text;
}

inline std::string padded(std::string s, std::size_t width) {
  if (s.size() < width) s.append(width - s.size(), ' ');
  return s;
}

}  // namespace detail

[[nodiscard]] inline std::string format_count(double n) {  // "11.2 M"
  static constexpr const char* units[4] = {"", "k", "M", "G"};
  return detail::scaled(n, units);
}
[[nodiscard]] inline std::string format_bytes(double n) {  // "45 MB"
  static constexpr const char* units[4] = {"B", "kB", "MB", "GB"};
  return detail::scaled(n, units);
}

// Returns one line: parameters, and the FLOPs of one row for the forward pass and for training.
[[nodiscard]] TUTTI_CORE_FUNCTION std::string totals(const Graph& g);

// Returns a line for each layer (name, op, output, parameters, forward FLOPs of one row), then the totals.
[[nodiscard]] TUTTI_CORE_FUNCTION std::string summary(const Graph& g);

#if TUTTI_CORE_DEFINITIONS

TUTTI_CORE_FUNCTION std::string totals(const Graph& g) {
  const auto flops = static_cast<double>(forward_flops(g));
  return "total: " + std::to_string(parameter_count(g)) + " parameters, " + format_count(flops) + "FLOP forward, " +
         format_count(3 * flops) + "FLOP per trained image\n";
}

TUTTI_CORE_FUNCTION std::string summary(const Graph& g) {
  using detail::padded;
  std::string out = padded("layer", 26) + padded("op", 24) + padded("output", 20) + padded("parameters", 12) + "FLOP\n";
  for (const Node& n : g.nodes) {
    if (n.backward) continue;
    std::int64_t parameters = 0;
    for (ValueId v : n.inputs)
      if (g[v].storage == Storage::parameter) parameters += g[v].shape.numel();
    std::string what(name_of(n.op));
    if (const auto* bn = std::get_if<op::BatchNorm>(&n.op))
      what += std::string(bn->residual ? " + add" : "") + (bn->relu ? " + relu" : "");
    const std::int64_t flops = forward_flops(g, n);
    out += padded(n.name, 26) + padded(what, 24) + padded(to_string(g[n.outputs[0]]), 20) +
           padded(parameters > 0 ? std::to_string(parameters) : "", 12) +
           (flops > 0 ? format_count(static_cast<double>(flops)) : "") + '\n';
  }
  return out + totals(g);
}

#endif

}  // namespace tutti
