// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/isa.hpp>

#include "engine/conformance.hpp"
#include "engine/op_cases.hpp"

// Tests for every backend. A backend's test file calls them with its class; suite/ compiles them once for all test
// programs.
namespace tutti::testing {

// Sets TUTTI_ISA for the backends that are made during its lifetime.
class IsaGuard {
 public:
  explicit IsaGuard(const char* isa) {
    if (const char* before = std::getenv("TUTTI_ISA")) before_ = std::make_unique<std::string>(before);
    setenv("TUTTI_ISA", isa, 1);
  }
  ~IsaGuard() {
    if (before_)
      setenv("TUTTI_ISA", before_->c_str(), 1);
    else
      unsetenv("TUTTI_ISA");
  }
  IsaGuard(const IsaGuard&) = delete;
  IsaGuard& operator=(const IsaGuard&) = delete;

 private:
  std::unique_ptr<std::string> before_;
};

// Returns the precisions in which a backend computes.
std::vector<DType> precisions(const Backend& b);
// The same without f64, which the fast backends lack.
std::vector<DType> fast_precisions(const Backend& b);
void check_no_f64(Backend& backend);

void check_case(Backend& backend, const OpCase& c, DType precision);
void check_convolutions(Backend& backend, const std::vector<ConvCase>& cases);
void check_other_ops(Backend& backend, DType precision);

Graph small_resnet(bool preactivation, std::int64_t width = 16, std::int64_t size = 32);
// Whole nets: fused batch norms with residuals, sums of gradients, shards of uneven rows.
void check_models(Backend& backend);

// Makes a backend with this number of threads.
using MakeBackend = std::function<std::unique_ptr<Backend>(int)>;
// The same seed gives the same bits: in every run, and with one, two or three threads.
void check_determinism(const MakeBackend& make, std::int64_t width = 16, std::int64_t size = 32);
// keep_all changes only the addresses of values: values that are otherwise in scratch are computed in the same way.
void check_keep_all(Backend& backend, std::int64_t width = 16, std::int64_t size = 32);

void check_updates(Backend& backend);

// The conversions of sums of logical ranks give the bits of the reference loops.
void check_integer_passes(Backend& backend);
// After fix_division(), the same bits with any number of threads.
void check_fixed_division(const MakeBackend& make, const std::vector<int>& threads);

void check_loss(Backend& backend);
// A NaN in the weights gives a NaN loss, through relu, gelu, pool and batch norm.
void check_nan_is_not_lost(Backend& backend);

// GELU alone, in every precision of the backend: known values, and exact ones.
void check_gelu(Backend& backend);

}  // namespace tutti::testing
