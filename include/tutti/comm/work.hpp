// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti {

// The default time for which ranks wait for one another.
inline constexpr std::chrono::milliseconds usual_deadline{600'000};

// An operation that a strategy has started. The caller must wait for every Work: waiting throws the error of the thread
// that ran the operation.
class [[nodiscard]] Work {
 public:
  struct State {  // a communicator's state of a running operation
    virtual ~State() = default;
    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual bool done() const = 0;
    // Makes the device's own stream wait; the host continues. If the data is in the host's memory, the host waits.
    virtual void wait_device() = 0;
    // Makes the host wait. After the communicator's deadline, throws CommunicationError with the name of the work.
    virtual void wait() = 0;
  };

  Work() = default;  // an operation that is done
  explicit Work(std::shared_ptr<State> s) : state_(std::move(s)) {}

  [[nodiscard]] std::string name() const { return state_ ? state_->name() : "nothing"; }
  [[nodiscard]] bool done() const { return !state_ || state_->done(); }
  void wait_device() {
    if (state_) state_->wait_device();
  }
  void wait() {
    if (state_) state_->wait();
  }

 private:
  std::shared_ptr<State> state_;
};

// Waits until done() returns true. Throws CommunicationError after the deadline. what: the name for messages.
inline void poll(const std::function<bool()>& done, std::chrono::milliseconds deadline, const std::string& what) {
  PauseTolerantTimer patience(deadline);
  for (int turn = 0; !done(); ++turn) {
    if (turn < 200) continue;
    if (patience.is_over())
      fail<CommunicationError>(what, "the end of the operation within the deadline",
                               {"no end after ", deadline.count(), " ms"});
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace tutti
