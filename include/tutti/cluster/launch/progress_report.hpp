// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include <tutti/io/file.hpp>

// Reports the progress of a rank to the launcher, because a rank that is killed or hangs cannot report it itself. Each
// process maps a small file, and the launcher's part on the same host reads it. A report is one store to memory: no
// system call, no block, no failure. The last store is still in the file after the process has been killed.
namespace tutti {

enum class ProgressPhase : std::uint8_t {  // what a rank does
  none = 0,                                // no report yet
  begin = 1,                               // the reduction of the bucket began
  end = 2,                                 // the reduction of the bucket has ended
  idle = 3,                                // not to be watched: the rank does not train, or is done
};

struct RankProgress {  // how far a rank has come
  std::uint64_t step = 0;
  int bucket = -1;  // -1: none
  ProgressPhase phase = ProgressPhase::none;

  [[nodiscard]] bool operator==(const RankProgress&) const = default;
};

// The layout of the file in native byte order: writer and reader are on one host.
struct ProgressSlot {
  static constexpr std::uint64_t magic_value = 0x3152474f52505454;  // "TTPROGR1"
  static constexpr int max_bucket = 0xfffe;

  std::uint64_t magic = magic_value;
  std::uint64_t job = 0;       // the job's identity as a number
  std::uint64_t position = 0;  // step << 24 | (bucket + 1) << 8 | phase, in one word so that a reader never sees half
                               // of an update
  std::uint64_t reserved[5] = {};

  // Steps are stored modulo 2^40, buckets up to 65534.
  [[nodiscard]] static constexpr std::uint64_t pack(std::uint64_t step, int bucket, ProgressPhase phase) noexcept {
    const int kept = bucket < 0 ? -1 : bucket > max_bucket ? max_bucket : bucket;
    return (step << 24) | (static_cast<std::uint64_t>(kept + 1) << 8) | static_cast<std::uint64_t>(phase);
  }
  [[nodiscard]] static constexpr RankProgress unpack(std::uint64_t position) noexcept {
    return {position >> 24, static_cast<int>((position >> 8) & 0xffff) - 1,
            static_cast<ProgressPhase>(position & 0xff)};
  }
};
static_assert(sizeof(ProgressSlot) == 64 && std::atomic_ref<std::uint64_t>::is_always_lock_free);

namespace detail {

// Returns a job's identity, hexadecimal digits, as the number in the slot.
[[nodiscard]] inline std::uint64_t job_number(const std::string& job) noexcept {
  return std::strtoull(job.c_str(), nullptr, 16);
}

// Returns the mapped slot of a file; null if the file is no slot.
[[nodiscard]] inline ProgressSlot* map_slot(int fd) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != off_t{sizeof(ProgressSlot)})
    return nullptr;
  void* at = ::mmap(nullptr, sizeof(ProgressSlot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<ProgressSlot*>(at);
}

}  // namespace detail

// The sender, in the process that trains. Has no effect if no launcher waits for reports, or if its file does not exist
// or is not valid: a report never makes a training step fail. Calls from several threads are allowed; the last one
// counts.
class ProgressReporter {
 public:
  // Takes the file and the job from the environment: TUTTI_REPORT, TUTTI_JOB.
  ProgressReporter() noexcept : ProgressReporter(std::getenv("TUTTI_REPORT"), std::getenv("TUTTI_JOB")) {}
  ProgressReporter(const char* file, const char* job) noexcept {
    if (file == nullptr || job == nullptr || *file == '\0') return;
    const int fd = ::open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    slot_ = detail::map_slot(fd);
    ::close(fd);
    if (slot_ == nullptr) return;
    if (slot_->magic != ProgressSlot::magic_value || slot_->job != std::strtoull(job, nullptr, 16)) unmap();
  }
  ~ProgressReporter() {
    idle();
    unmap();
  }
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

  [[nodiscard]] bool active() const noexcept { return slot_ != nullptr; }

  // Reports that the reduction of a bucket of a step begins, or has ended.
  void begin(std::uint64_t step, int bucket) noexcept { store(ProgressSlot::pack(step, bucket, ProgressPhase::begin)); }
  void end(std::uint64_t step, int bucket) noexcept { store(ProgressSlot::pack(step, bucket, ProgressPhase::end)); }
  // Reports that silence is no sign of trouble until the next begin or end.
  void idle() noexcept {
    if (slot_ == nullptr) return;
    const std::uint64_t last = std::atomic_ref(slot_->position).load(std::memory_order_relaxed);
    store((last & ~std::uint64_t{0xff}) | static_cast<std::uint64_t>(ProgressPhase::idle));
  }

 private:
  void store(std::uint64_t position) noexcept {
    if (slot_ != nullptr) std::atomic_ref(slot_->position).store(position, std::memory_order_relaxed);
  }
  void unmap() noexcept {
    if (slot_ != nullptr) ::munmap(slot_, sizeof(ProgressSlot));
    slot_ = nullptr;
  }

  ProgressSlot* slot_ = nullptr;
};

// The reader, in the launcher: opens a slot, or creates it for a process that starts later.
class ProgressFile {
 public:
  // Creates the file, which must not exist. Throws FileError if that fails.
  [[nodiscard]] static ProgressFile create(const io::Path& path, const std::string& job) {
    const auto fd = io::Descriptor::open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, "make", 0600);
    ProgressSlot slot;
    slot.job = detail::job_number(job);
    // Written before it is mapped: on a full disk, a store to the mapping would raise SIGBUS.
    errno = ENOSPC;
    if (::write(fd.get(), &slot, sizeof slot) != ssize_t{sizeof slot}) io::fail_file("write", path, errno);
    ProgressFile file;
    file.slot_ = detail::map_slot(fd.get());
    if (file.slot_ == nullptr) io::fail_file("map", path, errno);
    file.job_ = slot.job;
    return file;
  }
  // Returns no value if there is no such file, or if it belongs to another job.
  [[nodiscard]] static std::optional<ProgressFile> open(const io::Path& path, const std::string& job) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return {};
    ProgressFile file;
    file.slot_ = detail::map_slot(fd);
    file.job_ = detail::job_number(job);
    ::close(fd);
    if (file.slot_ == nullptr || !file.read()) return {};
    return file;
  }
  ProgressFile(ProgressFile&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)), job_(other.job_) {}
  ProgressFile& operator=(ProgressFile&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(job_, other.job_);
    return *this;
  }
  ~ProgressFile() {
    if (slot_ != nullptr) ::munmap(slot_, sizeof(ProgressSlot));
  }

  // Returns no value if the file does not contain a valid slot of this job any more.
  [[nodiscard]] std::optional<RankProgress> read() const noexcept {
    if (slot_->magic != ProgressSlot::magic_value || slot_->job != job_) return {};
    const auto progress = ProgressSlot::unpack(std::atomic_ref(slot_->position).load(std::memory_order_relaxed));
    if (progress.phase > ProgressPhase::idle) return {};
    return progress;
  }

 private:
  ProgressFile() = default;
  ProgressSlot* slot_ = nullptr;
  std::uint64_t job_ = 0;
};

}  // namespace tutti
