// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/io/json/json_value.hpp>

// Rows of numbers, and how many of them become few.
namespace tutti::report_tool {

inline constexpr double none = std::numeric_limits<double>::quiet_NaN();

// Columns of equal length; NaN where a row has no number. The rows are in the order of the first column.
class Table {
 public:
  explicit Table(std::span<const std::string_view> names)
      : names_(names.begin(), names.end()), columns_(names.size()) {}

  [[nodiscard]] std::size_t rows() const { return columns_.front().size(); }
  [[nodiscard]] const std::vector<std::string_view>& names() const { return names_; }
  // Throws std::out_of_range.
  [[nodiscard]] const std::vector<double>& operator[](std::string_view name) const { return columns_.at(place(name)); }

  // A row of as many numbers as there are columns. Rows from its first number on were done again, and go.
  void add(std::span<const double> row) {
    drop_from(row.front());
    for (std::size_t c = 0; c < columns_.size(); ++c) columns_[c].push_back(row[c]);
  }
  // Rows whose first number is `first` or more.
  void drop_from(double first) {
    std::size_t n = rows();
    while (n > 0 && columns_.front()[n - 1] >= first) --n;
    for (auto& column : columns_) column.resize(n);
  }
  void clear() {
    for (auto& column : columns_) column.clear();
  }

 private:
  [[nodiscard]] std::size_t place(std::string_view name) const {
    return static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }

  std::vector<std::string_view> names_;
  std::vector<std::vector<double>> columns_;
};

// Six digits, which no eye tells from all of them; null for what is no number.
[[nodiscard]] inline io::Json short_number(double v) {
  if (!std::isfinite(v)) return {};
  if (v == std::trunc(v) && std::abs(v) < 1e15) return static_cast<std::int64_t>(v);
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), v, std::chars_format::general, 6).ptr;
  double rounded = 0;
  std::from_chars(text.data(), end, rounded);
  return rounded;
}

// One of `parts` parts of n rows that differ by one row at most: [first, second).
[[nodiscard]] inline std::pair<std::size_t, std::size_t> part_of_rows(std::size_t n, std::size_t part,
                                                                      std::size_t parts) {
  const auto at = [&](std::size_t p) { return n / parts * p + std::min(p, n % parts); };
  return {at(part), at(part + 1)};
}

// A column in at most `most` numbers: the mean of each part of the rows, and where parts are of several rows their
// least and greatest, so that no peak is lost. Null where a part has no number. Null at all where the column has none.
[[nodiscard]] inline io::Json reduce(const std::vector<double>& column, std::size_t most) {
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

// All columns that have a number.
[[nodiscard]] inline io::Json reduce(const Table& t, std::size_t most) {
  io::Json all = io::Json::object({{"rows", t.rows()}});
  for (const std::string_view name : t.names())
    if (io::Json column = reduce(t[name], most); !column.is_null()) all.set(name, std::move(column));
  return all;
}

}  // namespace tutti::report_tool
