// SPDX-License-Identifier: MIT
#pragma once

#include <future>
#include <memory>
#include <utility>

namespace tutti::cuda {

// What takes a while to make and is not wanted at once: made on a thread of its own, or, where there can be no further
// thread, when it is asked for. Asked by one thread. Whoever destroys it waits for the making to end.
template <class T>
class Ahead {
 public:
  [[nodiscard]] bool begun() const noexcept { return made_ != nullptr || making_.valid(); }
  // make() -> std::unique_ptr<T>; nothing happens where it is begun already.
  template <class F>
  void begin(F make) {
    if (!begun()) making_ = std::async(std::launch::async | std::launch::deferred, std::move(make));
  }
  // Waits for what was begun. What its making threw is thrown here; after that it can be begun anew.
  [[nodiscard]] T& get() {
    if (made_ == nullptr) made_ = making_.get();
    return *made_;
  }
  [[nodiscard]] const T& made() const noexcept { return *made_; }

 private:
  std::future<std::unique_ptr<T>> making_;
  std::unique_ptr<T> made_;
};

}  // namespace tutti::cuda
