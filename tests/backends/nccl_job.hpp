// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/backends/nccl/elastic.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/cuda_emulator.hpp"
#include "backends/emulated_cuda.hpp"
#include "backends/nccl_emulator.hpp"
#include "core/end_process.hpp"
#include "strategy/job_images.hpp"
#include "tests/cluster/arbiter_harness.hpp"

namespace tutti::testing {

// An elastic job of processes that each have an emulated GPU, over an emulated NCCL. The arbiter runs in the test's
// process, which forks the members.
class NcclJob {
 public:
  static constexpr std::size_t most = 32, most_weights = 2048;
  // A member's report to the test, in shared memory.
  struct Member {
    std::atomic<bool> loaded{false}, whole{false};  // loaded: has read its data; whole: has finished
    std::atomic<std::int64_t> steps{0}, captured{0};
    std::atomic<std::size_t> measured{0}, first_runs{0}, second_runs{0};  // of LoopConvolutions
    bool left = false;
    std::size_t weights_count = 0;
    std::array<float, most_weights> weights{};
    std::array<char, 1024> error{};
    [[nodiscard]] std::vector<float> values() const {
      return {weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(weights_count)};
    }
  };
  struct Board {
    std::atomic<std::size_t> asked{0};      // number of members that were asked to join
    std::atomic<std::uint64_t> leaving{0};  // a bit for each member that shall leave
    std::array<Member, most> members;
  };
  // The members call it after each step.
  using Script = std::function<void(NcclJob&, std::size_t me, const FitStep&)>;

  static constexpr std::int64_t global_batch = 12, steps_an_epoch = 12, samples = global_batch * steps_an_epoch - 5;

  NcclJob(int founders, Script script) : script_(std::move(script)), founders_(founders) {
    void* const p = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail<Error>("test", "shared memory", "none");
    board_ = new (p) Board;
    emulator::nccl.world = std::make_unique<emulator::NcclWorld>();
  }
  ~NcclJob() {
    ::munmap(board_, sizeof(Board));
    emulator::nccl.world.reset();
  }
  NcclJob(const NcclJob&) = delete;
  NcclJob& operator=(const NcclJob&) = delete;

