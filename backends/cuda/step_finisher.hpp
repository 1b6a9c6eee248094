// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/ops/muon_ops.hpp>
#include <tutti/backends/cuda/ops/update_ops.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cuda {

// The structs of kernels/step.hpp, with the same names.
namespace step {
struct Numbers {
  double lr, inverse_batch, loss_scale, average, c1, c2;
  std::int64_t step;
  std::uint32_t flags;
  std::int32_t slot, restart, unused;
};
struct State {
  std::int64_t exponent, scale_steps;
  std::int64_t halted_step;
  std::int32_t halted_why, skip;
  double halted_loss, halted_rows;
  double totals[4];
  double metrics[4];
  double scale, lr;
  float gradient_scale, average, c1, c2;
};
struct Outcome {
  std::int64_t step, exponent, scale_steps, halted_step;
  std::int32_t halted_why;
  std::uint32_t flags;
  double halted_loss, halted_rows;
  double totals[4], metrics[4];
};
struct Chunk {
  std::int64_t begin;
  std::int32_t count, run;
};
struct Run {
  float lr_scale, weight_decay, factor, unused;
};
struct Rules {
  double clip_norm, max_grad_norm, eta;
  int trust, dynamic, chunks, runs, normed;
};
static_assert(sizeof(Numbers) == 72 && sizeof(State) == 144 && sizeof(Outcome) == 120 && sizeof(Chunk) == 16 &&
              sizeof(Run) == 16);
}  // namespace step

// Ends training steps by tutti's kernels: norms, the decision whether the step counts, and the optimizer, in three to
// seven launches for any number of tensors; Muon takes more for each matrix. Sums are computed for fixed pieces of the
// arena and added in a fixed order.
class CudaStepFinisher final : public StepFinisher {
 public:
  // loss_scale: the device address from which the loss op reads its factor. look: throws an error if kernels have
  // reported invalid data.
  CudaStepFinisher(DeviceMemory& memory, Launcher& launcher, double* loss_scale, std::function<void()> look,
                   const ModelState& state, const UpdateRules& rules)
      : memory_(memory), launcher_(launcher), loss_scale_(loss_scale), look_(std::move(look)), m_(state), u_(rules) {
    launcher_.begin_updates();
    require_aligned();
    numbers_ = std::static_pointer_cast<step::Numbers>(allocate_pinned(kept * sizeof(step::Numbers)));
    outcomes_ = std::static_pointer_cast<step::Outcome>(allocate_pinned(kept * sizeof(step::Outcome)));
    std::fill_n(outcomes_.get(), kept, step::Outcome{});
    for (std::uint64_t i = 0; i < kept; ++i) ends_.push_back(std::make_unique<Event>(memory_.device()));
    sent_ = Buffer(memory_, sizeof(step::Numbers));
    state_ = Buffer(memory_, sizeof(step::State));
    cut();
  }

  [[nodiscard]] bool runs_ahead() const override { return true; }
  void begin_generation(int ranks) override {
    ranks_ = ranks;
    if (ranks_ == 1 || before_[0].bytes() > 0) return;
    std::size_t bytes = 0;
    for (const Part& p : parts()) bytes += p.bytes;
    for (Buffer& b : before_) b = Buffer(memory_, bytes);
  }

