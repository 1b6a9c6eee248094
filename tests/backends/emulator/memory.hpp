// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace tutti::emulator {

// Ends the program: what it did would be wrong on a GPU too.
[[noreturn]] void give_up(const std::string& why);

// Memory with pages around it that nobody may touch. Its end lies at one of them, to 255 bytes.
class GuardedMemory {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes);
  // False where it was not allocated here. Gives up where somebody wrote beside it.
  bool release(void* p);
  // Whether p points into some of it.
  [[nodiscard]] bool holds(const void* p) const;
  // Of the piece that begins at p; 0 where there is none.
  [[nodiscard]] std::size_t size_of(const void* p) const;
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  struct Piece {
    std::size_t bytes, mapped;
    char* map;
  };
  std::map<const char*, Piece> pieces_;
  std::size_t used_ = 0;
};

}  // namespace tutti::emulator
