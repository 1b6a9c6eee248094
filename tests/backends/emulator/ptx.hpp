// SPDX-License-Identifier: MIT
#pragma once

namespace tutti::emulator {

// With TUTTI_EMULATOR=ptx, NVRTC compiles the kernels to PTX, and ptx.py translates the PTX to C++. The emulator then
// checks each memory access (accesses.hpp). A source that begins with ".version" is PTX in any case. More variables:
//   TUTTI_PTX_ARCH          the architecture for which NVRTC compiles; 90 if it is not set
//   TUTTI_EMULATOR_ERRORS   the errors of approximate instructions (ptx_approximate.hpp): none, up, down, or either,
//                           which is the default
//   TUTTI_EMULATOR_REPLACE  a file with two texts and a byte 1 between them; the second one replaces the first one in
//                           the sources that contain it
[[nodiscard]] bool from_ptx();

}  // namespace tutti::emulator
