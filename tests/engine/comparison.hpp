// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/mixed_label.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/executor.hpp>

// Copies values between a backend's memory and the host, makes random weights and batches, and lists differences.
namespace tutti::testing {

struct Operand {
  std::vector<double> data;
  Shape shape;
  DType dtype = DType::f64;
};

inline std::vector<double> to_doubles(const TensorRef& t) {
  std::vector<double> r(static_cast<std::size_t>(t.shape.numel()));
  const auto copy = [&](auto v) {
    const auto* p = static_cast<const decltype(v)*>(t.data);
    for (std::size_t i = 0; i < r.size(); ++i) r[i] = static_cast<double>(p[i]);
  };
  switch (t.dtype) {
    case DType::f32:
      copy(float{});
      break;
    case DType::bf16:
      copy(bf16{});
      break;
    case DType::f16:
      copy(f16{});
      break;
    case DType::f64:
      copy(double{});
      break;
    case DType::u8:
      copy(std::uint8_t{});
      break;
    case DType::i32:
      copy(std::int32_t{});
      break;
    case DType::i64:
      copy(std::int64_t{});
      break;
  }
  return r;
}

// Returns the memory of a backend, or the argument itself if it is a memory.
template <class B>
Memory& memory_of(B& b) {
  if constexpr (std::is_base_of_v<Memory, B>)
    return b;
  else
    return b.memory();
}

// Copies n bytes at `from` from a backend's memory to the host.
template <class B>
std::vector<std::byte> fetch(B& backend, const void* from, std::size_t n) {
  std::vector<std::byte> host(n);
  memory_of(backend).copy_out(host.data(), from, n);
  return host;
}
template <class B>
std::vector<double> fetch(B& backend, const TensorRef& t) {
  auto host = fetch(backend, t.data, TensorDesc{t.shape, t.dtype}.bytes());
  return to_doubles({host.data(), t.dtype, t.shape});
}
// Changes `count` elements in a backend's memory: copies them to the host, calls f on them and copies them back.
template <class T, class B, class F>
void modify(B& backend, void* data, std::size_t count, F&& f) {
  Memory& memory = memory_of(backend);
  std::vector<T> host(count);
  memory.copy_out(host.data(), data, count * sizeof(T));
  f(host.data());
  memory.copy_in(data, host.data(), count * sizeof(T));
}
// A vector in a backend's memory; the destructor frees the memory.
template <class T>
class Held {
 public:
  template <class B>
  Held(B& backend, const std::vector<T>& v)
      : memory_(memory_of(backend)), count_(v.size()), buffer_(memory_, v.size() * sizeof(T)) {
    memory_.copy_in(buffer_.data(), v.data(), v.size() * sizeof(T));
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(buffer_.data()); }
  [[nodiscard]] std::vector<T> fetch() const {
    std::vector<T> v(count_);
    memory_.copy_out(v.data(), buffer_.data(), count_ * sizeof(T));
    return v;
  }

