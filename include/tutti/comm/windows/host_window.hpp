// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

namespace tutti {

// Memory that processes of one host share: a memfd (Linux). It is not a file, has no name, does not count in the size
// of /dev/shm, and is freed with the last process that has it. It is sealed, so that its owner cannot shrink it while
// another process reads it. It is page aligned, and make() allocates its pages.
class HostWindow {
 public:
  ~HostWindow() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }
  // Returns the descriptor by which other processes map the window, or -1 if it is a window of another process.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  // Returns the offset of `part` in the window, or a larger number than its size if some bytes are outside.
  [[nodiscard]] std::size_t place_of(std::span<const std::byte> part) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(part.data()) - reinterpret_cast<std::uintptr_t>(data_);
    return at <= bytes_ && part.size() <= bytes_ - at ? at : bytes_ + 1;
  }

  // Call if another process may still write to the window, although the group has ended: its memory is never reused.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }

  // Replaces the memory by new zeroed memory at the same address. Processes that have mapped the old memory keep it,
  // and cannot write to the new memory. Returns false and sets `why` if the new memory cannot be shared: it then
  // belongs to this process alone. Throws DeviceError if there is no memory at all.
  bool renew(std::string& why) {
    const auto fresh = make(bytes_, why);
    void* const at = fresh != nullptr ? ::mremap(fresh->data_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_)
                                      : ::mmap(data_, bytes_, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED)
      fail<DeviceError>("window", {bytes_ >> 20, " MiB of new memory at the address of the window"},
                        std::strerror(errno));
    fd_ = io::Descriptor();
    abandoned_ = false;
    if (fresh == nullptr) return false;
    fd_ = std::move(fresh->fd_);
    fresh->data_ = nullptr;
    return true;
  }

  // Makes a new zeroed window. Returns null and sets `why` if that fails.
  [[nodiscard]] static std::shared_ptr<HostWindow> make(std::size_t bytes, std::string& why) {
    const std::size_t size = whole_pages(bytes);
    rlimit limit{};
    // If the file grew beyond this limit, a signal would end the process.
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur)
      return no("the limit of file sizes (ulimit -f) is " + std::to_string(limit.rlim_cur) + " bytes", 0, why);
    io::Descriptor fd(create());
    if (fd.get() < 0) return no("memfd_create", errno, why);
    if (size == 0 || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return no("ftruncate", errno, why);
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      return no("F_ADD_SEALS", errno, why);
    auto window = map(std::move(fd), size, why);
    if (window != nullptr && !window->fill(why)) return nullptr;
    return window;
  }

  // Maps the window of another process by its descriptor. The other process cannot shrink it later. Returns null and
  // sets `why` if it is not such a window.
  [[nodiscard]] static std::shared_ptr<HostWindow> of_neighbour(io::Descriptor fd, std::size_t bytes,
                                                                std::string& why) {
    if (!is_window(fd.get(), bytes, why)) return nullptr;
    auto window = map(std::move(fd), bytes, why);
    if (window == nullptr) return nullptr;
    // The pages exist already. A read fault maps sixteen pages at a time, and they can then be written too.
    (void)::madvise(window->data_, bytes, populate_read);  // maps all pages in advance, if the system can
    window->fd_ = io::Descriptor();
    return window;
  }

  // Returns whether this is the descriptor of a window of this size; otherwise sets `why`.
  [[nodiscard]] static bool is_window(int fd, std::size_t bytes, std::string& why) {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    struct stat s {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
      no("its owner can shrink the window", 0, why);
    else if (::fstat(fd, &s) != 0)
      no("fstat", errno, why);
    else if (const auto size = static_cast<std::uint64_t>(s.st_size); bytes == 0 || size != bytes)
      no("the window has " + std::to_string(size) + " bytes instead of " + std::to_string(bytes), 0, why);
    // Without this check, this process would allocate memory that the other process has only announced.
    else if (!is_allocated(s))
      no("the memory of the window is not allocated", 0, why);
    else
      return true;
    return false;
  }

  [[nodiscard]] static std::size_t whole_pages(std::size_t bytes) noexcept {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

 private:
  static constexpr int populate_read = 22, populate_write = 23;  // MADV_POPULATE_READ and _WRITE, Linux 5.14

  HostWindow(io::Descriptor fd, std::byte* data, std::size_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  static bool is_allocated(const struct stat& s) noexcept {
    return static_cast<std::uint64_t>(s.st_blocks) * 512 >= static_cast<std::uint64_t>(s.st_size);
  }
  static std::nullptr_t no(const std::string& what, int error, std::string& why) {
    why = error == 0 ? what : what + ": " + std::strerror(error);
    return nullptr;
  }
  // MFD_NOEXEC_SEAL forbids to execute the memory. Some systems require this flag; older systems do not know it.
  static int create() noexcept {
    constexpr unsigned no_exec = 0x8;  // MFD_NOEXEC_SEAL, Linux 6.3
    const int fd = ::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING | no_exec);
    return fd >= 0 || errno != EINVAL ? fd : ::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  static std::shared_ptr<HostWindow> map(io::Descriptor fd, std::size_t bytes, std::string& why) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return no("mmap of " + std::to_string(bytes >> 20) + " MiB", errno, why);
    return std::shared_ptr<HostWindow>(new HostWindow(std::move(fd), static_cast<std::byte*>(at), bytes));
  }
  // Allocates the memory now, because this would delay the first step by 30 to 115 ms.
  bool fill(std::string& why) noexcept {
    struct stat s {};
    const bool advised = ::madvise(data_, bytes_, populate_write) == 0;
    // Emulators of Linux accept any advice, and do nothing.
    if (advised && ::fstat(fd_.get(), &s) == 0 && is_allocated(s)) return true;
    // Older systems do not have this advice, and a filter of system calls may refuse the call.
    if (!advised && errno != EINVAL && errno != EPERM && errno != ENOSYS) {
      no("memory for " + std::to_string(bytes_ >> 20) + " MiB", errno, why);
      return false;
    }
    std::memset(data_, 0, bytes_);
    return true;
  }

  io::Descriptor fd_;
  std::byte* data_;
  std::size_t bytes_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace tutti
