// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/onednn/shim.hpp>
#include <tutti/core/error.hpp>

namespace tutti::onednn {

// The arguments of a primitive: oneDNN's numbers, and layouts.
using Operands = std::vector<std::pair<int, Desc>>;

// One primitive, with memory objects for each worker, so that a run only sets pointers.
class Primitive {
 public:
  static constexpr std::size_t most_operands = 4;

  template <class PD>
  Primitive(const PD& pd, const Operands& operands, const dnnl::engine& e, int workers)
      : Primitive(dnnl::primitive(pd), pd.scratchpad_desc(), pd.impl_info_str(), operands, e, workers) {}

  Primitive(dnnl::primitive primitive, const Desc& scratch, std::string_view info, const Operands& operands,
            const dnnl::engine& e, int workers)
      : primitive_(std::move(primitive)), scratch_(scratch), info_(info), operands_(operands.size()) {
    if (operands_ > most_operands) fail<UsageError>("onednn", "at most 4 operands", operands_);
    for (int w = 0; w < workers; ++w) {
      Slots s{};
      for (std::size_t k = 0; k < operands_; ++k) {
        s.arguments[k] = operands[k].first;
        s.memory[k] = dnnl::memory(operands[k].second, e, DNNL_MEMORY_NONE);
      }
      s.scratch = dnnl::memory(scratch_, e, DNNL_MEMORY_NONE);
      s.stream = dnnl::stream(e);
      slots_.push_back(std::move(s));
    }
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_.get_size(); }
  [[nodiscard]] std::string_view info() const { return info_; }

  // data: addresses of the operands, in the order of the constructor's list.
  void run(int worker, std::span<void* const> data, void* scratch) {
    Slots& s = slots_[static_cast<std::size_t>(worker)];
    std::array<dnnl_exec_arg_t, most_operands + 1> args{};
    for (std::size_t k = 0; k < operands_; ++k) {
      s.memory[k].set_data_handle(data[k]);
      args[k] = {s.arguments[k], s.memory[k].get()};
    }
    s.scratch.set_data_handle(scratch);
    args[operands_] = {DNNL_ARG_SCRATCHPAD, s.scratch.get()};
    const auto status =
        dnnl_primitive_execute(primitive_.get(), s.stream.get(), static_cast<int>(operands_) + 1, args.data());
    if (status != dnnl_success)
      fail<DeviceError>("onednn", "a primitive that runs", {"status ", static_cast<int>(status)});
  }

 private:
  struct Slots {
    std::array<int, most_operands> arguments;
    std::array<dnnl::memory, most_operands> memory;
    dnnl::memory scratch;
    dnnl::stream stream;
  };
  dnnl::primitive primitive_;
  Desc scratch_;
  std::string info_;
  std::size_t operands_;
  std::vector<Slots> slots_;
};

}  // namespace tutti::onednn