 private:
  Memory& memory_;
  std::size_t count_;
  Buffer buffer_;
};

// Returns the first `count` standard normal numbers of Rng(key, Purpose::init). Keeps them until the thread ends: the
// checks of one layer after the other begin with the same ones, and to draw them again was half of their time.
inline std::span<const double> normals(std::uint64_t key, std::size_t count) {
  struct Drawn {
    Rng rng;
    std::vector<double> values;
  };
  thread_local std::map<std::uint64_t, Drawn> drawn;
  Drawn& d = drawn.try_emplace(key, Drawn{Rng(key, Purpose::init), {}}).first->second;
  while (d.values.size() < count) d.values.push_back(d.rng.normal());
  return {d.values.data(), count};
}

// Fills all parameters and running statistics with numbers that depend only on the seed and the names of the tensors.
// The numbers are rounded to f32 so that every precision starts with the same values.
inline void randomize(Executor& e, std::uint64_t seed) {
  for (const Value& v : e.graph().values) {
    const bool state = v.storage == Storage::state;
    if (!state && v.storage != Storage::parameter) continue;
    const ArenaLayout& layout = state ? e.states() : e.parameters();
    const Slice& s = *layout.find(v.name);
    std::uint64_t h = seed;
    for (char c : v.name) h = h * 131 + static_cast<unsigned char>(c);
    Rng r(h, Purpose::init);
    const bool variance = v.name.find("running_var") != std::string::npos;
    const bool gamma = v.init.kind == Init::ones && !state;
    const double scale = s.shape.rank() > 1 ? std::sqrt(2 / static_cast<double>(s.shape.row_numel())) : 0.3;
    auto* data = static_cast<std::byte*>(state ? e.state_data() : e.parameter_data());
    std::vector<double> values(s.count);
    if (!variance && !gamma) {
      const std::span<const double> numbers = normals(h, s.count);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * numbers[i];
    } else {
      for (double& x : values) {
        x = variance ? 0.5 + r.uniform53() : scale * r.normal();
        if (gamma) x = ((r.next() & 1U) != 0 ? 1 : -1) * (0.5 + r.uniform53());
      }
    }
    for (double& x : values) x = static_cast<double>(static_cast<float>(x));
    const std::vector<float> floats(values.begin(), values.end());
    if (layout.dtype == DType::f64)
      e.backend().memory().copy_in(data + s.offset * sizeof(double), values.data(), s.count * sizeof(double));
    else
      e.backend().memory().copy_in(data + s.offset * sizeof(float), floats.data(), s.count * sizeof(float));
  }
  e.backend().memory().synchronise();
  e.parameters_changed();
}

struct Batch {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  std::int64_t rows = 0;
  std::vector<MixedLabel> mixed{};  // the labels in training, of a net that mixes them

  [[nodiscard]] BatchView view() const {
    return {images.data(), mixed.empty() ? labels.data() : &mixed[0].first, rows};
  }
  [[nodiscard]] BatchView evaluation() const { return {images.data(), labels.data(), rows}; }
};

inline Batch random_batch(const Graph& g, std::int64_t rows, std::uint64_t seed) {
  Batch b;
  b.rows = rows;
  b.images.resize(static_cast<std::size_t>(rows * g[g.images].shape.row_numel()));
  b.labels.resize(static_cast<std::size_t>(rows));
  Rng r(seed, Purpose::synthetic);
  for (auto& v : b.images) v = static_cast<std::uint8_t>(r.next());
  const auto classes = static_cast<std::uint32_t>(g[g.logits].shape[1]);
  for (auto& v : b.labels) v = static_cast<std::int32_t>(r.below(classes));
  if (g[g.labels].shape.rank() == 2)
    for (const std::int32_t v : b.labels)
      b.mixed.push_back({v, static_cast<std::int32_t>(r.below(classes)), std::min(1.0F, 1.2F * r.uniform())});
  return b;
}

// Compares values and lists the differences.
class Comparison {
 public:
  std::vector<std::string> failures;
  std::size_t compared = 0;
  double floor = 0;  // added to each tolerance: half of the type's smallest number

  // `what`: any argument of std::string's constructor. The function constructs the string only if the values differ,
  // because tests compare millions of values.
  template <class What>
  void value(const What& what, std::size_t i, double got, double expected, double tolerance) {
    ++compared;
    tolerance += floor;
    // Two NaNs count as equal, and so do two infinities of the same sign.
    if (std::fabs(got - expected) <= tolerance || got == expected || (std::isnan(got) && std::isnan(expected))) return;
    const std::string name(what);
    if (failures.size() < 20 && blamed_.insert(name).second)
      failures.push_back(name + " [" + std::to_string(i) + "]: expected " + std::to_string(expected) + ", got " +
                         std::to_string(got) + ", off by " + std::to_string(std::fabs(got - expected) / tolerance) +
                         " tolerances");
  }
  [[nodiscard]] std::string text() const {
    std::string r;
    for (const auto& f : failures) r += f + "\n";
    return r;
  }

 private:
  std::set<std::string> blamed_;
};

}  // namespace tutti::testing
