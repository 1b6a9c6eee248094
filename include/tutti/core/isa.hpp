// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>

// Instruction sets of tutti's own kernels. Each kernel is one always-inline body. For each instruction set, a function
// with a target attribute inlines the body; the best function is chosen at run time. So a program compiled for plain
// x86-64 runs the same code at the same speed as one compiled for the machine on which it runs. On ARM, NEON is a part
// of the baseline, so plain kernels have one function for both; neon has kernels of its own where they are faster.
namespace tutti::cpu {

enum class Isa : std::uint8_t { baseline, neon, neon_bf16, avx2, avx512, avx512_bf16 };

[[nodiscard]] constexpr std::string_view name_of(Isa i) noexcept {
  switch (i) {
    case Isa::baseline:
      return "baseline";
    case Isa::neon:
      return "neon";
    case Isa::neon_bf16:
      return "neon_bf16";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "?";
}

// The instruction sets of this kind of processor, from the smallest one.
inline constexpr Isa isas[] = {
    Isa::baseline,
#if defined(__x86_64__)
    Isa::avx2,
    Isa::avx512,
    Isa::avx512_bf16,
#elif defined(__aarch64__)
    Isa::neon,
    Isa::neon_bf16,
#endif
};

// Returns whether it is an instruction set of ARM beyond the baseline. A constant on other processors.
[[nodiscard]] constexpr bool is_neon([[maybe_unused]] Isa i) noexcept {
#if defined(__aarch64__)
  return i != Isa::baseline;
#else
  return false;
#endif
}
// Returns whether it has instructions for products of bf16.
[[nodiscard]] constexpr bool has_bf16(Isa i) noexcept { return i == Isa::avx512_bf16 || i == Isa::neon_bf16; }

// Returns the instruction set of this processor, or a lower one if TUTTI_ISA=baseline|avx2|avx512, or baseline|neon on
// ARM, requests it. Throws UsageError if TUTTI_ISA names no instruction set, or one that this processor lacks.
[[nodiscard]] inline Isa detect_isa() {
  Isa isa = Isa::baseline;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa = Isa::avx2;
  if (isa == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    isa = __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
#elif defined(__aarch64__)
  isa = Isa::neon;
#if defined(__linux__)
#ifdef HWCAP2_BF16
  constexpr unsigned long bf16_bit = HWCAP2_BF16;
#else
  constexpr unsigned long bf16_bit = 1UL << 14;  // older headers do not define it
#endif
  if ((::getauxval(AT_HWCAP2) & bf16_bit) != 0) isa = Isa::neon_bf16;
#endif
#endif
  const char* wanted = std::getenv("TUTTI_ISA");
  if (wanted == nullptr || *wanted == '\0') return isa;
  std::string known;
  for (Isa lower : isas) {
    if (lower > isa) break;
    if (name_of(lower) == wanted) return lower;
    known += (known.empty() ? "" : ", ") + std::string(name_of(lower));
  }
  // Written in this way to avoid a warning of GCC 12 about std::string's own code.
  fail<UsageError>("environment TUTTI_ISA", {"an instruction set of this processor: ", known}, {"'", wanted, "'"});
}

}  // namespace tutti::cpu

// Written before a loop with independent iterations. Empty for Clang, which checks once for each loop at run time
// whether its iterations are independent. With this promise, Clang would warn about every loop that it does not
// vectorise, which are all loops below -O2.
#if defined(__clang__)
#define TUTTI_INDEPENDENT
#else
#define TUTTI_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TUTTI_INLINE inline __attribute__((always_inline))
#define TUTTI_LAMBDA __attribute__((always_inline))
#else
#error "tutti's CPU kernels need GCC or Clang"
#endif

#if defined(__x86_64__)
#if defined(__clang__)
#define TUTTI_WIDE  // Clang does not know this option and would ignore the whole list
#else
#define TUTTI_WIDE ",prefer-vector-width=512"
#endif
#define TUTTI_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define TUTTI_TARGET_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq" TUTTI_WIDE)))
#define TUTTI_TARGET_AVX512_BF16 \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16" TUTTI_WIDE)))
#endif

// Processors that have kernels beyond the baseline.
#if defined(__x86_64__) || defined(__aarch64__)
#define TUTTI_HAS_WIDE_KERNELS
#endif

// Calls body<isa>(args...) compiled for `isa`. The body must be TUTTI_INLINE. TUTTI_DEFINE_READER_DISPATCH: for kernels
// without bf16, or that only read bf16. They do not benefit from the bf16 instructions and share the code of avx512.
#define TUTTI_DEFINE_DISPATCH(name, body) TUTTI_DEFINE_DISPATCH_OF(name, body, true)
#define TUTTI_DEFINE_READER_DISPATCH(name, body) TUTTI_DEFINE_DISPATCH_OF(name, body, false)
#if defined(__x86_64__)
#define TUTTI_DEFINE_DISPATCH_OF(name, body, writes)                       \
  template <class... P>                                                    \
  struct name##_dispatch {                                                 \
    template <class... A>                                                  \
    static void baseline(A... a) {                                         \
      body<::tutti::cpu::Isa::baseline, P...>(a...);                       \
    }                                                                      \
    template <class... A>                                                  \
    TUTTI_TARGET_AVX2 static void avx2(A... a) {                           \
      body<::tutti::cpu::Isa::avx2, P...>(a...);                           \
    }                                                                      \
    template <class... A>                                                  \
    TUTTI_TARGET_AVX512 static void avx512(A... a) {                       \
      body<::tutti::cpu::Isa::avx512, P...>(a...);                         \
    }                                                                      \
    template <class... A>                                                  \
    TUTTI_TARGET_AVX512_BF16 static void avx512_bf16(A... a) {             \
      body<::tutti::cpu::Isa::avx512_bf16, P...>(a...);                    \
    }                                                                      \
  };                                                                       \
  template <class... P, class... A>                                        \
  void name(::tutti::cpu::Isa isa, A... a) {                               \
    switch (isa) {                                                         \
      case ::tutti::cpu::Isa::avx2:                                        \
        return name##_dispatch<P...>::template avx2<A...>(a...);           \
      case ::tutti::cpu::Isa::avx512_bf16:                                 \
        if constexpr (writes && (std::is_same_v<P, ::tutti::bf16> || ...)) \
          return name##_dispatch<P...>::template avx512_bf16<A...>(a...);  \
        [[fallthrough]];                                                   \
      case ::tutti::cpu::Isa::avx512:                                      \
        return name##_dispatch<P...>::template avx512<A...>(a...);         \
      default:                                                             \
        return name##_dispatch<P...>::template baseline<A...>(a...);       \
    }                                                                      \
  }                                                                        \
  static_assert(true)
#elif defined(__aarch64__)
#define TUTTI_DEFINE_DISPATCH_OF(name, body, writes)                                                         \
  template <class... P>                                                                                      \
  struct name##_dispatch {                                                                                   \
    template <class... A>                                                                                    \
    static void baseline(A... a) {                                                                           \
      body<::tutti::cpu::Isa::baseline, P...>(a...);                                                         \
    }                                                                                                        \
    template <class... A>                                                                                    \
    static void neon_bf16(A... a) {                                                                          \
      body<::tutti::cpu::Isa::neon_bf16, P...>(a...);                                                        \
    }                                                                                                        \
  };                                                                                                         \
  template <class... P, class... A>                                                                          \
  void name(::tutti::cpu::Isa isa, A... a) {                                                                 \
    if constexpr (writes && (std::is_same_v<P, ::tutti::bf16> || ...))                                       \
      if (isa == ::tutti::cpu::Isa::neon_bf16) return name##_dispatch<P...>::template neon_bf16<A...>(a...); \
    name##_dispatch<P...>::template baseline<A...>(a...);                                                    \
  }                                                                                                          \
  static_assert(true)
#else
#define TUTTI_DEFINE_DISPATCH_OF(name, body, writes) \
  template <class... P, class... A>                  \
  void name(::tutti::cpu::Isa, A... a) {             \
    body<::tutti::cpu::Isa::baseline, P...>(a...);   \
  }                                                  \
  static_assert(true)
#endif
