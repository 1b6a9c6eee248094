// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/shape.hpp>

namespace tutti::io {

// A named tensor in memory or in a mapped file. Does not own its bytes. Values are little-endian, in row-major order of
// `shape`.
struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;

  // Returns the values in place. Throws DataError for another type, or if the file did not align the values
  // (copy_values() always works).
  template <class T>
  [[nodiscard]] std::span<const T> values() const {
    check<T>();
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) != 0)
      fail<DataError>({"tensor ", name}, {"values aligned to ", alignof(T), " bytes"}, "unaligned values",
                      "use copy_values()");
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Returns a copy of the values, which may outlive the file and works for any alignment. Throws DataError for another
  // type.
  template <class T>
  [[nodiscard]] std::vector<T> copy_values() const {
    check<T>();
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  template <class T>
  void check() const {
    if (dtype != dtype_of<T>) fail<DataError>({"tensor ", name}, name_of(dtype_of<T>), name_of(dtype));
  }
};

// Returns a record for save_safetensors(). The values must outlive it. Throws ShapeError if the number of values does
// not match the shape.
template <class T>
[[nodiscard]] TensorRecord make_record(std::string name, const Shape& shape, std::span<const T> values) {
  if (static_cast<std::size_t>(shape.numel()) != values.size())
    fail<ShapeError>({"tensor ", name}, {shape.numel(), " values for ", to_string(shape)}, values.size());
  return {std::move(name), dtype_of<T>, shape, std::as_bytes(values)};
}

// Returns the record with that name. Throws DataError if it is missing. `where` names the file in the message.
[[nodiscard]] inline const TensorRecord& record_named(std::span<const TensorRecord> records, std::string_view name,
                                                      std::string_view where = "tensors") {
  for (const TensorRecord& r : records)
    if (r.name == name) return r;
  fail<DataError>(where, {"a tensor '", name, "'"}, "no tensor of that name");
}

}  // namespace tutti::io
