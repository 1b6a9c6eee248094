// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace tutti::emulator {

// Ends the program, because its behaviour would be wrong on a GPU too.
[[noreturn]] void give_up(const std::string& why);

// Memory surrounded by inaccessible pages. Its end is within 255 bytes of such a page.
class GuardedMemory {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes);
  // Returns false if p was not allocated by this object. Ends the program if bytes next to the data were written.
  bool release(void* p);
  // Returns true if p points into an allocation.
  [[nodiscard]] bool holds(const void* p) const;
  // Returns the size of the allocation that begins at p, or 0.
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
