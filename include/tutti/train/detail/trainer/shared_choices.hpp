// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti::detail {

// Gives the authority's choices of kernels (Backend::choices) to all ranks, in the course of Trainer::synchronise().
// Only with a strategy that reads the memory of devices: then every rank has a device, and jobs on the processor
// exchange nothing. Only the authority's text decides whether there is a second transfer, so all ranks take part in the
// same transfers, whatever their own backends have chosen.
class SharedChoices {
 public:
  SharedChoices(Backend& b, AnyStrategy& s) : b_(b), s_(s), shares_(s.reads_device_memory() && s.size() > 1) {
    if (!shares_) return;
    text_ = b_.choices();
    length_ = text_.size();
  }
  SharedChoices(const SharedChoices&) = delete;
  SharedChoices& operator=(const SharedChoices&) = delete;

  // Adds the piece in which the authority's length arrives to those of the first transfer. This object must outlive it.
  void add_length(std::vector<StateSpan>& pieces) {
    if (shares_)
      pieces.push_back({"length of choices", DType::i64, {1}, std::as_writable_bytes(std::span(&length_, 1))});
  }
  // A collective call after the first transfer, before its state is put into use: if a rank is lost during the call,
  // the state must be as before. Throws DataError if the length cannot be right.
  void receive() {
    if (!shares_ || length_ == 0) return;
    if (length_ > most) fail<DataError>("choices of kernels", {"at most ", most, " bytes"}, length_);
    text_.resize(length_);
    StateSpan piece{"choices of kernels",
                    DType::u8,
                    {static_cast<std::int64_t>(length_)},
                    std::as_writable_bytes(std::span(text_.data(), text_.size()))};
    s_.synchronise(std::span(&piece, 1));
  }
  // Puts the received choices into use. The executor is the backend's only one.
  void take(Executor& e) {
    if (shares_ && length_ > 0) e.prepare_again(b_.take_choices(text_));
  }

 private:
  // Plans of kernels that are compiled at run time contain their machine code.
  static constexpr std::uint64_t most = std::uint64_t{1} << 30;

  Backend& b_;
  AnyStrategy& s_;
  bool shares_;
  std::string text_;
  std::uint64_t length_ = 0;
};

}  // namespace tutti::detail
