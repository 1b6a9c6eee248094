// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/span_of.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::detail {

// State for readers that only access host memory: the original if it is in host memory, otherwise copies that can be
// put back.
class HostSpans {
 public:
  HostSpans(Memory& memory, std::vector<StateSpan> state) : m_(memory), there_(std::move(state)), here_(there_) {
    if (m_.on_host()) return;
    copies_.resize(there_.size());
    for (std::size_t i = 0; i < there_.size(); ++i) {
      copies_[i].resize(there_[i].bytes.size());
      if (!copies_[i].empty()) m_.copy_out(copies_[i].data(), there_[i].bytes.data(), copies_[i].size());
      here_[i].bytes = span_of(copies_[i]);
    }
  }
  [[nodiscard]] std::span<StateSpan> spans() noexcept { return span_of(here_); }
  // Copies the contents of the copies back to the state.
  void put_back() {
    for (std::size_t i = 0; i < copies_.size(); ++i)
      if (!copies_[i].empty()) m_.copy_in(there_[i].bytes.data(), copies_[i].data(), copies_[i].size());
    if (!copies_.empty()) m_.synchronise();
  }

 private:
  Memory& m_;
  std::vector<StateSpan> there_, here_;
  std::vector<std::vector<std::byte>> copies_;
};

}  // namespace tutti::detail
