// SPDX-License-Identifier: MIT
#include "tools/report/table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::report_tool {

void Table::add(std::span<const double> row) {
  drop_from(row.front());
  for (std::size_t c = 0; c < columns_.size(); ++c) columns_[c].push_back(row[c]);
}

void Table::drop_from(double first) {
  std::size_t n = rows();
  while (n > 0 && columns_.front()[n - 1] >= first) --n;
  for (auto& column : columns_) column.resize(n);
}

io::Json short_number(double v) {
  if (!std::isfinite(v)) return {};
  if (v == std::trunc(v) && std::abs(v) < 1e15) return static_cast<std::int64_t>(v);
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), v, std::chars_format::general, 6).ptr;
  double rounded = 0;
  std::from_chars(text.data(), end, rounded);
  return rounded;
}

std::pair<std::size_t, std::size_t> part_of_rows(std::size_t n, std::size_t part, std::size_t parts) {
  const auto at = [&](std::size_t p) { return n / parts * p + std::min(p, n % parts); };
  return {at(part), at(part + 1)};
}

io::Json reduce(const std::vector<double>& column, std::size_t most) {
  const std::size_t n = column.size(), parts = std::min(n, most);
  if (std::none_of(column.begin(), column.end(), [](double v) { return std::isfinite(v); })) return {};
  io::Json::Array mean, least, greatest;
  for (std::size_t p = 0; p < parts; ++p) {
    const auto [begin, end] = part_of_rows(n, p, parts);
    double sum = 0, low = none, high = none;
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(column[i])) continue;
      sum += column[i];
      low = std::fmin(low, column[i]);
      high = std::fmax(high, column[i]);
      ++count;
    }
    mean.push_back(count > 0 ? short_number(sum / static_cast<double>(count)) : io::Json());
    least.push_back(short_number(low));
    greatest.push_back(short_number(high));
  }
  io::Json reduced = io::Json::object({{"mean", std::move(mean)}});
  if (parts < n) reduced.set("min", std::move(least)).set("max", std::move(greatest));
  return reduced;
}

io::Json reduce(const Table& t, std::size_t most) {
  io::Json all = io::Json::object({{"rows", t.rows()}});
  for (const std::string_view name : t.names())
    if (io::Json column = reduce(t[name], most); !column.is_null()) all.set(name, std::move(column));
  return all;
}

}  // namespace tutti::report_tool
