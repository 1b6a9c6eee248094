// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/isa.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>

namespace tutti::cpu::amx::detail {

#ifdef TUTTI_HAS_AMX
// The tile registers of this thread, while it lives. Kernels are templates of such a unit, so that tests run them with
// one in memory on any processor.
struct RegisterTiles {
  template <int R>
  TUTTI_INLINE void zero() {
    amx::zero_tile<R>();
  }
  template <int R>
  TUTTI_INLINE void load(const void* from, std::int64_t bytes) {
    amx::load_tile<R>(static_cast<const float*>(from), bytes);
  }
  template <int R>
  TUTTI_INLINE void store(float* to, std::int64_t bytes) {
    amx::store_tile<R>(to, bytes);
  }
  template <int Sum, int A, int B>
  TUTTI_INLINE void multiply_add() {
    amx::multiply_tiles<Sum, A, B>();
  }
  Tiles tiles;
};
#endif

}  // namespace tutti::cpu::amx::detail
