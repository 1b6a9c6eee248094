// SPDX-License-Identifier: MIT
#pragma once

#include <future>
#include <memory>
#include <utility>

namespace tutti::cuda {

// Constructs an object in advance, on a thread of its own. For objects that take long to construct and are not needed
// at once. If no thread can be started, get() constructs the object. All calls must come from one thread. The
// destructor waits until the construction has ended.
template <class T>
class AsyncInit {
 public:
  [[nodiscard]] bool begun() const noexcept { return made_ != nullptr || making_.valid(); }
  // Starts make(), which returns std::unique_ptr<T>. Has no effect if the construction has already begun.
  template <class F>
  void begin(F make) {
    if (!begun()) making_ = std::async(std::launch::async | std::launch::deferred, std::move(make));
  }
  // Blocks until the object is constructed and returns it. Rethrows the exception of make(); begin() may be called
  // again after it.
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