  void send(std::uint64_t number, const StepNumbers& n) override {
    const std::uint64_t slot = number % kept;
    if (number >= kept) wait(number - kept);
    now_ = number;
    step::Numbers& to = numbers_.get()[slot];
    to = {n.lr,
          n.inverse_batch,
          n.loss_scale,
          n.ema_decay,
          0,
          0,
          n.step,
          n.flags,
          static_cast<std::int32_t>(slot),
          n.begins_sums ? 1 : 0,
          0};
    const auto correct = [&](const auto& o) {
      if constexpr (requires { o.beta1; }) {
        to.c1 = bias_correction(o.beta1, n.step);
        to.c2 = bias_correction(o.beta2, n.step);
      }
    };
    std::visit(correct, u_.op);
    if (const auto* muon = std::get_if<MuonUpdate>(&u_.op)) std::visit(correct, muon->rest);
    memory_.device().set_op("the numbers of a step");
    memory_.copy_in(sent_.data(), &to, sizeof to);
  }
  [[nodiscard]] const StepScalars* scalars() const override { return nullptr; }
  // With several ranks, two consecutive steps keep their copies of the state in different buffers.
  [[nodiscard]] std::uint64_t variant(std::uint64_t number) const override { return ranks_ > 1 ? 1 + number % 2 : 0; }
  void begin() override {
    if (ranks_ > 1) {
      // During a capture the step does not run.
      if (!memory_.device().capturing()) copied_[now_ % 2] = now_ + 1;
      // Keeps a copy of the state: if a sum over the ranks is aborted, steps on the stream still apply it.
      memory_.device().set_op("a copy of the state before a step");
      std::size_t at = 0;
      for (const Part& p : parts()) {
        if (p.bytes > 0) memory_.copy(before_[now_ % 2].at(at), p.data, p.bytes);
        at += p.bytes;
      }
    }
    memory_.device().set_op("the start of a step");
    launcher_.update(UpdateKernel::step_begin, dim3(1), 1, sent_.data(), state_.data(), loss_scale_,
                     u_.dynamic_loss_scale ? 1 : 0);
  }
  void add(const void* metrics, bool first, bool last) override {
    memory_.device().set_op("metrics of a step");
    launcher_.update(UpdateKernel::step_metrics, dim3(1), 1, sent_.data(), state_.data(), metrics, first ? 1 : 0,
                     last && ranks_ > 1 ? m_.flags : nullptr);
  }
  void update(Exchange& sums) override {
    if (ranks_ > 1) sums.wait_on_device();
    memory_.device().set_op("update");
    const dim3 chunks(static_cast<unsigned>(rules_.chunks));
    if (rules_.normed != 0) {
      launcher_.update(u_.trust ? UpdateKernel::step_norms_3 : UpdateKernel::step_norms_1, chunks, Launcher::block,
                       m_.weights, m_.gradients, chunks_.data(), partial_.data());
      if (u_.trust)
        launcher_.update(UpdateKernel::step_run_norms, dim3(static_cast<unsigned>(rules_.runs)), Launcher::block,
                         partial_.data(), first_.data(), norms_.data());
    }
    launcher_.update(UpdateKernel::step_decide, dim3(1), Launcher::block, sent_.data(), state_.data(),
                     u_.trust ? norms_.data() : partial_.data(), runs_.data(),
                     static_cast<const void*>(ranks_ > 1 ? m_.flags : nullptr), rules_, outcomes_.get());
    if (rules_.chunks > 0) std::visit([&](const auto& o) { optimize(o, chunks); }, u_.op);
    memory_.device().set_op("averages");
    const auto n = static_cast<std::int64_t>(m_.state_count);
    if (ranks_ > 1 && n > 0)
      launcher_.update(UpdateKernel::step_mean, launcher_.blocks(n), Launcher::block, m_.states, m_.state_sums, n,
                       static_cast<float>(ranks_), state_.data());
    average(m_.average, m_.weights, m_.count);
    average(m_.state_average, m_.states, m_.state_count);
  }
  void started(std::uint64_t number) override {
    copied_[number % 2] = number + 1;
    ends_[number % kept]->record(memory_.device().stream());
  }

  bool done(std::uint64_t number) override { return ends_[number % kept]->happened(); }
  void wait(std::uint64_t number) override {
    memory_.device().check_op(cudaEventSynchronize(ends_[number % kept]->get()), "a step to end");
  }
  [[nodiscard]] StepOutcome outcome(std::uint64_t number) const override {
    const step::Outcome& o = outcomes_.get()[number % kept];
    StepOutcome r;
    r.step = o.step;
    r.scale_exponent = o.exponent;
    r.scale_steps = o.scale_steps;
    r.halted_step = o.halted_step;
    r.halt = static_cast<Halt>(o.halted_why);
    r.flags = o.flags;
    r.halted_loss = o.halted_loss;
    r.halted_rows = o.halted_rows;
    std::copy_n(o.totals, 4, r.sums.begin());
    std::copy_n(o.metrics, 4, r.metrics.begin());
    return r;
  }
  void require_good_data() override { look_(); }

