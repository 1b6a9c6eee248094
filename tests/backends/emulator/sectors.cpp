// SPDX-License-Identifier: MIT
#include "sectors.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "block.hpp"

namespace tutti::emulator {

namespace {
constexpr std::uint64_t sector = 32;

void keep_distinct(std::vector<std::uint64_t>& v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
}
}  // namespace

Sectors& Sectors::instance() {
  static Sectors s;
  return s;
}

std::map<std::string, SectorCount> Sectors::take() {
  counts_ = false;
  return std::exchange(kernels_, {});
}

void Sectors::access(std::uint64_t address, unsigned bytes, bool writes) {
  if (!counts_) return;
  const Machine& m = Block::instance().machine;
  const std::uint64_t block = std::uint64_t{m.block.y} * m.blocks.x + m.block.x;
  warps_[block << 5U | m.thread.x / 32][m.thread.x % 32].push_back({m.instruction, bytes, address, writes});
}

void Sectors::count(const Warp& warp) {
  std::vector<Part> parts;
  for (const std::vector<Access>& lane : warp) {
    std::unordered_map<std::uint32_t, std::uint32_t> executed;
    for (const Access& a : lane)
      parts.push_back(
          {std::uint64_t{a.instruction} << 32U | executed[a.instruction]++, a.address, a.address + a.bytes, a.writes});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return std::tie(a.request, a.begin) < std::tie(b.request, b.begin); });
  for (std::size_t i = 0; i < parts.size();) {
    SectorCount c{.requests = 1};
    const std::uint64_t request = parts[i].request;
    std::uint64_t bytes = 0, next = 0, next_sector = 0;  // the first byte and sector that are not counted yet
    for (; i < parts.size() && parts[i].request == request; ++i) {
      const Part& p = parts[i];
      bytes += p.end - std::min(p.end, std::max(p.begin, next));
      next = std::max(next, p.end);
      for (std::uint64_t s = std::max(p.begin / sector, next_sector); s * sector < p.end; ++s) {
        ++c.asked;
        next_sector = s + 1;
        touched_[p.writes ? 1 : 0].push_back(s);
      }
    }
    c.floor = (bytes + sector - 1) / sector;
    kernels_[kernel_] += c;
  }
}

void Sectors::end_block() {
  for (const auto& [number, warp] : warps_) count(warp);
  warps_.clear();
}

void Sectors::end_launch() {
  if (!counts_) return;
  end_block();
  for (auto& touched : touched_) {
    keep_distinct(touched);
    kernels_[kernel_].compulsory += touched.size();
    touched.clear();
  }
}

}  // namespace tutti::emulator
