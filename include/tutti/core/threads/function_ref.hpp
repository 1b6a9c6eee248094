// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace tutti {

template <class Signature>
class FunctionRef;

// Refers to a callable object, which must outlive it. Use it for parameters that a function calls.
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  // Accepts a lambda directly.
  template <class F, std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>, int> = 0>
  FunctionRef(F&& f) noexcept  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))), call_([](void* object, A... a) -> R {
          return (*static_cast<std::add_pointer_t<std::remove_reference_t<F>>>(object))(std::forward<A>(a)...);
        }) {}

  R operator()(A... a) const { return call_(object_, std::forward<A>(a)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

}  // namespace tutti
