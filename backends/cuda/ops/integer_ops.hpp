// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/engine/step/integer_block.hpp>

// The conversions of sums of logical ranks, a block of threads for each block of elements.
namespace tutti::cuda {

inline void run_to_integers(Launcher& l, const ToIntegers& c) {
  if (c.count == 0) return;
  l.update(UpdateKernel::to_integers, dim3(static_cast<unsigned>(c.count)), Launcher::block, c.blocks, c.from, c.to,
           c.plus, c.maxima);
}
inline void run_from_integers(Launcher& l, const FromIntegers& c) {
  if (c.count == 0) return;
  l.update(UpdateKernel::from_integers, dim3(static_cast<unsigned>(c.count)), Launcher::block, c.blocks, c.from, c.to);
}

}  // namespace tutti::cuda
