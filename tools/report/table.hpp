// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
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
  void add(std::span<const double> row);
  // Rows whose first number is `first` or more.
  void drop_from(double first);
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
[[nodiscard]] io::Json short_number(double v);

// One of `parts` parts of n rows that differ by one row at most: [first, second).
[[nodiscard]] std::pair<std::size_t, std::size_t> part_of_rows(std::size_t n, std::size_t part, std::size_t parts);

// A column in at most `most` numbers: the mean of each part of the rows, and where parts are of several rows their
// least and greatest, so that no peak is lost. Null where a part has no number. Null at all where the column has none.
[[nodiscard]] io::Json reduce(const std::vector<double>& column, std::size_t most);

// All columns that have a number.
[[nodiscard]] io::Json reduce(const Table& t, std::size_t most);

}  // namespace tutti::report_tool
