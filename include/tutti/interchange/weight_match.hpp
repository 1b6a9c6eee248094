// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/interchange/load_weights_options.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/strategy/strategy.hpp>

// Compares the tensors of a file with those of a net.
namespace tutti {

namespace detail {

// Assigns the tensors of a file to those of a net. Changes no tensor before all of them are known to fit.
class WeightMatch {
 public:
  WeightMatch(const io::Safetensors& file, const std::vector<StateSpan>& model, const LoadWeightsOptions& o) {
    for (const std::string& name : o.may_be_missing)
      if (find(model, name) == nullptr)
        fail<UsageError>("load_weights", "names of the net's tensors among those that may be missing",
                         {"'", name, "'"});
    const bool skip = o.skip_classifier && other_classes(file, model, o);
    for (const StateSpan& s : model) {
      const io::SafetensorsEntry* e = file.find(s.name);
      if ((skip && s.name.starts_with(o.classifier)) || (e == nullptr && o.may_be_missing.contains(s.name)))
        skipped.push_back(s.name);
      else if (e == nullptr)
        add(missing_, s.name + " " + to_string(s.shape), "is missing");
      else if (!same(span_of(e->shape), s.shape))
        add(shapes_, s.name + " " + text(e->shape) + " for " + to_string(s.shape), "has another shape");
      else if (const auto t = e->type->dtype; t != DType::f32 && t != DType::f64 && t != DType::bf16)
        add(types_, s.name + " " + std::string(e->type->name), "has another type");
      else
        pairs.push_back({&s, e});
    }
    for (const io::SafetensorsEntry& e : file.entries()) {
      if (is_count(e, model, *this) || (skip && e.name.starts_with(o.classifier))) continue;
      if (find(model, e.name) == nullptr) add(extra_, e.name + " " + text(e.shape), "is not in the net");
    }
  }

  struct Pair {
    const StateSpan* to;
    const io::SafetensorsEntry* from;
  };
  std::vector<Pair> pairs;
  std::vector<std::string> skipped;
  std::int64_t batches = 0;  // number of batches that the batch norms in the file have seen

  // Returns everything that does not fit, or an empty text if everything fits.
  [[nodiscard]] std::string complaints() const {
    std::string all;
    for (const auto& [what, names] : {std::pair<const char*, const std::string&>{"missing: ", missing_},
                                      {"not in the net: ", extra_},
                                      {"of another shape: ", shapes_},
                                      {"of another type: ", types_}})
      if (!names.empty()) all += (all.empty() ? "" : "; ") + (what + names);
    return all;
  }
  // Returns the first difference, in the order of the net: "a tensor NAME SHAPE, which is missing".
  [[nodiscard]] const std::string& first_difference() const noexcept { return first_; }

 private:
  static const StateSpan* find(const std::vector<StateSpan>& model, std::string_view name) {
    for (const StateSpan& s : model)
      if (s.name == name) return &s;
    return nullptr;
  }
  // Returns whether a file's shape fits. [O, I] fits the weights of a 1x1 convolution, [O, I, 1, 1].
  static bool same(std::span<const std::int64_t> a, const Shape& b) {
    const auto dims = b.dims();
    const bool linear = a.size() == 2 && dims.size() == 4 && dims[2] == 1 && dims[3] == 1;
    return std::equal(a.begin(), a.end(), dims.begin(), linear ? dims.begin() + 2 : dims.end());
  }
  static std::string text(const std::vector<std::int64_t>& shape) {
    std::string r = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) r += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return r + "]";
  }
  void add(std::string& list, const std::string& item, const char* how) {
    if (first_.empty()) first_ = "a tensor " + item + ", which " + how;
    list += (list.empty() ? "" : ", ") + item;
  }

  // Returns whether the file's classifier fits except for the number of classes.
  static bool other_classes(const io::Safetensors& file, const std::vector<StateSpan>& model,
                            const LoadWeightsOptions& o) {
    bool any = false;
    for (const StateSpan& s : model) {
      if (!s.name.starts_with(o.classifier)) continue;
      any = true;
      const io::SafetensorsEntry* e = file.find(s.name);
      if (e == nullptr) continue;
      const auto &from = e->shape, to = std::vector<std::int64_t>(s.shape.dims().begin(), s.shape.dims().end());
      if (from.empty() || from.size() != to.size() || from[0] == to[0] ||
          !std::equal(from.begin() + 1, from.end(), to.begin() + 1))
        return false;
    }
    return any;
  }
  // Handles the number of batches that PyTorch stores next to the statistics of a batch norm. The largest one is used.
  static bool is_count(const io::SafetensorsEntry& e, const std::vector<StateSpan>& model, WeightMatch& match) {
    constexpr std::string_view count = "num_batches_tracked";
    if (!e.name.ends_with(count) || e.type->dtype != DType::i64 || e.bytes.size() != sizeof(std::int64_t)) return false;
    if (find(model, e.name.substr(0, e.name.size() - count.size()) + "running_mean") == nullptr) return false;
    std::int64_t value = 0;
    std::memcpy(&value, e.bytes.data(), sizeof value);
    match.batches = std::max(match.batches, value);
    return true;
  }

  std::string missing_, extra_, shapes_, types_, first_;
};

template <class To, class From>
void convert_values(std::span<std::byte> to, std::span<const std::byte> from) {
  for (std::size_t i = 0; i < to.size() / sizeof(To); ++i) {
    From v;
    std::memcpy(&v, from.data() + i * sizeof(From), sizeof v);
    const To w = static_cast<To>(v);
    std::memcpy(to.data() + i * sizeof(To), &w, sizeof w);
  }
}

template <class To>
void convert_values(std::span<std::byte> to, const io::SafetensorsEntry& from) {
  if (from.type->dtype == DType::f64)
    convert_values<To, double>(to, from.bytes);
  else if (from.type->dtype == DType::bf16)
    convert_values<To, bf16>(to, from.bytes);
  else
    convert_values<To, float>(to, from.bytes);
}

}  // namespace detail

}  // namespace tutti
