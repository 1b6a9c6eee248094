// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/deadline.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/threads/threads.hpp>

namespace tutti {

// Runs operations one after the other in the order in which they were posted, on a thread of its own, so that they run
// while the caller computes. A thread that waits for an operation that has not begun runs it, and all earlier ones,
// itself: a blocking call costs no thread switch.
// `Request` is a small value. `Engine::run(const Request&, name, const Deadline&)` does the work, in one thread at a
// time. After the first exception all later operations fail with it. An operation ends by its deadline, or up to
// `grace` later while the engine finds out which rank caused the delay.
template <class Engine, class Request>
class CommQueue {
 public:
  CommQueue(Engine& engine, std::chrono::milliseconds deadline, std::chrono::milliseconds grace)
      : shared_(std::make_shared<Shared>(engine, deadline, grace)),
        thread_(start_thread("communication", [s = shared_] { s->serve(); })) {}
  ~CommQueue() {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->stop = true;
    }
    shared_->wake.notify_all();
    thread_.join();
  }
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  Work post(const Request& request, const std::string& name) { return post(request, name, shared_->deadline); }
  Work post(const Request& request, const std::string& name, std::chrono::milliseconds deadline) {
    const std::lock_guard lock(shared_->mutex);
    auto job = shared_->fresh_job();
    job->request = request;
    job->name_ = name;
    job->deadline = deadline;
    job->done_.store(false, std::memory_order_relaxed);
    job->error = nullptr;
    shared_->waiting.push_back(job);
    if (shared_->idle) shared_->wake.notify_all();
    return Work(job);
  }

  // Fails all queued operations before they begin.
  void give_up() noexcept {
    const std::lock_guard lock(shared_->mutex);
    shared_->gave_up = true;
    shared_->wake.notify_all();
  }

 private:
  struct Shared;
  struct Job final : Work::State {
    Request request{};
    std::string name_;
    std::chrono::milliseconds deadline{0};
    std::atomic<bool> done_{false};
    std::exception_ptr error;
    Shared* shared = nullptr;

    [[nodiscard]] std::string name() const override { return name_; }
    [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
    void wait_device() override { wait(); }
    void wait() override {
      if (!done()) shared->wait(*this);
      if (error) std::rethrow_exception(error);
    }
  };

  struct Shared {
    Shared(Engine& e, std::chrono::milliseconds d, std::chrono::milliseconds g) : engine(e), deadline(d), grace(g) {}

    // Returns a job that is not in use. Jobs are reused, so that repeated steps allocate no memory.
    std::shared_ptr<Job> fresh_job() {
      for (auto& j : pool)
        if (j.use_count() == 1) return j;
      pool.push_back(std::make_shared<Job>());
      pool.back()->shared = this;
      return pool.back();
    }

    // Runs the first waiting job. The caller holds the lock before and after the call.
    void run_first(std::unique_lock<std::mutex>& lock) {
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.erase(waiting.begin());
      busy = true;
      if (failed) {
        job->error = failed;
      } else {
        const Deadline end(job->deadline);
        ++operations;
        silence_limit = job->deadline + grace;
        const bool refused = gave_up;
        lock.unlock();
        std::exception_ptr error;
        try {
          if (refused) fail<CommunicationError>(job->name_, "all ranks", "this rank has aborted");
          engine.run(job->request, job->name_, end);
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        job->error = error;
        if (error) failed = error;
      }
      busy = false;
      job->done_.store(true, std::memory_order_release);
      wake.notify_all();
    }

    void serve() {
      std::unique_lock lock(mutex);
      for (;;) {
        idle = true;
        wake.wait(lock, [&] { return (!waiting.empty() && !busy) || stop; });
        idle = false;
        if (waiting.empty() || busy) {
          if (stop) return;
          continue;
        }
        run_first(lock);
      }
    }

    void wait(Job& job) {
      std::unique_lock lock(mutex);
      PauseTolerantTimer patience(job.deadline), silence(silence_limit);
      std::uint64_t seen = operations;
      while (!job.done()) {
        if (!busy && !waiting.empty()) {
          run_first(lock);
          continue;
        }
        if (std::exchange(seen, operations) != operations) silence = PauseTolerantTimer(silence_limit);
        const auto now = time_since_boot();
        const bool late = patience.is_over(now);
        // The thread that runs the job knows the reason of a delay, so this thread waits until that thread reports it.
        if (silence.is_over(now) && late)
          fail<CommunicationError>(job.name_, {"an answer within ", job.deadline.count(), " ms"}, "no answer");
        wake.wait_for(lock, PauseTolerantTimer::slice);
      }
    }

    Engine& engine;
    const std::chrono::milliseconds deadline, grace;
    std::uint64_t operations = 0;                // number of operations that have begun
    std::chrono::milliseconds silence_limit{0};  // the running operation reports its error within this time
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<std::shared_ptr<Job>> waiting;  // only a few
    std::vector<std::shared_ptr<Job>> pool;
    std::exception_ptr failed;
    bool busy = false, stop = false, idle = false, gave_up = false;
  };

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tutti
