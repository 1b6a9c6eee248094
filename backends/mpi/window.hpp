// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The folder in which Open MPI keeps the memory of shared windows; what it says itself, else where Linux has it.
[[nodiscard]] inline const std::string& mpi_segment_folder() {
  // Asked once: it takes 0.2 s, because MPI lists all its variables first.
  static const std::string folder = [] {
    std::array<char, 4096> text{};
    int provided = 0, index = 0, count = 0;
    if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided) == MPI_SUCCESS) {
      MPI_T_cvar_handle handle{};
      if (MPI_T_cvar_get_index("osc_sm_backing_directory", &index) == MPI_SUCCESS &&
          MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
        if (count >= static_cast<int>(text.size()) || MPI_T_cvar_read(handle, text.data()) != MPI_SUCCESS)
          text[0] = '\0';
        MPI_T_cvar_handle_free(&handle);
      }
      MPI_T_finalize();
    }
    return std::string(text[0] == '/' ? text.data() : "/dev/shm");
  }();
  return folder;
}

// Bytes that this process may still write into a folder's file system; 0 if it cannot be asked.
[[nodiscard]] inline std::uint64_t free_bytes(const std::string& folder) noexcept {
  struct statvfs s {};
  if (::statvfs(folder.c_str(), &s) != 0) return 0;
  return static_cast<std::uint64_t>(s.f_bavail) * s.f_frsize;
}

// Memory that the ranks of one host share. Each has a part of the same size, page aligned and zero at first; all reach
// all parts.
class HostWindow {
 public:
  // A collective call of the ranks of `host`, which are some or all of those of `node`, the ranks of one machine; all
  // of these call it. Where the segment folder has no room for the parts of all of them, `fits` is false on all. A host
  // of one rank gets no memory.
  [[nodiscard]] static HostWindow make(MPI_Comm node, MPI_Comm host, std::size_t bytes, std::string_view what) {
    HostWindow w;
    const std::string& folder = mpi_segment_folder();
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    int ranks = 0, local = 0;
    mpi_check(MPI_Comm_size(node, &ranks), "MPI_Comm_size", what);
    mpi_check(MPI_Comm_size(host, &local), "MPI_Comm_size", what);
    // The file has a few pages of MPI's own, and others may take room meanwhile.
    const std::uint64_t margin = (std::uint64_t{1} << 20) + bytes / 16;
    const auto n = static_cast<std::uint64_t>(ranks);
    w.free_ = free_bytes(folder);
    w.folder_ = folder;
    w.needed_ = bytes < std::numeric_limits<std::uint64_t>::max() / 4 / n ? n * (bytes + 2 * page + margin)
                                                                          : std::numeric_limits<std::uint64_t>::max();
    if (!agree(node, w.needed_ <= w.free_, what)) return w;
    if (local > 1) w.allocate(host, (bytes + page - 1) / page * page, page, local, what);
    // Writing to memory that the file system cannot back would end the process with SIGBUS. Linux before 5.14 does not
    // know the question (EINVAL).
    const bool backed =
        local == 1 || ::madvise(w.mine().data(), w.mine().size(), populate_write) == 0 || errno == EINVAL;
    w.fits_ = agree(node, backed, what);
    if (!w.fits_) w.release();
    return w;
  }

  [[nodiscard]] bool fits() const noexcept { return fits_; }
  // Why it does not fit.
  [[nodiscard]] std::string reason() const {
    return folder_ + " has " + std::to_string(free_ >> 20) + " MiB free and " + std::to_string((needed_ >> 20) + 1) +
           " MiB are needed";
  }
  [[nodiscard]] std::span<std::byte> mine() const noexcept { return mine_; }
  [[nodiscard]] const std::vector<std::byte*>& bases() const noexcept { return bases_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return mine_.size(); }

  // A collective call of the ranks that made it.
  void release() noexcept {
    if (window_ == MPI_WIN_NULL) return;
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
    mine_ = {};
  }

 private:
  static constexpr int populate_write = 23;  // MADV_POPULATE_WRITE

  static bool agree(MPI_Comm comm, bool mine, std::string_view what) {
    int all = mine ? 1 : 0;
    mpi_check(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce", what);
    return all == 1;
  }

  void allocate(MPI_Comm host, std::size_t bytes, std::size_t page, int ranks, std::string_view what) {
    MPI_Info info = MPI_INFO_NULL;
    mpi_check(MPI_Info_create(&info), "MPI_Info_create", what);
    mpi_check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set", what);
    void* base = nullptr;
    // Open MPI puts tables of its own before the parts, so they begin in the middle of a page: the same place in it for
    // all processes, which therefore align it alike.
    mpi_check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + page), 1, info, host, &base, &window_),
              "MPI_Win_allocate_shared", what);
    MPI_Info_free(&info);
    mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all", what);
    const auto aligned = [&] {
      const auto address = reinterpret_cast<std::uintptr_t>(base);
      return static_cast<std::byte*>(base) + ((address + page - 1) / page * page - address);
    };
    mine_ = {aligned(), bytes};
    for (int r = 0; r < ranks; ++r) {
      MPI_Aint size = 0;
      int unit = 0;
      mpi_check(MPI_Win_shared_query(window_, r, &size, &unit, &base), "MPI_Win_shared_query", what);
      if (static_cast<std::size_t>(size) < bytes + page)
        fail<CommunicationError>(what, std::to_string(bytes + page) + " bytes of every rank",
                                 std::to_string(size) + " of rank " + std::to_string(r));
      bases_.push_back(aligned());
    }
  }

  MPI_Win window_ = MPI_WIN_NULL;
  std::span<std::byte> mine_;
  std::vector<std::byte*> bases_;
  bool fits_ = false;
  std::uint64_t free_ = 0, needed_ = 0;
  std::string folder_;
};

}  // namespace tutti
