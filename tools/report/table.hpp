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

// Tables of numbers, and functions that reduce their rows to a few.
namespace tutti::report_tool {

inline constexpr double none = std::numeric_limits<double>::quiet_NaN();

// Columns of equal length; NaN if a row has no number. Rows are sorted by the first column.
class Table {
 public:
  explicit Table(std::span<const std::string_view> names)
      : names_(names.begin(), names.end()), columns_(names.size()) {}

  [[nodiscard]] std::size_t rows() const { return columns_.front().size(); }
  [[nodiscard]] const std::vector<std::string_view>& names() const { return names_; }
  // Returns a column. Throws std::out_of_range for an unknown name.
  [[nodiscard]] const std::vector<double>& operator[](std::string_view name) const { return columns_.at(place(name)); }

  // Adds a row with one number for each column. First drops the rows whose first number is not smaller, because they
  // were repeated.
  void add(std::span<const double> row);
  // Drops the rows with a first number of `first` or more.
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

// Returns a number with six digits, which is precise enough for a chart, or null if it is not finite.
[[nodiscard]] io::Json short_number(double v);

// Returns rows [first, second) of one of `parts` parts of n rows. The parts differ in size by at most one row.
[[nodiscard]] std::pair<std::size_t, std::size_t> part_of_rows(std::size_t n, std::size_t part, std::size_t parts);

// Reduces a column to at most `most` numbers: the mean of each part of the rows. For parts of several rows it adds
// minimum and maximum, so that no peak is lost. A part without numbers becomes null. A column without numbers becomes
// null.
[[nodiscard]] io::Json reduce(const std::vector<double>& column, std::size_t most);

// Reduces all columns that have a number.
[[nodiscard]] io::Json reduce(const Table& t, std::size_t most);

}  // namespace tutti::report_tool
