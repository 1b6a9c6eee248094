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

// Tests for every backend. The test file of a backend calls these functions with the backend's class. The files in
// suite/ are compiled once for all test programs.
namespace tutti::testing {

// Sets TUTTI_ISA during its lifetime: backends made in this time use that instruction set.
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
// Returns the precisions of the backend except f64, which the fast backends do not have.
std::vector<DType> fast_precisions(const Backend& b);
void check_no_f64(Backend& backend);

void check_case(Backend& backend, const OpCase& c, DType precision);
void check_convolutions(Backend& backend, const std::vector<ConvCase>& cases);
void check_other_ops(Backend& backend, DType precision);

Graph small_resnet(bool preactivation, std::int64_t width = 16, std::int64_t size = 32);
// A net of convolutions in groups, factors of channels, layer norm and dropouts, for backends of the processor.
Graph small_grouped_net(std::int64_t size);
// Checks whole nets: fused batch norms with residuals, sums of gradients, and shards of unequal numbers of rows.
void check_models(Backend& backend);

// Makes a backend with this number of threads.
using MakeBackend = std::function<std::unique_ptr<Backend>(int)>;
// Checks that the same seed gives the same bits in every run, and with one, two and three threads.
void check_determinism(const MakeBackend& make, std::int64_t width = 16, std::int64_t size = 32);
// Checks that keep_all changes only the addresses of values, and not the way in which values are computed that are in
// scratch memory without keep_all.
void check_keep_all(Backend& backend, std::int64_t width = 16, std::int64_t size = 32);

void check_updates(Backend& backend);

// The conversions of sums of logical ranks give the bits of the reference loops.
void check_integer_passes(Backend& backend);
// After fix_division(), the same bits with any number of threads.
void check_fixed_division(const MakeBackend& make, const std::vector<int>& threads);

void check_loss(Backend& backend);
// Checks losses with mixed labels, and binary cross entropy: known values, and bad labels. For backends of the
// processor.
void check_mixed_loss(Backend& backend);
// Checks that a NaN in the weights gives a NaN loss: the ops relu, gelu, pool and batch norm pass it on. And that max
// pooling passes on a single NaN, wherever it is in a window.
void check_nan_is_not_lost(Backend& backend);

// Checks GELU alone, in every precision of the backend: values known to 30 digits, and large arguments with exact
// results.
void check_gelu(Backend& backend);

}  // namespace tutti::testing
