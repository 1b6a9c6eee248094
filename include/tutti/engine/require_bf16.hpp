// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>

namespace tutti {

// Throws DeviceError if the backend does not compute in bf16 on this processor.
inline void require_bf16(const Backend& b) {
  if (b.computes_in(DType::bf16)) return;
  fail<DeviceError>(b.name(), "a processor for which this backend has kernels for bf16", b.description(),
                    "use --precision f32, or --backend eigen (TUTTI_BACKEND=eigen), which computes in bf16 on every "
                    "processor");
}

}  // namespace tutti
