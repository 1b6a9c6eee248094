// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <tutti/backends/cuda/ops/norm_choice.hpp>
#include <tutti/backends/cuda/ops/norm_ops.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>

// The two batch norms of y = relu(norm(x) + norm(s)): together by the kernels of kernels/norm_shortcut.hpp, or
// separately.
namespace tutti::cuda {

// How the two norms of one shape run. They run separately if the L2 cache holds the data of the shortcut's norm, so
// that it runs in one kernel, or if the library's kernels for both are faster; and also with logical ranks, whose bits
// must not depend on the GPU. In f32 the gradients have separate kernels: the sums of the two norms have different
// tiles.
struct ShortcutChoice {
  bool forward = false, backward = false;     // whether the norms run together
  std::shared_ptr<void> of_shortcut, adding;  // the library's kernels if they run separately; null: tutti's
};

// The choices of a backend. Norms of equal shapes and types share a choice.
class ShortcutChoices {
 public:
  [[nodiscard]] std::shared_ptr<ShortcutChoice> of(const TensorDesc& x) {
    auto& choice = choices_[std::string(name_of(x.dtype)) + to_string(x.shape)];
    if (choice == nullptr) choice = std::make_shared<ShortcutChoice>();
    return choice;
  }

 private:
  std::map<std::string, std::shared_ptr<ShortcutChoice>> choices_;
};

template <class O>
concept ShortcutOp = std::same_as<O, BatchNormOfShortcut> || std::same_as<O, BatchNormAddShortcut> ||
    std::same_as<O, BatchNormBackwardAddShortcut> || std::same_as<O, BatchNormBackwardOfShortcut>;

[[nodiscard]] inline std::size_t shortcut_workspace_bytes(const NormTiles& t) {
  return 2 * t.partial_bytes() + 4 * static_cast<std::size_t>(t.channels) * sizeof(float);
}

namespace detail {

[[nodiscard]] inline op::BatchNorm norm_of_shortcut(const BatchNormAddShortcut& o) {
  return {o.shortcut_eps, o.shortcut_momentum};
}
[[nodiscard]] inline Call with_prepared(const Call& c, const std::shared_ptr<void>& kernel) {
  Call r = c;
  r.prepared = kernel.get();
  return r;
}
// Returns the call of the shortcut's norm with the memory of the call of the norm that adds it. The running statistics
// are not its own.
[[nodiscard]] inline Call trial_of_shortcut(const Call& c) {
  Call r = c;
  r.in = {c.in[6], c.in[7], c.in[8], c.in[3], c.in[4]};
  r.out = {c.in[5], c.in[9], c.in[10]};
  return r;
}

inline void run_together(Launcher& l, const Workspace& w, const BatchNormAddShortcut& o, const Call& c) {
  const TensorRef& x = c.in[0];
  run_norm_statistics(l, w, o.eps, o.momentum, c);
  const NormTiles t = mask_tiles(x.shape);
  l.op(x.dtype, OpKernel::norm_apply_shortcut, t.grid(), 256, x.data, c.in[6].data, c.out[0].data, c.out[1].data,
       c.out[2].data, c.in[1].data, c.in[2].data, c.in[9].data, c.in[10].data, c.in[7].data, c.in[8].data,
       c.out[3].data, t.rows, t.channels, t.log_lanes, t.chunk);
}

inline void run_together(Launcher& l, const Workspace& w, const BatchNormBackwardAddShortcut& o, const Call& c) {
  const std::size_t first = o.second ? 2 : 1;
  const auto in = [&](std::size_t k) { return c.in[first + k].data; };
  void *const dy = c.in[0].data, *const dy2 = o.second ? c.in[1].data : nullptr;
  const TensorRef& x = c.in[first];
  void *const gamma = in(1), *const mean = in(3), *const inv_std = in(4), *const mask = in(5), *const s = in(6),
              *const s_gamma = in(7), *const s_mean = in(8), *const s_inv_std = in(9), *const ds = c.out[3].data;
  const NormTiles t = mask_tiles(x.shape);
  auto* const partial = w.at<float>(0);
  auto* const means = w.at<float>(2 * t.partial_bytes());
  l.op(x.dtype, o.second ? OpKernel::norm_backward_sums_shortcut_two : OpKernel::norm_backward_sums_shortcut, t.grid(),
       256, dy, dy2, x.data, s, mask, mean, inv_std, s_mean, s_inv_std, ds, partial, t.rows, t.channels, t.log_lanes,
       t.chunk);
  l.op(x.dtype, OpKernel::norm_backward_finish_shortcut, dim3(t.finish_grid().x, 2), 256, partial,
       static_cast<int>(t.chunks), t.rows, t.channels, c.out[1].data, c.out[2].data, c.out[4].data, means);
  // The sum of two parts was written to ds: reading it again is as much as reading both parts and the mask.
  l.op(x.dtype, o.second ? OpKernel::norm_backward_apply_shortcut_kept : OpKernel::norm_backward_apply_shortcut,
       t.grid(), 256, o.second ? ds : dy, x.data, s, mask, mean, inv_std, gamma, s_mean, s_inv_std, s_gamma, means,
       c.out[0].data, ds, t.rows, t.channels, t.log_lanes, t.chunk);
}

// Chooses between the norms together and the library's kernels for both, if the library has them.
template <class C>
void choose_library(ShortcutChoice& choice, C& library, Launcher& l, Workspace& w, const Device& device,
                    const CudaOptions& options, const BatchNormAddShortcut& o, const NodeDesc& d) {
  if constexpr (FusesNorms<C>) {
    if (!options.autotune.value_or(true) || options.fusion == CudaFusion::off) return;
    const op::BatchNorm shortcut = norm_of_shortcut(o);
    const BatchNormWithMask adding{o.eps, o.momentum};
    const auto of_shortcut = library_norm(shortcut, d), form = library_norm(adding, d);
    if (!of_shortcut || !form) return;
    const auto first = library.kernel(*of_shortcut), second = library.kernel(*form);
    if (first == nullptr || second == nullptr) return;
    w.reserve(first->workspace_bytes());
    w.reserve(second->workspace_bytes());
    const TrialCall trial(device, d, 0);
    if (trial.call() == nullptr) return;
    const Call other = trial_of_shortcut(*trial.call());
    const auto ours = [&] {
      run_norm_statistics(l, w, shortcut.eps, shortcut.momentum, other);
      run_together(l, w, o, *trial.call());
    };
    const auto theirs = [&] {
      run_norm(*first, l, w, shortcut, other);
      run_norm(*second, l, w, adding, *trial.call());
    };
    if (library.no_slower("tutti's batch norms of a shortcut against two of " + form->name(), ours, theirs)) return;
    choice = {false, choice.backward, first, second};
  }
}

}  // namespace detail

// Prepares one of the four ops, and returns the choice for it. The shortcut's norm must be prepared before the norm
// that adds it.
template <class C, ShortcutOp O>
[[nodiscard]] std::shared_ptr<void> prepare_shortcut(ShortcutChoices& choices, C& library, Launcher& l, NormOnce& n,
                                                     Workspace& w, const Device& device, const CudaOptions& options,
                                                     const O& o, const NodeDesc& d) {
  constexpr bool forward = std::same_as<O, BatchNormOfShortcut> || std::same_as<O, BatchNormAddShortcut>;
  const TensorDesc& x = d.in[0];
  const auto choice = choices.of(x);
  const std::int64_t bytes = norm_tiles(x.dtype, x.shape).bytes(x.dtype);
  n.reserve();
  w.reserve(norm_tiles(x.dtype, x.shape).workspace_bytes());
  if constexpr (forward) {
    if (n.separate() || n.may_run(norm_bytes(bytes, false))) {
      choice->forward = false;
      if constexpr (std::same_as<O, BatchNormOfShortcut>)
        choice->of_shortcut = prepare_norm(library, l, n, w, device, options, op::BatchNorm{o.eps, o.momentum}, d);
      else
        choice->adding = prepare_norm(library, l, n, w, device, options, BatchNormWithMask{o.eps, o.momentum}, d);
    } else if constexpr (std::same_as<O, BatchNormOfShortcut>) {
      *choice = {true, choice->backward, {}, {}};
    } else {
      detail::choose_library(*choice, library, l, w, device, options, o, d);
    }
  } else {
    choice->backward = vector_of(x.dtype) == 8 && !n.separate() && !n.may_run(norm_backward_bytes(bytes, false, false));
    w.reserve(shortcut_workspace_bytes(mask_tiles(x.shape)));
  }
  return choice;
}

inline void run_shortcut(Launcher& l, const NormOnce& n, const Workspace& w, const BatchNormOfShortcut& o,
                         const Call& c) {
  const auto& choice = *static_cast<const ShortcutChoice*>(c.prepared);
  if (choice.forward) return run_norm_statistics(l, w, o.eps, o.momentum, c);
  run_chosen_norm(l, n, w, op::BatchNorm{o.eps, o.momentum}, detail::with_prepared(c, choice.of_shortcut));
}
inline void run_shortcut(Launcher& l, const NormOnce& n, const Workspace& w, const BatchNormAddShortcut& o,
                         const Call& c) {
  const auto& choice = *static_cast<const ShortcutChoice*>(c.prepared);
  if (choice.forward) return detail::run_together(l, w, o, c);
  run_chosen_norm(l, n, w, BatchNormWithMask{o.eps, o.momentum}, detail::with_prepared(c, choice.adding));
}
inline void run_shortcut(Launcher& l, const NormOnce& n, const Workspace& w, const BatchNormBackwardAddShortcut& o,
                         const Call& c) {
  if (static_cast<const ShortcutChoice*>(c.prepared)->backward) return detail::run_together(l, w, o, c);
  run_batch_norm_backward(l, n, w, {true, true, o.second}, c, true);
}
inline void run_shortcut(Launcher& l, const NormOnce& n, const Workspace& w, const BatchNormBackwardOfShortcut&,
                         const Call& c) {
  const TensorRef& s = c.in[1];
  if (static_cast<const ShortcutChoice*>(c.prepared)->backward) {
    // The sums as those of one chunk: this copies them.
    const NormTiles t = norm_tiles(s.dtype, s.shape);
    auto* const means = w.at<float>(0);
    l.op(s.dtype, OpKernel::norm_backward_finish, t.finish_grid(), 256, c.in[6].data, 1, t.rows, t.channels,
         c.out[0].data, c.out[1].data, means);
    return;
  }
  // In place: each thread of the second pass reads the gradient of norm(s) before it writes that of s there.
  Call plain = c;
  plain.out = {c.in[0], c.out[0], c.out[1]};
  run_batch_norm_backward(l, n, w, {}, plain);
}

}  // namespace tutti::cuda
