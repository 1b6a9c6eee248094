// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Counts the 32-byte sectors of global memory for which the warps of kernels from PTX ask. A GPU moves memory in
// sectors, and an instruction of a warp asks for each sector that its lanes touch.
namespace tutti::emulator {

// The sectors of the launches of a kernel.
struct SectorCount {
  std::uint64_t requests = 0;  // instructions of warps
  std::uint64_t asked = 0;     // distinct sectors of each request, added up
  std::uint64_t floor = 0;     // distinct bytes of each request in whole sectors, added up: the least possible `asked`
  std::uint64_t compulsory = 0;  // distinct sectors of each launch, those that are read and those that are written
  SectorCount& operator+=(const SectorCount& o) {
    requests += o.requests;
    asked += o.asked;
    floor += o.floor;
    compulsory += o.compulsory;
    return *this;
  }
};

// The threads of a warp run one after another, so a request consists of the n-th executions of an instruction by each
// lane. If the lanes of a warp leave out different turns of a loop, these are turns that a GPU makes at different
// times; no kernel of tutti does so except pooling, at the edges of images.
class Sectors {
 public:
  static Sectors& instance();

  // Counts the launches that run from now on, until take().
  void begin() { counts_ = true; }
  // Returns the counts of each kernel since begin().
  [[nodiscard]] std::map<std::string, SectorCount> take();

  // Call from a launch.
  void begin_launch(const std::string& kernel) { kernel_ = kernel; }
  void access(std::uint64_t address, unsigned bytes, bool writes);
  void end_block();
  void end_launch();

 private:
  struct Access {
    std::uint32_t instruction, bytes;
    std::uint64_t address;
    bool writes;
  };
  using Warp = std::array<std::vector<Access>, 32>;
  struct Part {
    std::uint64_t request, begin, end;
    bool writes;
  };
  void count(const Warp& warp);

  bool counts_ = false;
  std::string kernel_;
  std::map<std::uint64_t, Warp> warps_;                // by the block and the number of the warp in it
  std::array<std::vector<std::uint64_t>, 2> touched_;  // sectors of the launch: read, written
  std::map<std::string, SectorCount> kernels_;
};

}  // namespace tutti::emulator
