// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti {

// MPI has neither bf16 nor f16, so they are sent as 16-bit integers. Only MpiOperations interprets them.
[[nodiscard]] inline MPI_Datatype mpi_type(DType t) {
  switch (t) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::bf16:
    case DType::f16:
      return MPI_UINT16_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
  }
  fail("MPI", "a known element type", static_cast<int>(t));
}

// The MPI operations for each ReduceOp. For types that MPI has these are MPI's own operations, except the maximum of
// floating-point types, which may lose a NaN.
class MpiOperations {
 public:
  MpiOperations() {  // NOLINT(modernize-use-equals-default): it is not trivial where MPI is known
    create(&call<DType::bf16, ReduceOp::sum>, bf16_sum_);
    create(&call<DType::bf16, ReduceOp::max>, bf16_max_);
    create(&call<DType::f16, ReduceOp::sum>, f16_sum_);
    create(&call<DType::f16, ReduceOp::max>, f16_max_);
    create(&call<DType::f32, ReduceOp::max>, f32_max_);
    create(&call<DType::f64, ReduceOp::max>, f64_max_);
  }
  MpiOperations(const MpiOperations&) = delete;
  MpiOperations& operator=(const MpiOperations&) = delete;
  // Frees the operations. Call it before the end of MPI.
  void release() noexcept {
    for (MPI_Op* op : {&bf16_sum_, &bf16_max_, &f16_sum_, &f16_max_, &f32_max_, &f64_max_}) MPI_Op_free(op);
  }

  [[nodiscard]] MPI_Op operator()(DType t, ReduceOp c) const noexcept {
    const bool sum = c == ReduceOp::sum;
    if (t == DType::bf16) return sum ? bf16_sum_ : bf16_max_;
    if (t == DType::f16) return sum ? f16_sum_ : f16_max_;
    if (sum) return MPI_SUM;
    return t == DType::f32 ? f32_max_ : t == DType::f64 ? f64_max_ : MPI_MAX;
  }

 private:
  template <DType T, ReduceOp C>
  static void call(void* in, void* in_out, int* count, MPI_Datatype*) {  // NOLINT: the type that MPI asks for
    std::byte* const to[] = {static_cast<std::byte*>(in_out)};
    std::byte* const arrays[] = {static_cast<std::byte*>(in_out), static_cast<std::byte*>(in)};
    combine(T, C, arrays, to, 0, static_cast<std::size_t>(*count));
  }
  static void create(MPI_User_function* f, MPI_Op& op) {
    constexpr int commutative = 1;
    mpi_check(MPI_Op_create(f, commutative, &op), "MPI_Op_create");
  }

  MPI_Op bf16_sum_ = MPI_OP_NULL, bf16_max_ = MPI_OP_NULL, f16_sum_ = MPI_OP_NULL, f16_max_ = MPI_OP_NULL,
         f32_max_ = MPI_OP_NULL, f64_max_ = MPI_OP_NULL;
};

}  // namespace tutti
