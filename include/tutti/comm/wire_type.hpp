// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti {

// The type in which floating-point sums are sent between processes that share no memory. same: unchanged; bf16 is added
// pair by pair in f32 and rounded after each addition. f32: bf16 is sent as f32, and rounded once at the end. bf16: f32
// is sent as bf16, which is half the bytes, with a rounding after each addition; only for sums of f32.
enum class WireType : std::uint8_t { same, f32, bf16 };

// Converts data, in pieces, to the type in which it is sent, and back.
class WireConversion {
 public:
  explicit WireConversion(WireType wire) : wire_(wire) {}
  [[nodiscard]] WireType type() const noexcept { return wire_; }

  // Calls f(type, piece) for each piece of at most `piece_bytes`, a multiple of a cache line. f combines it in place.
  template <class F>
  void run(DType t, ReduceOp op, std::span<std::byte> data, std::size_t piece_bytes, F&& f) {
    const DType w = on_wire(t, op);
    const std::size_t most = w == t ? piece_bytes : std::min(piece_bytes, converted_piece);
    for (std::size_t at = 0; at < data.size(); at += most) {
      const auto piece = data.subspan(at, std::min(most, data.size() - at));
      if (w == t)
        f(t, piece);
      else if (w == DType::bf16)
        converted<float, bf16>(w, piece, f);
      else
        converted<bf16, float>(w, piece, f);
    }
  }

 private:
  static constexpr std::size_t converted_piece = std::size_t{32} << 20;  // keeps the buffer small

  [[nodiscard]] DType on_wire(DType t, ReduceOp op) const noexcept {
    if (op == ReduceOp::sum && t == DType::f32 && wire_ == WireType::bf16) return DType::bf16;
    if (op == ReduceOp::sum && t == DType::bf16 && wire_ == WireType::f32) return DType::f32;
    return t;
  }
  template <class Mine, class Theirs, class F>
  void converted(DType w, std::span<std::byte> data, F&& f) {
    const std::size_t n = data.size() / sizeof(Mine);
    if (buffer_.size() < n * sizeof(Theirs)) buffer_.resize(n * sizeof(Theirs));
    auto* const mine = reinterpret_cast<Mine*>(data.data());
    auto* const theirs = reinterpret_cast<Theirs*>(buffer_.data());
    for (std::size_t i = 0; i < n; ++i) theirs[i] = static_cast<Theirs>(static_cast<float>(mine[i]));
    f(w, std::span(buffer_).first(n * sizeof(Theirs)));
    for (std::size_t i = 0; i < n; ++i) mine[i] = static_cast<Mine>(static_cast<float>(theirs[i]));
  }

  WireType wire_;
  std::vector<std::byte> buffer_;
};

}  // namespace tutti
