// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/tensor/tensor.hpp>

// Tensors in safetensors files, which PyTorch and other programs read and write.
namespace tutti {

// A tensor with its name in a file. The tensor must outlive this object.
struct NamedTensor {
  template <class T>
  NamedTensor(std::string n, const Tensor<T>& t)
      : name(std::move(n)), dtype(Tensor<T>::dtype), shape(t.shape()), bytes(std::as_bytes(t.view())) {}
  std::string name;
  DType dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

// save_tensors("w.safetensors", {{"weight", w}, {"bias", b}}): writes the file completely or not at all. Throws
// UsageError if a name is used twice.
TUTTI_CORE_FUNCTION void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors);

namespace detail {
// room: returns memory for the values of a tensor of this shape.
TUTTI_CORE_FUNCTION void load_tensor(const std::string& path, const std::string& name, DType dtype,
                                     const std::function<void*(const Shape&)>& room);
}  // namespace detail

// Loads a tensor. Throws DataError if the file does not exist or has no tensor of that name and type.
template <class T>
[[nodiscard]] Tensor<T> load_tensor(const std::string& path, const std::string& name) {
  Tensor<T> t;
  detail::load_tensor(path, name, dtype_of<T>, [&](const Shape& shape) {
    t = Tensor<T>(shape);
    return t.data();
  });
  return t;
}

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS

#include <cstring>

#include <tutti/core/error.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<io::TensorRecord> records;
  records.reserve(tensors.size());
  for (const NamedTensor& t : tensors) records.push_back({t.name, t.dtype, t.shape, t.bytes});
  io::save_safetensors(path, span_of(records));
}

TUTTI_CORE_FUNCTION void detail::load_tensor(const std::string& path, const std::string& name, DType dtype,
                                             const std::function<void*(const Shape&)>& room) {
  const auto file = io::Safetensors::open(path);
  const io::TensorRecord r = file.record(name);
  if (r.dtype != dtype) fail<DataError>({"tensor ", name, " of ", path}, name_of(dtype), name_of(r.dtype));
  void* const to = room(r.shape);
  if (!r.bytes.empty()) std::memcpy(to, r.bytes.data(), r.bytes.size());
}

}  // namespace tutti

#endif