  void set_scale(std::int64_t exponent, std::int64_t steps) override {
    const std::array<std::int64_t, 2> both{exponent, steps};
    memory_.copy_in(state_.at(offsetof(step::State, exponent)), both.data(), sizeof both);
  }
  void roll_back(std::uint64_t number) override {
    // A step that failed before it began has not changed the state.
    if (ranks_ == 1 || copied_[number % 2] != number + 1) return;
    memory_.device().set_op("the state before a step");
    std::size_t at = 0;
    for (const Part& p : parts()) {
      if (p.bytes > 0) memory_.copy(p.data, before_[number % 2].at(at), p.bytes);
      at += p.bytes;
    }
  }
  // The copy of a completed step is no longer needed, so its memory may be used.
  [[nodiscard]] std::span<std::byte> spare() override {
    return ranks_ == 1 ? std::span<std::byte>() : std::span(before_[0].at(0), before_[0].bytes());
  }
  void resume() override {
    memory_.zero(state_.at(offsetof(step::State, halted_step)),
                 offsetof(step::State, totals) - offsetof(step::State, halted_step));
  }

 private:
  // A part of the data that a step changes, in multiples of 16 bytes.
  struct Part {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] std::array<Part, 7> parts() const {
    const std::size_t weights = m_.count * sizeof(float), states = m_.state_count * sizeof(float);
    const auto part = [](void* data, std::size_t bytes) { return Part{data, data != nullptr ? bytes : 0}; };
    return {part(m_.weights, weights),
            part(m_.slots[0], weights),
            part(m_.slots[1], weights),
            part(m_.states, states),
            part(m_.average, weights),
            part(m_.state_average, states),
            part(state_.data(), sizeof(step::State))};
  }

  // Elements in a chunk: 32 for each thread of a block.
  static constexpr std::size_t chunk = 8192;

  void require_aligned() const {
    bool good = m_.count % 4 == 0 && m_.state_count % 4 == 0;
    for (const void* p : {m_.weights, m_.gradients, m_.slots[0], m_.slots[1], m_.average, m_.states, m_.state_average})
      good = good && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
    for (const auto& r : u_.runs) good = good && r.begin % 4 == 0 && r.end % 4 == 0 && r.begin < r.end;
    if (!good) fail("cuda", "arenas and runs aligned to 16 bytes", "unaligned ones");
  }
  // Cuts the runs into chunks, and writes both as tables on the device.
  void cut() {
    std::vector<step::Chunk> chunks;
    std::vector<std::int32_t> first{0};
    std::vector<step::Run> runs;
    for (const auto& r : u_.runs) {
      for (std::size_t at = r.begin; at < r.end; at += chunk)
        chunks.push_back({static_cast<std::int64_t>(at), static_cast<std::int32_t>(std::min(chunk, r.end - at)),
                          static_cast<std::int32_t>(runs.size())});
      first.push_back(static_cast<std::int32_t>(chunks.size()));
      runs.push_back({static_cast<float>(r.lr_scale), static_cast<float>(r.weight_decay), 1, 0});
      if (r.rows > 0) muon_.reserve(memory_, r.rows, r.cols);
    }
    if (std::holds_alternative<MuonUpdate>(u_.op)) {
      std::vector<step::Chunk> rest;
      for (const step::Chunk& c : chunks)
        if (u_.runs[static_cast<std::size_t>(c.run)].rows == 0) rest.push_back(c);
      rest_ = table(rest);
      rest_chunks_ = rest.size();
      sums_ = Buffer(memory_, squared_norms_bytes);
    }
    rules_.clip_norm = u_.clip_norm;
    rules_.max_grad_norm = u_.max_grad_norm;
    rules_.eta = u_.trust ? u_.trust->eta : 0;
    rules_.trust = !u_.trust ? 0 : u_.trust->clip ? 2 : 1;
    // If no parameters are trained, no gradient overflows.
    rules_.dynamic = u_.dynamic_loss_scale && !runs.empty() ? 1 : 0;
    rules_.chunks = static_cast<int>(chunks.size());
    rules_.runs = static_cast<int>(runs.size());
    rules_.normed =
        !runs.empty() && (u_.trust || u_.clip_norm > 0 || u_.max_grad_norm > 0 || u_.dynamic_loss_scale) ? 1 : 0;
    if (runs.empty()) rules_.clip_norm = rules_.max_grad_norm = 0;
    chunks_ = table(chunks);
    first_ = table(first);
    runs_ = table(runs);
    partial_ = Buffer(memory_, std::max<std::size_t>(chunks.size(), 1) * 3 * sizeof(double));
    norms_ = Buffer(memory_, std::max<std::size_t>(runs.size(), 1) * 3 * sizeof(double));
  }
  template <class T>
  [[nodiscard]] Buffer table(const std::vector<T>& rows) {
    static_assert(std::is_trivially_copyable_v<T>);
    Buffer b(memory_, std::max<std::size_t>(rows.size(), 1) * sizeof(T));
    memory_.copy_in(b.data(), rows.data(), rows.size() * sizeof(T));
    return b;
  }

