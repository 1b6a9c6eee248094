// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/engine/step/integer_block.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/optim/update.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/version.hpp>

namespace tutti {

// Something that the bits of a result depend on: {"instruction set", "avx512"}.
struct BitFact {
  std::string name, value;
  friend bool operator==(const BitFact&, const BitFact&) = default;
};

// Runs a plan's nodes, in its memory and on its threads. Functions with a default below are optional: a backend
// overrides what it can do better.
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
  // Returns the kernel that runs this node, or null if the backend cannot run it. The op and the data that the
  // description names outlive the kernel.
  [[nodiscard]] virtual std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) = 0;
  // Runs loops with these numbers of tasks, one after the other: calls f(loop, task, worker) for every task, with
  // worker below threads(). Returns when all are done.
  virtual void parallel(std::span<const int> loops, FunctionRef<void(int loop, int task, int worker)> f) {
    for (std::size_t l = 0; l < loops.size(); ++l)
      for (int t = 0; t < loops[l]; ++t) f(static_cast<int>(l), t, 0);
  }
  // Runs one loop.
  void parallel(int tasks, FunctionRef<void(int task, int worker)> f) {
    parallel({&tasks, 1}, [&](int, int task, int worker) { f(task, worker); });
  }
  [[nodiscard]] virtual int threads() const { return 1; }
  // Returns the number of fixed shares of a batch. Each share has its own partial sum.
  [[nodiscard]] virtual int shards() const { return 1; }
  // Returns about how many bytes of activations should go through a chain of ops at once.
  [[nodiscard]] virtual std::size_t chunk_bytes() const { return 256 * 1024; }

  // From now on, the bits of a result depend on neither the number of threads nor the free memory: work is divided as
  // for 4 threads, and libraries compute deterministically. Called before the first plan is made, for logical ranks.
  virtual void fix_division() {}
  // From now on, weights are read several times between two updates, so more memory for prepared weights is worth it.
  // Does not change bits. Called before the first plan is made.
  virtual void reuse_weights() {}
  // Returns everything that the bits of a result depend on, except for the rows and the model: the backend, its
  // libraries with versions, the instruction set, sizes of caches and the algorithms in use. Two processes with equal
  // facts compute equal bits after fix_division(). The facts do not change while a process runs.
  [[nodiscard]] TUTTI_CORE_FUNCTION virtual std::vector<BitFact> bits_depend_on() const;
  // Returns the kernels that this backend has chosen so far and that equal machines may choose differently, for example
  // by measuring them, as a text for take_choices() of other ranks; "": there are none.
  [[nodiscard]] virtual std::string choices() { return ""; }
  // Takes the choices of another rank, as far as they fit this machine; the backend tells the user what does not fit.
  // Later choices are its own. Returns whether a choice has changed: all kernels of this backend must then be prepared
  // again (Executor::prepare_again).
  virtual bool take_choices(std::string_view /*choices*/) { return false; }
  // The two conversions of sums of logical ranks (IntegerSums). All backends compute the same bits.
  TUTTI_CORE_FUNCTION virtual void to_integers(const ToIntegers& c);
  TUTTI_CORE_FUNCTION virtual void from_integers(const FromIntegers& c);
  // Like to_integers(), for one block or a part of it, on the calling thread. For memory of the host.
  TUTTI_CORE_FUNCTION virtual void piece_to_integers(const ToIntegers& c);

  // Passes over the arenas between backward and the next step.
  virtual void update(const UpdateOp& op, const UpdateCall& u) = 0;
  // Returns whether update() supports UpdateCall::orthogonal.
  [[nodiscard]] virtual bool divides_muon() const { return false; }
  [[nodiscard]] virtual SquaredNorms squared_norms(const UpdateCall& u) = 0;  // for LARS, LARC and clipping
  // to = decay * to + (1 - decay) * from, for the weight EMA.
  virtual void average(DType t, void* to, const void* from, std::size_t n, double decay) = 0;
  // to += from, for gradient accumulation.
  virtual void accumulate(DType t, void* to, const void* from, std::size_t n) = 0;
  // Returns an object that ends steps on the device, without the host; null: the host ends them (HostStepFinisher).
  // Both arguments outlive it.
  [[nodiscard]] virtual std::unique_ptr<StepFinisher> step_finisher(const ModelState&, const UpdateRules&) {
    return nullptr;
  }

  // Returns whether all nodes that read a packed parameter read the same packed form, and all weights of a model are
  // packed at once.
  [[nodiscard]] virtual bool packs_once() const { return false; }
  struct PackTable {  // The weights to pack again after an update.
    virtual ~PackTable() = default;
    virtual void run() = 0;
  };
  // Returns an object that packs all of a model's weights in one call; null: Kernel::pack() packs each.
  [[nodiscard]] virtual std::unique_ptr<PackTable> pack_table(DType /*compute*/, std::span<const PackTarget>) {
    return nullptr;
  }

  // Merges chains of ops in a training graph into one op, if that is faster on this backend.
  virtual void rewrite(Graph&, DType /*compute*/) {}
  // Returns whether it has kernels of convolutions with a bias, a sum and a relu at their ends (cpu::EndedConvolution).
  // CpuOps makes them of any convolution that computes rows independently; a backend derived from it chooses.
  [[nodiscard]] virtual bool ends_convolutions() const { return false; }
  // Runs f, which starts ops, or replays what was captured in an earlier call with the same key. scalars: null if f
  // itself sets the scale of the loss (StepFinisher::begin).
  virtual void replay(std::span<const std::uint64_t> /*key*/, const StepScalars* /*scalars*/, FunctionRef<void()> f) {
    f();
  }

  // A backend may postpone the last step of weight gradients and do it for many at once. begin_gradients(), called
  // before a run, drops leftovers of an aborted run. finish_gradients() starts that last step for all pending
  // gradients; work that is started afterwards sees final gradients.
  virtual void begin_gradients() noexcept {}
  virtual void finish_gradients() {}

  // Copies a batch of the host into the slot that runs read. Images in pinned memory must not change until
  // wait_for_uploads().
  virtual void upload(const void* images, std::size_t image_bytes, const void* labels, std::size_t label_bytes,
                      void* image_slot, void* label_slot) {
    memory().copy_in(image_slot, images, image_bytes);
    memory().copy_in(label_slot, labels, label_bytes);
  }
  virtual void wait_for_uploads() {}
  // Returns host memory that the backend reads fastest; null: any memory.
  [[nodiscard]] virtual std::shared_ptr<void> allocate_pinned(std::size_t) { return nullptr; }
  [[nodiscard]] virtual bool pins_memory() const { return false; }
  // Cuts windows out of a data set in the backend's memory: [rows] windows in host memory give images [rows,
  // out_height, out_width, channels] and labels [rows] in its own memory. The windows may be overwritten when the call
  // returns.
  [[nodiscard]] virtual bool gathers_images() const { return false; }
  virtual void gather_images(const ResidentImages&, const ImageWindow*, std::int64_t /*rows*/, void* /*image_slot*/,
                             void* /*label_slot*/) {
    fail<UsageError>("Executor", "images in host memory", "images in the memory of another backend");
  }

  // Returns the option that reduces memory use, such as "--option", or "" if it has no such option.
  [[nodiscard]] virtual std::string memory_hint() const { return ""; }
  // Returns whether weight gradients are rounded to the compute type on their way to the arena.
  [[nodiscard]] virtual bool rounds_weight_gradients() const { return false; }
  // Returns the share of the last second or less in which the device computed, 0..1, from its own counters; no value if
  // it has no counters. Cheap; never throws.
  [[nodiscard]] virtual std::optional<double> utilisation() { return std::nullopt; }
};

#if TUTTI_CORE_DEFINITIONS
namespace detail {
[[noreturn]] inline void fail_without_integers(const Backend& b) {
  fail<UsageError>("backend", "a backend that sums integers, for logical ranks", {"'", b.name(), "'"},
                   "use another backend, or train without logical ranks");
}
}  // namespace detail
TUTTI_CORE_FUNCTION std::vector<BitFact> Backend::bits_depend_on() const {
  return {{"tutti", version}, {"backend", name()}, {"libraries", description()}};
}
TUTTI_CORE_FUNCTION void Backend::to_integers(const ToIntegers&) { detail::fail_without_integers(*this); }
TUTTI_CORE_FUNCTION void Backend::from_integers(const FromIntegers&) { detail::fail_without_integers(*this); }
TUTTI_CORE_FUNCTION void Backend::piece_to_integers(const ToIntegers&) { detail::fail_without_integers(*this); }
#endif

}  // namespace tutti
