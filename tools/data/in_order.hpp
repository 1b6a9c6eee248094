// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/threads/threads.hpp>

namespace tutti::data_tool {

// Calls make(i, slot) for i in [0, n) on `threads` threads, and take(i, slot) in the calling thread in ascending order.
// So it throws the exception of the lowest i. Uses at most 2 * threads slots, so memory does not grow with n. If
// `threads` is 1, the calling thread does all the work.
template <class Slot, class Make, class Take>
void in_order(std::int64_t n, int threads, Make&& make, Take&& take) {
  if (threads <= 1) {
    Slot slot;
    for (std::int64_t i = 0; i < n; ++i) {
      make(i, slot);
      take(i, slot);
    }
    return;
  }
  struct Cell {
    Slot slot;
    std::int64_t ready = -1;
    std::exception_ptr error;
  };
  std::vector<Cell> cells(static_cast<std::size_t>(threads) * 2);
  const auto ahead = static_cast<std::int64_t>(cells.size());
  std::mutex mutex;
  std::condition_variable room, done;
  std::int64_t next = 0, taken = 0;
  bool stop = false;
  const auto cell_of = [&](std::int64_t i) -> Cell& { return cells[static_cast<std::size_t>(i % ahead)]; };
  const auto work = [&] {
    for (std::unique_lock lock(mutex);;) {
      room.wait(lock, [&] { return stop || next >= n || next < taken + ahead; });
      if (stop || next >= n) return;
      const std::int64_t i = next++;
      Cell& cell = cell_of(i);
      lock.unlock();
      std::exception_ptr error;
      try {
        make(i, cell.slot);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      cell.ready = i;
      cell.error = std::move(error);
      done.notify_one();
    }
  };
  std::vector<std::thread> pool;
  const auto end = [&] {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
    for (auto& t : pool) t.join();
  };
  try {
    for (int t = 0; t < threads; ++t) pool.push_back(start_thread("worker threads", work));
    for (std::int64_t i = 0; i < n; ++i) {
      Cell& cell = cell_of(i);
      {
        std::unique_lock lock(mutex);
        done.wait(lock, [&] { return cell.ready == i; });
      }
      if (cell.error) std::rethrow_exception(cell.error);
      take(i, cell.slot);
      {
        const std::lock_guard lock(mutex);
        ++taken;
      }
      room.notify_all();
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace tutti::data_tool