  // ---- called in a member's process ----
  // Starts another member. Returns after that member has loaded its data.
  void join() {
    const std::size_t member = static_cast<std::size_t>(founders_) + board_->asked.fetch_add(1);
    while (!board_->members[member].loaded) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void ask_to_leave(std::size_t member) { board_->leaving.fetch_or(std::uint64_t{1} << member); }

  // ---- called by the test ----
  [[nodiscard]] const Member& member(std::size_t i) const { return board_->members[i]; }
  // Returns how each member ended: an empty text if it finished, "killed", or its error.
  std::vector<std::string> run() {
    control::ArbiterOptions o;
    o.workers = founders_;
    o.elastic = true;
    ArbiterHarness harness(o);
    for (int i = 0; i < founders_; ++i) start(harness, false);
    std::vector<std::string> ends;
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (std::size_t running = pids_.size(); running > 0; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      while (pids_.size() < static_cast<std::size_t>(founders_) + board_->asked) {
        start(harness, true);
        ++running;
      }
      ends.resize(pids_.size());
      const std::uint64_t leaving = board_->leaving.exchange(0);
      for (std::size_t i = 0; i < pids_.size(); ++i) {
        if ((leaving >> i & 1U) != 0) harness.ask([&](control::Arbiter& a) { a.ask_to_leave(i); });
        int status = 0;
        if (pids_[i] == 0 || ::waitpid(pids_[i], &status, WNOHANG) != pids_[i]) continue;
        pids_[i] = 0;
        --running;
        // The error of the first member explains more than the errors that it causes on other members.
        if (WIFEXITED(status) && status != 0) std::fprintf(stderr, "member %zu: %s\n", i, member(i).error.data());
        if (WIFSIGNALED(status))
          ends[i] = "killed";
        else if (status != 0)
          ends[i] = board_->members[i].error.data();
        if (status != 0) harness.ended(i);
      }
      if (std::chrono::steady_clock::now() > patience)
        for (const pid_t p : pids_)
          if (p != 0) ::kill(p, SIGKILL);
    }
    return ends;
  }

  std::int64_t epochs = 4;
  bool captured = true;
  std::function<bool(std::size_t me)> second_is_faster{};  // LoopConvolutions
  std::string audit;                                       // folder of the audit log
  std::function<void(std::size_t me, const char*)> at;  // a member calls it at each point at which a test may kill it

 private:
  void start(ArbiterHarness& harness, bool joins) {
    const io::Descriptor socket = harness.socket();
    const std::size_t me = pids_.size();
    std::fflush(nullptr);
    static_cast<void>(emulator::folder());  // this process creates the folder and removes it: the children may end
                                            // without cleaning up
    const pid_t child = harness.fork();
    if (child < 0) fail<Error>("test", "another process", "none");
    if (child > 0) return pids_.push_back(child);
    Member& mine = board_->members[me];
    try {
      if (at) emulator::nccl.at = [this, me](const char* point) { at(me, point); };
      train(me, joins, io::Descriptor(::dup(socket.get())), mine);
      if (emulator::nccl.living != 0) throw std::runtime_error("communicators are left");
      mine.whole = true;
    } catch (const std::exception& e) {
      std::snprintf(mine.error.data(), mine.error.size(), "%s", *e.what() != '\0' ? e.what() : "without a text");
    }
    testing::end_process(mine.whole ? 0 : 1);
  }

  [[nodiscard]] static Graph net() {
    Builder b(3, 6, 6);
    ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
    x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8, .stride = 2}));
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
    return std::move(b).take();
  }
  void train(std::size_t me, bool joins, io::Descriptor socket, Member& end) {
    if (second_is_faster) LoopConvolutions::second_is_faster = [this, me] { return second_is_faster(me); };
    Emulated backend(emulated_options(captured));
    ElasticOptions how;
    how.start.rank = static_cast<int>(me);
    how.start.host = "h";
    how.start.new_worker = joins;
    ElasticNccl strategy(std::make_unique<ControlChannel>(std::make_unique<control::SocketLink>(std::move(socket))),
                         how, NcclGroupFactory{&backend.device(), {std::chrono::seconds(60)}});
    TrainerOptions o;
    o.optimizer = Sgd{0.9, true};
    o.ema_decay = 0.9;
    o.first_bucket_bytes = 1 << 7;
    o.bucket_bytes = 1 << 9;
    o.micro_batch = 6;
    Trainer trainer(backend, strategy, net(), o);
    const JobImages of{samples, global_batch, 6};
    Loader train(of.images(samples), of.train_options(strategy.rank(), strategy.size()));
    Loader test(of.images(JobImages::tests), of.test_options(strategy.rank(), strategy.size()));
    CoordinatorOptions duties;
    duties.audit = audit;
    Coordinator coordinator(trainer, duties);
    FitOptions f = of.fit_options(epochs);
    f.after_step = [&](const FitStep& s) { script_(*this, me, s); };
    end.loaded = true;
    const FitResult result = fit(trainer, train, &test, coordinator, f);
    end.left = result.left;
    end.steps = result.counters.step;
    end.captured = static_cast<std::int64_t>(emulator::Device::instance().graph_launches);
    end.measured = LoopConvolutions::measured;
    end.first_runs = LoopConvolutions::first_runs;
    end.second_runs = LoopConvolutions::second_runs;
    end.weights_count = std::min(trainer.executor().parameters().count, most_weights);
    backend.copy_out(end.weights.data(), trainer.executor().parameter_data(), end.weights_count * sizeof(float));
  }

  Script script_;
  int founders_;
  Board* board_;
  std::vector<pid_t> pids_;
};

}  // namespace tutti::testing
