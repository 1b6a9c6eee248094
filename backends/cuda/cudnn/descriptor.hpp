// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/api/cudnn.hpp>
#include <tutti/backends/cuda/cudnn/attributes.hpp>
#include <tutti/core/error.hpp>

// cuDNN's backend descriptors with ownership and types. Needs neither a device nor a driver.
namespace tutti::cuda::cudnn {

// A refusal by cuDNN. Its status distinguishes unsupported requests from errors.
class CudnnError : public DeviceError {
 public:
  CudnnError(const std::string& message, cudnnStatus_t status) : DeviceError(message), status_(status) {}
  [[nodiscard]] cudnnStatus_t status() const noexcept { return status_; }
  [[nodiscard]] bool unsupported() const noexcept {
    return CUDNN_STATUS_CATEGORY(static_cast<int>(status_)) == CUDNN_STATUS_NOT_SUPPORTED;
  }

 private:
  cudnnStatus_t status_;
};

// Throws CudnnError if a call failed. expected: the expected result. The message contains cuDNN's explanation, if there
// is one, of the calling thread's last failure.
inline void check(cudnnStatus_t status, std::string_view where, std::string_view expected, std::string_view hint = {}) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size() - 1);
  std::string got = cudnnGetErrorString(status);
  if (text[0] != '\0') got.append(" (").append(text.data()).append(")");
  throw CudnnError(error_message(std::string("cudnn ").append(where), expected, got, hint), status);
}

// Returns a version as text, for example "9.19.0" for 91900.
[[nodiscard]] inline std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// One backend descriptor. Its name is for messages, for example "tensor x" or "operation conv2d".
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(cudnnBackendDescriptorType_t type, std::string name) : name_(std::move(name)) {
    check(cudnnBackendCreateDescriptor(type, &raw_), name_, "a descriptor");
  }
  Descriptor(Descriptor&& o) noexcept : raw_(std::exchange(o.raw_, nullptr)), name_(std::move(o.name_)) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    std::swap(raw_, o.raw_);
    std::swap(name_, o.name_);
    return *this;
  }
  ~Descriptor() {
    if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
  }

  [[nodiscard]] RawDescriptor raw() const noexcept { return raw_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  explicit operator bool() const noexcept { return raw_ != nullptr; }

  template <class T>
  Descriptor& set(const Attribute<T>& a, std::span<const T> values) {
    check(cudnnBackendSetAttribute(raw_, a.id, type_tag<T>, static_cast<std::int64_t>(values.size()), values.data()),
          name_, std::string(a.name) + " to be taken");
    return *this;
  }
  template <class T>
  Descriptor& set(const Attribute<T>& a, const std::vector<T>& values) {
    return set(a, std::span<const T>(values));
  }
  template <class T, std::size_t N>
  Descriptor& set(const Attribute<T>& a, const std::array<T, N>& values) {
    return set(a, std::span<const T>(values));
  }
  template <class T>
  Descriptor& set(const Attribute<T>& a, const std::type_identity_t<T>& value) {
    return set(a, std::span<const T>(&value, 1));
  }
  Descriptor& set(const Attribute<RawDescriptor>& a, const Descriptor& d) {
    if (!d) fail<DeviceError>({"cudnn ", name_}, {"a descriptor for ", a.name}, "none");
    return set(a, d.raw());
  }
  Descriptor& finalize(std::string_view hint = {}) {
    check(cudnnBackendFinalize(raw_), name_, "a complete and supported descriptor", hint);
    return *this;
  }

  // Returns the number of values of an attribute.
  template <class T>
  [[nodiscard]] std::int64_t count(const Attribute<T>& a) const {
    std::int64_t n = 0;
    check(cudnnBackendGetAttribute(raw_, a.id, type_tag<T>, 0, &n, nullptr), name_, std::string(a.name));
    return n;
  }
  template <class T>
  [[nodiscard]] T get(const Attribute<T>& a) const {
    T value{};
    std::int64_t n = 0;
    check(cudnnBackendGetAttribute(raw_, a.id, type_tag<T>, 1, &n, &value), name_, std::string(a.name));
    if (n != 1) fail<DeviceError>({"cudnn ", name_}, {"one value of ", a.name}, n);
    return value;
  }
  // Returns at most `most` values: some attributes do not report their number of values.
  template <class T>
  [[nodiscard]] std::vector<T> get_some(const Attribute<T>& a, std::int64_t most) const {
    std::vector<T> values(static_cast<std::size_t>(most));
    std::int64_t n = 0;
    check(cudnnBackendGetAttribute(raw_, a.id, type_tag<T>, most, &n, values.data()), name_, std::string(a.name));
    values.resize(static_cast<std::size_t>(n < most ? n : most));
    return values;
  }
  [[nodiscard]] std::string get_text(const Attribute<char>& a) const {
    const std::vector<char> text = get_some(a, count(a));
    // Some versions count the terminating zero.
    std::string result(text.begin(), text.end());
    while (!result.empty() && result.back() == '\0') result.pop_back();
    return result;
  }
  // Fills an existing descriptor.
  void get_into(const Attribute<RawDescriptor>& a, Descriptor& to) const {
    std::int64_t n = 0;
    RawDescriptor raw = to.raw();
    check(cudnnBackendGetAttribute(raw_, a.id, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &raw), name_, std::string(a.name));
  }
  // Fills at most `to.size()` existing descriptors. Returns the number of filled descriptors.
  [[nodiscard]] std::size_t get_into(const Attribute<RawDescriptor>& a, std::span<Descriptor> to) const {
    std::vector<RawDescriptor> raw;
    raw.reserve(to.size());
    for (const Descriptor& d : to) raw.push_back(d.raw());
    std::int64_t n = 0;
    check(cudnnBackendGetAttribute(raw_, a.id, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()), &n,
                                   raw.data()),
          name_, std::string(a.name));
    return std::min(static_cast<std::size_t>(n), to.size());
  }

 private:
  RawDescriptor raw_ = nullptr;
  std::string name_;
};

}  // namespace tutti::cuda::cudnn
