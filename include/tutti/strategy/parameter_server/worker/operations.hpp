// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/work.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/core/span.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/worker/exported_windows.hpp>

namespace tutti::ps {

// The parameters of a worker's operation.
struct Request {
  std::span<std::byte> data{};
  DType dtype = DType::u8;
  Operation operation = Operation::sum;
  std::uint32_t root = 0;
  std::uint64_t key = 0, step = 0;
  std::uint32_t bucket = Frame::no_bucket;
  bool stays = false;  // the data outlives the transport, so it is sent from its own memory
  // For an operation of this worker alone. base: offset of the data in its arena, in bytes; where: the servers of its
  // parts; answer: destination of the answer if it does not replace the data.
  std::uint64_t base = 0;
  std::span<const ServerRange> where{};
  std::span<std::byte> answer{};
  // threshold: if above 0, f32 are sent to the servers in two bits (two_bit.hpp), except the first `plain` bytes.
  float threshold = 0;
  std::span<float> kept{};
  std::size_t plain = 0;
  bool has = false;  // for Operation::take: this worker already has the data
  // exported, place: the window that contains the data, and the position. Null: no window. Servers that have the window
  // are sent no data.
  const ExportedWindow* exported = nullptr;
  std::uint64_t place = 0;
};

// The operations that a worker has posted, oldest first. Several threads wait for them and one thread runs them. After
// the first exception all later operations fail with it.
class Operations {
 public:
  // A part of an operation's data: one frame to one server.
  struct Part {
    int server = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, packed_bytes = 0;  // packed_bytes: size in two bits; 0: sent unchanged
    std::size_t packed_at = 0;                  // position in Job::packed
    bool sent = false, answered = false;
  };
  struct Job final : Work::State {  // a running operation
    explicit Job(Operations& o) : operations(o) {}
    Operations& operations;
    Request request{};
    std::string name_{};
    std::chrono::milliseconds deadline{0};
    std::chrono::steady_clock::time_point posted{};
    // The members below, up to under_way, are used by the thread that runs the operation.
    std::uint64_t round = 0;
    std::vector<Part> parts{};
    std::size_t answered = 0;
    std::vector<bf16> narrow{};  // bf16 values that are sent instead of f32
    std::span<std::byte> wide{};
    std::vector<std::byte> packed{};
    std::deque<PendingSends> under_way{};  // one for each part

    std::atomic<bool> done_{false};
    std::exception_ptr error{};

    [[nodiscard]] std::string name() const override { return name_; }
    [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
    void wait_device() override { wait(); }
    void wait() override {
      if (!done()) operations.wait(*this);
      if (error) std::rethrow_exception(error);
    }
  };

  // grace: time after an operation's deadline in which it may still find out which process is missing.
  explicit Operations(std::chrono::milliseconds grace) : grace_(grace) {}

  // wake: wakes the thread that runs operations; called unless the operation has already failed.
  template <class Wake>
  Work post(const Request& request, const std::string& name, std::chrono::milliseconds deadline, Wake&& wake) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      job = fresh();
      job->request = request;
      job->name_ = name;
      job->deadline = deadline;
      job->posted = std::chrono::steady_clock::now();
      job->error = failed_;
      job->done_.store(failed_ != nullptr, std::memory_order_release);
      if (failed_) return Work(std::move(job));
      posted_.push_back(job);
    }
    wake();
    return Work(std::move(job));
  }

  // For the thread that runs operations: appends the operations posted since the last call to `list`.
  void take(std::vector<std::shared_ptr<Job>>& list) {
    const std::lock_guard lock(mutex_);
    for (auto& job : posted_) list.push_back(std::move(job));
    posted_.clear();
  }
  void finish(Job& job) {
    if (SpanWatcher* const w = span_watcher.load(std::memory_order_acquire); w != nullptr) [[unlikely]]
      w->over(Lane::communication, "push and pull " + job.name_, static_cast<std::int64_t>(job.request.data.size()),
              std::chrono::nanoseconds(std::chrono::steady_clock::now() - job.posted).count());
    {
      const std::lock_guard lock(mutex_);
      job.done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }
  // Fails all unfinished and all later operations.
  void fail_all(const std::vector<std::shared_ptr<Job>>& begun, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      if (!failed_) failed_ = std::move(error);
      for (const std::vector<std::shared_ptr<Job>>* list : {&begun, &std::as_const(posted_)})
        for (const auto& job : *list)
          if (!job->done()) {
            job->error = failed_;
            job->done_.store(true, std::memory_order_release);
          }
      posted_.clear();
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool failed() const {
    const std::lock_guard lock(mutex_);
    return failed_ != nullptr;
  }

 private:
  // Returns a job that is not in use. Jobs are reused, so that repeated steps allocate no memory.
  std::shared_ptr<Job> fresh() {
    for (auto& j : pool_)
      if (j.use_count() == 1) return j;
    return pool_.emplace_back(std::make_shared<Job>(*this));
  }
  void wait(Job& job) {
    std::unique_lock lock(mutex_);
    for (PauseTolerantTimer patience(job.deadline + grace_); !job.done();) {
      if (patience.is_over())
        tutti::fail<CommunicationError>(job.name_, {"an answer of the servers within ", job.deadline.count(), " ms"},
                                        "no answer", "check the servers, or raise --comm-deadline");
      changed_.wait_for(lock, patience.next_wait());
    }
  }

  const std::chrono::milliseconds grace_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Job>> posted_, pool_;
  std::exception_ptr failed_{};
};

}  // namespace tutti::ps
