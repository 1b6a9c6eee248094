// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/windows/host_window.hpp>
#include <tutti/comm/windows/window_server.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

namespace tutti {

// Identifies a window for other processes. It has a fixed size and no pointers, so that it can be sent in records.
struct WindowName {
  std::array<char, detail::server_name_digits> server{};  // server of the process that made the window
  std::uint64_t number = 0, bytes = 0;
  std::uint64_t edition = 0;  // edition of its memory, which can be renewed
  friend bool operator==(const WindowName&, const WindowName&) = default;
};

// Reads a neighbour's window without mapping it, which is faster if everything in it is read once.
class WindowReader {
 public:
  // Waits at most two seconds. If the window is not available, sets `why`, and reads fail.
  WindowReader(const WindowName& name, std::string& why)
      : fd_(WindowServer::ask({name.server.data(), name.server.size()}, name.number, why)) {
    if (fd_.get() >= 0 && !HostWindow::is_window(fd_.get(), name.bytes, why)) fd_ = io::Descriptor();
  }
  // Reads the bytes at `place`. Returns false if some of them do not exist.
  [[nodiscard]] bool read(std::size_t place, std::span<std::byte> to) const noexcept {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(place));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      place += static_cast<std::size_t>(n);
      to = to.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }

 private:
  io::Descriptor fd_;
};

// The windows of a process: those that it made, and those of other processes on the host that it has mapped. They
// belong to the process and outlive its communicators: when a group changes, the windows of remaining members stay
// mapped, and only the windows of new members are mapped. Any thread may call the functions.
class ProcessWindows {
 public:
  [[nodiscard]] static ProcessWindows& of_process() {
    static ProcessWindows windows;
    return windows;
  }
  ProcessWindows() = default;

  // Returns zeroed memory: a new window, or an unused window of this size, which need not be allocated or mapped again.
  // Returns null and sets `why` if that fails.
  [[nodiscard]] std::shared_ptr<HostWindow> make(std::size_t bytes, std::string& why) {
    const std::lock_guard lock(own_mutex_);
    try {
      if (!server_) server_.emplace([this](std::uint64_t n, const auto& answer) { find_descriptor(n, answer); });
    } catch (const DeviceError& e) {
      why = e.what();
      return nullptr;
    }
    const std::size_t size = HostWindow::whole_pages(bytes);
    std::erase_if(own_, [](const Own& o) { return o.window.use_count() == 1 && o.window->abandoned(); });
    for (Own& o : own_)
      if (o.window.use_count() == 1 && o.window->bytes().size() == size) {
        std::memset(o.window->bytes().data(), 0, size);
        return o.window;
      }
    auto window = HostWindow::make(bytes, why);
    if (window == nullptr) return nullptr;
    forget_unused(own_, most_unused_own);
    own_.push_back({window, next_++});
    return window;
  }
  // Returns the name of a window from make().
  [[nodiscard]] WindowName name_of(const HostWindow& window) const {
    const std::lock_guard lock(own_mutex_);
    WindowName name;
    for (const Own& o : own_)
      if (o.window.get() == &window) {
        std::copy(server_->name().begin(), server_->name().end(), name.server.begin());
        name.number = o.number;
        name.bytes = window.bytes().size();
        name.edition = o.edition;
      }
    return name;
  }
  // Replaces the memory of a window from make() at the same address. Processes that have mapped the old memory, and
  // were removed from the job, cannot access the new memory. Returns false and sets `why` if the new memory cannot be
  // shared. No thread may use the window during the call.
  bool renew(HostWindow& window, std::string& why) {
    const std::lock_guard lock(own_mutex_);
    for (Own& o : own_)
      if (o.window.get() == &window) ++o.edition;
    return window.renew(why);
  }
  // Maps a window of another process or of this process. Returns null and sets `why` if it is not available. Waits at
  // most two seconds.
  [[nodiscard]] std::shared_ptr<HostWindow> map(const WindowName& name, std::string& why) {
    if (auto own = find_own(name)) return own;
    const std::lock_guard lock(neighbours_mutex_);
    for (const Neighbour& n : neighbours_)
      if (n.name == name) return n.window;
    const std::string_view server(name.server.data(), name.server.size());
    io::Descriptor fd = WindowServer::ask(server, name.number, why);
    if (fd.get() < 0) return nullptr;
    auto window = HostWindow::of_neighbour(std::move(fd), name.bytes, why);
    if (window == nullptr) return nullptr;
    // Removes windows of processes that have ended, and memory that its owner has renewed.
    std::erase_if(neighbours_, [&](const Neighbour& n) {
      return n.window.use_count() == 1 && ((n.name.server == name.server && n.name.number == name.number) ||
                                           !WindowServer::is_open({n.name.server.data(), n.name.server.size()}));
    });
    forget_unused(neighbours_, most_unused_neighbours);
    neighbours_.push_back({window, name});
    return window;
  }

  [[nodiscard]] std::size_t own() const {
    const std::lock_guard lock(own_mutex_);
    return own_.size();
  }
  [[nodiscard]] std::size_t neighbours() const {
    const std::lock_guard lock(neighbours_mutex_);
    return neighbours_.size();
  }
  // Returns the number of refused requests by processes of other users.
  [[nodiscard]] std::uint64_t sent_away() const {
    const std::lock_guard lock(own_mutex_);
    return server_ ? server_->sent_away() : 0;
  }

 private:
  static constexpr std::size_t most_unused_own = 4, most_unused_neighbours = 16;
  struct Own {
    std::shared_ptr<HostWindow> window;
    std::uint64_t number, edition = 0;
  };
  struct Neighbour {
    std::shared_ptr<HostWindow> window;
    WindowName name;
  };

  // Keeps the newest `most` unused windows.
  template <class List>
  static void forget_unused(List& list, std::size_t most) {
    const auto unused = [](const auto& w) { return w.window.use_count() == 1; };
    auto surplus = std::count_if(list.begin(), list.end(), unused) - static_cast<std::ptrdiff_t>(most);
    std::erase_if(list, [&](const auto& w) { return unused(w) && surplus-- > 0; });
  }
  void find_descriptor(std::uint64_t number, const std::function<void(int)>& answer) {
    const std::lock_guard lock(own_mutex_);
    for (const Own& o : own_)
      if (o.number == number) return answer(o.window->descriptor());
    answer(-1);
  }
  [[nodiscard]] std::shared_ptr<HostWindow> find_own(const WindowName& name) const {
    const std::lock_guard lock(own_mutex_);
    if (!server_ || server_->name() != std::string_view(name.server.data(), name.server.size())) return nullptr;
    for (const Own& o : own_)
      if (o.number == name.number && o.window->bytes().size() == name.bytes) return o.window;
    return nullptr;
  }

  mutable std::mutex own_mutex_, neighbours_mutex_;
  std::vector<Own> own_;
  std::vector<Neighbour> neighbours_;
  std::uint64_t next_ = 1;
  std::optional<WindowServer> server_;  // destroyed first: its thread reads the members above
};

}  // namespace tutti
