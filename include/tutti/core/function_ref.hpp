// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace tutti {

template <class Signature>
class FunctionRef;

// Refers to something that can be called, which must outlive it: a parameter of functions that call back.
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, A...>) FunctionRef(F&& f)
  noexcept  // NOLINT(google-explicit-constructor): callers pass a lambda
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))), call_([](void* object, A... a) -> R {
          return (*static_cast<std::add_pointer_t<std::remove_reference_t<F>>>(object))(std::forward<A>(a)...);
        }) {}

  R operator()(A... a) const { return call_(object_, std::forward<A>(a)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

}  // namespace tutti
