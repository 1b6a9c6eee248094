// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/models/resnet.hpp>

// Stochastic depth of ResNets, --drop-path.
namespace tutti::trainer {

template <class R>
concept DropsPaths = requires(R r) {
  r.drop_path;
};

// Whether the nets have it.
inline constexpr bool has_drop_path = DropsPaths<models::ResnetOptions>;

// Sets its rate in a net's options, if these have one.
template <class R>
void set_drop_path(R& r, double rate) {
  if constexpr (DropsPaths<R>) r.drop_path = rate;
}

}  // namespace tutti::trainer