  // The chunks of the runs that an element-wise rule updates.
  [[nodiscard]] const void* pieces() const { return rest_chunks_ > 0 ? rest_.data() : chunks_.data(); }
  void optimize(const SgdUpdate& o, dim3 chunks) {
    launcher_.update(UpdateKernel::step_sgd, chunks, Launcher::block, m_.weights, m_.gradients, m_.slots[0], pieces(),
                     runs_.data(), state_.data(), static_cast<float>(o.momentum), o.nesterov ? 1 : 0);
  }
  void optimize(const AdamwUpdate& o, dim3 chunks) {
    launcher_.update(UpdateKernel::step_adamw, chunks, Launcher::block, m_.weights, m_.gradients, m_.slots[0],
                     m_.slots[1], pieces(), runs_.data(), state_.data(), adamw_numbers(o));
  }
  void optimize(const MuonUpdate& o, dim3) {
    const dim3 rest(static_cast<unsigned>(rest_chunks_));
    if (rest_chunks_ > 0) std::visit([&](const auto& r) { optimize(r, rest); }, o.rest);
    const auto at = [](void* p, std::size_t element) { return static_cast<float*>(p) + element; };
    for (std::size_t i = 0; i < u_.runs.size(); ++i) {
      const UpdateRules::Run& r = u_.runs[i];
      if (r.rows == 0) continue;
      UpdateCall u;
      u.weights = at(m_.weights, r.begin);
      u.gradients = static_cast<const float*>(m_.gradients) + r.begin;
      u.slots[0] = at(m_.slots[0], r.begin);
      u.rows = r.rows;
      u.cols = r.cols;
      muon_.step(launcher_, o, u, static_cast<double*>(sums_.data()), state_.data(), runs_.at(i * sizeof(step::Run)));
    }
  }
  void optimize(const LambUpdate& o, dim3 chunks) {
    launcher_.update(UpdateKernel::step_lamb_moments, chunks, Launcher::block, m_.weights, m_.gradients, m_.slots[0],
                     m_.slots[1], chunks_.data(), runs_.data(), state_.data(), lamb_numbers(o), partial_.data());
    launcher_.update(UpdateKernel::step_run_norms, dim3(static_cast<unsigned>(rules_.runs)), Launcher::block,
                     partial_.data(), first_.data(), norms_.data());
    launcher_.update(UpdateKernel::step_lamb, chunks, Launcher::block, m_.weights, m_.slots[0], m_.slots[1],
                     chunks_.data(), runs_.data(), state_.data(), lamb_numbers(o), norms_.data());
  }
  void average(void* to, const void* from, std::size_t count) {
    const auto n = static_cast<std::int64_t>(count);
    if (to != nullptr && n > 0)
      launcher_.update(UpdateKernel::step_average, launcher_.blocks(n / 4), Launcher::block, to, from, n,
                       state_.data());
  }

  DeviceMemory& memory_;
  Launcher& launcher_;
  double* loss_scale_;
  std::function<void()> look_;
  const ModelState& m_;
  const UpdateRules& u_;
  int ranks_ = 1;
  std::uint64_t now_ = 0;                  // the number of the next step
  std::array<Buffer, 2> before_;           // the state at the beginning of the last two steps, with several ranks
  std::array<std::uint64_t, 2> copied_{};  // 1 + the numbers of the steps to which these copies belong
  step::Rules rules_{};
  std::shared_ptr<step::Numbers> numbers_;
  std::shared_ptr<step::Outcome> outcomes_;
  std::vector<std::unique_ptr<Event>> ends_;
  Buffer sent_, state_, chunks_, first_, runs_, partial_, norms_;
  Buffer rest_, sums_;  // for Muon: the chunks of the runs that are no matrices, and sums of squares
  std::size_t rest_chunks_ = 0;
  MuonRoom muon_;
};

}  // namespace tutti::cuda
