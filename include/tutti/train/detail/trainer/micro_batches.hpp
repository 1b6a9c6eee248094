// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti {

// Cuts rows into micro-batches whose sizes differ by at most one.
class MicroBatches {
 public:
  // most: the rows of the largest micro-batch that is allowed; 0: one micro-batch.
  MicroBatches(std::int64_t rows, std::int64_t most)
      : rows_(rows), count_(most > 0 ? std::max<std::int64_t>((rows + most - 1) / most, 1) : 1) {}

  // Returns their number, which is 1 if there are no rows.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  // Returns the first row of micro-batch i, 0 <= i <= count().
  [[nodiscard]] std::int64_t begin(std::int64_t i) const noexcept { return rows_ * i / count_; }
  // Returns the rows of the largest and of the smallest one. There are no other sizes.
  [[nodiscard]] std::int64_t largest() const noexcept { return (rows_ + count_ - 1) / count_; }
  [[nodiscard]] std::int64_t smallest() const noexcept { return rows_ / count_; }

 private:
  std::int64_t rows_, count_;
};

}  // namespace tutti
