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

// Memory that processes of one host share: a memfd (Linux), which is no file, has no name and no part in the size of
// /dev/shm, and goes with the last process that has it. It is sealed, so that nobody can shrink it under the feet of
// who reads it. Page aligned, and its pages are there when it is made.
class HostWindow {
 public:
  ~HostWindow() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }
  // What others map it by; of a window of another process, -1.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  // Where `part` lies in it, or more than its size: it lies elsewhere, at least in part.
  [[nodiscard]] std::size_t place_of(std::span<const std::byte> part) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(part.data()) - reinterpret_cast<std::uintptr_t>(data_);
    return at <= bytes_ && part.size() <= bytes_ - at ? at : bytes_ + 1;
  }

  // Somebody may still write to it whom nobody waits for any more: its memory is never used again.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }

  // Other memory at the same place, all zero; who has mapped what was here keeps that, and cannot write here any more.
  // False where there is none to be shared, and `why` says it: then the place is this process's alone. DeviceError: not
  // even that.
  bool renew(std::string& why) {
    const auto fresh = make(bytes_, why);
    void* const at = fresh != nullptr ? ::mremap(fresh->data_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_)
                                      : ::mmap(data_, bytes_, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED)
      fail<DeviceError>("window", {bytes_ >> 20, " MiB of memory in place of others"}, std::strerror(errno));
    fd_ = io::Descriptor();
    abandoned_ = false;
    if (fresh == nullptr) return false;
    fd_ = std::move(fresh->fd_);
    fresh->data_ = nullptr;
    return true;
  }

  // A new one, all zero. Null where there can be none, and `why` says it.
  [[nodiscard]] static std::shared_ptr<HostWindow> make(std::size_t bytes, std::string& why) {
    const std::size_t size = whole_pages(bytes);
    rlimit limit{};
    // Beyond it the process would be ended by a signal.
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

  // That of another process, whose descriptor came from it; nothing that it can do later takes the memory away. Null
  // where it is no such window, and `why` says it.
  [[nodiscard]] static std::shared_ptr<HostWindow> of_neighbour(io::Descriptor fd, std::size_t bytes,
                                                                std::string& why) {
    if (!is_window(fd.get(), bytes, why)) return nullptr;
    auto window = map(std::move(fd), bytes, why);
    if (window == nullptr) return nullptr;
    // Its pages are there: read, they are mapped sixteen at a time, and can be written then.
    (void)::madvise(window->data_, bytes, populate_read);  // sooner, where the system can
    window->fd_ = io::Descriptor();
    return window;
  }

  // Whether this is the descriptor of a window of so many bytes; else `why` says what is wrong.
  [[nodiscard]] static bool is_window(int fd, std::size_t bytes, std::string& why) {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    struct stat s {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
      no("a window that its owner could shrink", 0, why);
    else if (::fstat(fd, &s) != 0)
      no("fstat", errno, why);
    else if (const auto size = static_cast<std::uint64_t>(s.st_size); bytes == 0 || size != bytes)
      no("a window of " + std::to_string(size) + " bytes, not " + std::to_string(bytes), 0, why);
    // Else this process would pay for memory that another one only talks of.
    else if (static_cast<std::uint64_t>(s.st_blocks) * 512 < size)
      no("a window that is not filled", 0, why);
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

  static std::nullptr_t no(const std::string& what, int error, std::string& why) {
    why = error == 0 ? what : what + ": " + std::strerror(error);
    return nullptr;
  }
  // Systems may ask that nothing in it can be run, and older ones do not know the question.
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
  // Takes the memory now: in the first step it would take 30 to 115 ms.
  bool fill(std::string& why) noexcept {
    if (::madvise(data_, bytes_, populate_write) == 0) return true;
    if (errno != EINVAL) {
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
