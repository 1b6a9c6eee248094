// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/engine/step_end.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/optim/update.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// What runs a plan's nodes, in which memory, on which threads. What has a default below is optional: a backend
// overrides what it does better.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual Memory& memory() noexcept = 0;
  [[nodiscard]] virtual std::string name() const = 0;         // "onednn"
  [[nodiscard]] virtual std::string description() const = 0;  // library version, instruction set
  [[nodiscard]] virtual bool computes_in(DType t) const = 0;
  // How this node runs; null: it does not here. The op and what the description names outlive the kernel.
  [[nodiscard]] virtual std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) = 0;
  // Runs loops of so many tasks, one after the other: calls f(loop, task, worker) for every task, worker below
  // threads(), and returns when all are done.
  virtual void parallel(std::span<const int> loops, FunctionRef<void(int loop, int task, int worker)> f) {
    for (std::size_t l = 0; l < loops.size(); ++l)
      for (int t = 0; t < loops[l]; ++t) f(static_cast<int>(l), t, 0);
  }
  // One loop.
  void parallel(int tasks, FunctionRef<void(int task, int worker)> f) {
    parallel({&tasks, 1}, [&](int, int task, int worker) { f(task, worker); });
  }
  [[nodiscard]] virtual int threads() const { return 1; }
  // Fixed shares of a batch, each with a partial sum of its own.
  [[nodiscard]] virtual int shards() const { return 1; }
  // About so many bytes of activations go through a chain of ops at once.
  [[nodiscard]] virtual std::size_t chunk_bytes() const { return 256 * 1024; }

  // Passes over the arenas between backward and the next step.
  virtual void update(const UpdateOp& op, const UpdateCall& u) = 0;
  [[nodiscard]] virtual SquaredNorms squared_norms(const UpdateCall& u) = 0;  // for LARS, LARC and clipping
  // to = decay * to + (1 - decay) * from, for the weight EMA.
  virtual void average(DType t, void* to, const void* from, std::size_t n, double decay) = 0;
  // to += from, for gradient accumulation.
  virtual void accumulate(DType t, void* to, const void* from, std::size_t n) = 0;
  // Ends steps on the device, without the host; null: the host ends them (HostStepEnd). Both arguments outlive it.
  [[nodiscard]] virtual std::unique_ptr<StepEnd> step_end(const ModelState&, const UpdateRules&) { return nullptr; }

  // Whether all nodes that read a parameter packed read the same packed form, and a model's weights packed at once.
  [[nodiscard]] virtual bool packs_once() const { return false; }
  struct PackTable {  // what is packed anew after an update
    virtual ~PackTable() = default;
    virtual void run() = 0;
  };
  // All of a model's weights, packed by one call; null: each by Kernel::pack().
  [[nodiscard]] virtual std::unique_ptr<PackTable> pack_table(DType /*compute*/, std::span<const PackTarget>) {
    return nullptr;
  }

  // Makes one op of chains of ops in a training graph, where that pays here.
  virtual void rewrite(Graph&, DType /*compute*/) {}
  // Runs f, which starts ops; or replays what was captured of an earlier call with the same key. scalars: null where f
  // sees to the scale of the loss (StepEnd::begin).
  virtual void replay(std::span<const std::uint64_t> /*key*/, const StepScalars* /*scalars*/, FunctionRef<void()> f) {
    f();
  }

  // It may put off the last step of gradients and do it for many at once: begin_gradients() ahead of a run forgets what
  // one left that did not come to its end, finish_gradients() starts it for all that wait. Whatever is started after
  // that sees them final.
  virtual void begin_gradients() noexcept {}
  virtual void finish_gradients() {}

  // A batch of the host into the slot that runs read. Where the images lie in pinned memory they must stay as they are
  // until wait_for_uploads().
  virtual void upload(const void* images, std::size_t image_bytes, const void* labels, std::size_t label_bytes,
                      void* image_slot, void* label_slot) {
    memory().copy_in(image_slot, images, image_bytes);
    memory().copy_in(label_slot, labels, label_bytes);
  }
  virtual void wait_for_uploads() {}
  // Memory of the host that it reads fastest; null: any.
  [[nodiscard]] virtual std::shared_ptr<void> allocate_pinned(std::size_t) { return nullptr; }
  [[nodiscard]] virtual bool pins_memory() const { return false; }
  // Cuts windows out of a data set in its memory: [rows] windows of the host into images [rows, out_height, out_width,
  // channels] and labels [rows] of its own. The host's may be written over when the call is back.
  [[nodiscard]] virtual bool gathers_images() const { return false; }
  virtual void gather_images(const ResidentImages&, const ImageWindow*, std::int64_t /*rows*/, void* /*image_slot*/,
                             void* /*label_slot*/) {
    fail<UsageError>("Executor", "images of the host", "images in the memory of another backend");
  }

  // The option that takes less memory, such as "--option"; none: "".
  [[nodiscard]] virtual std::string memory_hint() const { return ""; }
  // Whether gradients of weights are rounded to the compute type on their way to the arena.
  [[nodiscard]] virtual bool rounds_weight_gradients() const { return false; }
  // The share of its last second or less in which the device computed, 0..1, by its own counters; nothing where it
  // cannot tell. Asking is cheap and never throws.
  [[nodiscard]] virtual std::optional<double> utilisation() { return std::nullopt; }
};

}  // namespace tutti
