// SPDX-License-Identifier: MIT
// Tests that the emulator detects the memory errors of kernels from PTX: races in shared and global memory, addresses
// outside of allocations and of shared variables, addresses that are not aligned, and shared memory that was not
// written. Each kernel has a correct form too.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "backends/ptx_kernels.hpp"

using namespace tutti;

namespace {

using testing::DeviceArray;
using testing::PtxKernel;

// Runs a kernel of 2 blocks of 64 threads. Returns the message of the fault, or an empty text.
std::string fault_of(const std::string& body, const std::string& variables = "") {
  PtxKernel kernel(testing::entry(body, variables));
  const DeviceArray<std::uint32_t> in(128), out(128);
  for (std::uint32_t i = 0; i < 128; ++i) in[i] = out[i] = i;
  const std::string said = testing::end_of([&] { kernel.run(2, 64, in.data(), out.data()); });
  return said == "no signal: " ? "" : said;
}

// %r21: the block, %r22: the thread among all, %rd1: 4 bytes for it in `in`, %rd2: in `out`, %r24: shared memory.
const std::string places = R"(
mov.u32 %r21, %ctaid.x;
mad.lo.s32 %r22, %r21, 64, %r20;
mul.wide.u32 %rd30, %r22, 4;
add.u64 %rd1, %rd20, %rd30;
add.u64 %rd2, %rd21, %rd30;
shl.b32 %r23, %r20, 2;
mov.u32 %r24, room;
add.u32 %r24, %r24, %r23;
)";
const std::string room = ".shared .align 4 .b8 room[256];\n";
std::string kernel(const std::string& text) { return room + places + text; }

void check_fault(const std::string& body, const std::string& expected) {
  const std::string said = fault_of(kernel(body));
  if (expected.empty()) CHECK_MESSAGE(said.empty(), body << said);
  if (!expected.empty())
    CHECK_MESSAGE(said.find("signal: emulator: " + expected + " in kernel k, block ") == 0, body << said);
}
void check_race(const std::string& body, const std::string& expected) {
  const std::string said = fault_of(kernel(body));
  CHECK_MESSAGE(said.find("signal: emulator: a race in " + expected) == 0, body << said);
}

}  // namespace

TEST_CASE("a barrier that is missing between a write and a read of shared memory is a race") {
  // Each thread reads its neighbour's value.
  const std::string write = "ld.global.u32 %r1, [%rd1];\nst.shared.u32 [%r24], %r1;\n",
                    read =
                        "xor.b32 %r2, %r23, 4;\nmov.u32 %r3, room;\nadd.u32 %r3, %r3, %r2;\nld.shared.u32 %r1, [%r3];\n"
                        "st.global.u32 [%rd2], %r1;\n",
                    barrier = "bar.sync 0;\n";
  check_fault(write + barrier + read, "");
  const std::string said = fault_of(kernel(write + read));
  const bool race = said.find("a race in shared memory") != std::string::npos,
             early = said.find("a read of shared memory that was not written") != std::string::npos;
  CHECK_MESSAGE((race || early), said);
  // The second write may come before the first read has ended.
  check_race(write + barrier + read + write, "shared memory: ");
  check_fault(write + barrier + read + barrier + write, "");
  // Two threads write one place.
  check_race("mov.u32 %r3, room;\nst.shared.u32 [%r3], %r1;\n", "shared memory: write after a write by thread ");
  // bar.warp.sync orders the accesses of a warp's threads, and of no others.
  const std::string warp = "bar.warp.sync 0xffffffff;\n";
  check_fault(write + warp + read, "");
  check_race(write + warp + "xor.b32 %r23, %r23, 128;\nmov.u32 %r24, room;\nadd.u32 %r24, %r24, %r23;\n" + write,
             "shared memory: write after a write by thread ");
}

TEST_CASE("two threads of a launch that access one place of global memory without order are a race") {
  check_fault("ld.global.u32 %r1, [%rd1];\nst.global.u32 [%rd2], %r1;\n", "");
  check_race("st.global.u32 [%rd21], %r22;\n", "global memory: write after a write by thread ");
  check_race("ld.global.u32 %r1, [%rd21];\nst.global.u32 [%rd2], %r1;\n", "global memory: ");
  check_fault("ld.global.u32 %r1, [%rd20];\nst.global.u32 [%rd2], %r1;\n", "");
  // A barrier orders the threads of a block, and not those of two blocks.
  const std::string other =
      "xor.b32 %r22, %r22, DISTANCE;\nmul.wide.u32 %rd30, %r22, 4;\nadd.u64 %rd3, %rd21, %rd30;\n"
      "st.global.u32 [%rd2], %r20;\nbar.sync 0;\nld.global.u32 %r1, [%rd3];\n";
  const auto at = [&](const char* distance) {
    std::string text = other;
    return text.replace(text.find("DISTANCE"), 8, distance);
  };
  check_fault(at("1"), "");
  check_race(at("64"), "global memory: ");
  // Atomic operations do not race with each other, and race with plain accesses.
  check_fault("red.global.add.u32 [%rd21], 1;\n", "");
  check_fault("ld.volatile.global.u32 %r1, [%rd21];\nred.global.add.u32 [%rd21], 1;\n", "");
  check_race("red.global.add.u32 [%rd21], 1;\nld.global.u32 %r1, [%rd21];\n", "global memory: ");
  // Neighbouring bytes are different places, also after an access to all four.
  check_fault("cvt.u64.u32 %rd30, %r22;\nadd.u64 %rd3, %rd21, %rd30;\nst.global.u8 [%rd3], %r20;\n", "");
  check_race(
      "st.global.u32 [%rd2], %r20;\ncvt.u64.u32 %rd30, %r22;\nadd.u64 %rd3, %rd21, %rd30;\nst.global.u8 [%rd3], "
      "%r20;\n",
      "global memory: write after a write by ");
}

TEST_CASE("an access outside of an allocation, of a shared variable or of a parameter is refused") {
  check_fault("ld.global.u32 %r1, [%rd20+508];\n", "");
  check_fault("ld.global.u32 %r1, [%rd20+512];\n", "memory that is not allocated");
  check_fault("ld.global.u32 %r1, [%rd20+-4];\n", "memory that is not allocated");
  check_fault("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd20+496];\n", "");
  check_fault("mov.u32 %r1, 0;\nst.global.v2.u32 [%rd20+512], {%r1, %r1};\n", "memory that is not allocated");
  check_fault("mov.u64 %rd3, 0;\nld.u32 %r1, [%rd3];\n", "memory that is not allocated");
  check_fault("st.shared.u32 [%r24+256], %r1;\n", "shared memory: an index out of bounds");
  check_fault("st.shared.u32 [%r24+-4], %r1;\nst.shared.u32 [%r24+-4], %r1;\n",
              "shared memory: an index out of bounds");
  check_fault("mov.b64 %rd3, k_param_0;\nld.param.u64 %rd4, [%rd3];\n", "");
  check_fault("mov.b64 %rd3, k_param_0;\nld.param.u64 %rd4, [%rd3+8];\n", "a parameter: an index out of bounds");
}

TEST_CASE("a load or a store must be aligned to all of its bytes") {
  check_fault("ld.global.v2.u32 {%r1, %r2}, [%rd20+8];\n", "");
  check_fault("ld.global.v2.u32 {%r1, %r2}, [%rd20+4];\n", "data that is not aligned");
  check_fault("ld.global.u64 %rd3, [%rd20+4];\n", "data that is not aligned");
  check_fault("ld.global.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [%rd20+4];\n", "data that is not aligned");
  check_fault("st.shared.u32 [%r24+2], %r1;\n", "shared data that is not aligned");
}

TEST_CASE("a read of shared memory that the block has not written is refused") {
  check_fault("st.shared.u32 [%r24], %r1;\nld.shared.u32 %r2, [%r24];\n", "");
  check_fault("ld.shared.u32 %r2, [%r24];\n", "a read of shared memory that was not written");
  check_fault("st.shared.u16 [%r24], %rs1;\nld.shared.u32 %r2, [%r24];\n",
              "a read of shared memory that was not written");
  // The first block writes, so that a processor's memory would contain its values.
  check_fault(
      "setp.ne.u32 %p1, %r21, 0;\n@%p1 bra $L__read;\nst.shared.u32 [%r24], %r1;\n$L__read:\nld.shared.u32 %r2, "
      "[%r24];\n",
      "a read of shared memory that was not written");
  // Through a generic address.
  check_fault(
      "cvta.shared.u64 %rd3, 0;\ncvt.u64.u32 %rd4, %r24;\nadd.u64 %rd3, %rd3, %rd4;\nst.u32 [%rd3], "
      "%r1;\nld.shared.u32 %r2, [%r24];\n",
      "");
}

TEST_CASE("a lane that does not reach an operation of its warp ends the program") {
  const std::string said = fault_of(kernel("setp.eq.u32 %p1, %r20, 7;\n@%p1 ret;\nbar.warp.sync 0xffffffff;\n"));
  CHECK_MESSAGE(said.find("an operation of a warp that not all of its lanes reach") != std::string::npos, said);
  check_fault("div.s32 %r1, %r20, %r2;\n", "an integer divided by zero");
}

namespace {

// Each of 3 blocks writes its values of `out`, waits for the others and reads those of the next block. The barrier
// counts in room.
std::string neighbours(const std::string& before, const std::string& arrive, const std::string& look,
                       const std::string& after) {
  return places + "st.global.u32 [%rd2], %r22;\n" + before + "setp.ne.u32 %p1, %r20, 0;\n@%p1 bra $done;\n" + arrive +
         "$again:\n" + look + "setp.lt.u32 %p2, %r5, 3;\n@%p2 bra $again;\n$done:\n" + after +
         "add.u32 %r6, %r22, 64;\nsetp.lt.u32 %p3, %r6, 192;\n@!%p3 sub.u32 %r6, %r6, 192;\n"
         "mul.wide.u32 %rd3, %r6, 4;\nadd.u64 %rd4, %rd21, %rd3;\nadd.u64 %rd5, %rd20, %rd30;\n"
         "ld.global.u32 %r7, [%rd4];\nst.global.u32 [%rd5], %r7;\n";
}
const std::string release = "atom.add.release.gpu.global.u32 %r4, [%rd22], 1;\n",
                  relaxed = "atom.add.relaxed.gpu.global.u32 %r4, [%rd22], 1;\n",
                  acquire = "ld.acquire.gpu.global.u32 %r5, [%rd22];\n", barrier = "bar.sync 0;\n";

// Runs the kernel in a cooperative launch of so many blocks. Returns the fault's message.
std::string together(const std::string& body, unsigned blocks = 3) {
  PtxKernel k(testing::entry(body, room));
  const DeviceArray<std::uint32_t> in(192), out(192), count(1);
  count[0] = 0;
  std::string said = testing::end_of([&] {
    if (k.start(blocks, 64, in.data(), out.data(), count.data(), true) != cudaSuccess) std::abort();
    emulator::Device::instance().finish();
    for (std::uint32_t i = 0; i < 192; ++i)
      if (in[i] != (i + 64) % 192) std::abort();
  });
  return said == "no signal: " ? "" : said;
}

}  // namespace

TEST_CASE("blocks of a cooperative launch wait for each other, and a barrier without its parts is a race") {
  CHECK(together(neighbours(barrier, release, acquire, barrier)).empty());
  const auto race = [](const std::string& body) {
    const std::string said = together(body);
    CHECK_MESSAGE(said.find("signal: emulator: a race in global memory: ") == 0, said);
  };
  race(neighbours("", release, acquire, barrier));
  race(neighbours(barrier, relaxed, acquire, barrier));
  race(neighbours(barrier, release, acquire, ""));
  // Without a cooperative launch a block may wait for one that never starts.
  PtxKernel k(testing::entry(neighbours(barrier, release, acquire, barrier), room));
  const DeviceArray<std::uint32_t> in(192), out(192), count(1);
  count[0] = 0;
  const std::string said = testing::end_of([&] { k.run(3, 64, in.data(), out.data(), count.data()); });
  CHECK_MESSAGE(said.find("in a launch that is not cooperative") != std::string::npos, said);
  // A block that does not arrive.
  const std::string stuck = together("mov.u32 %r21, %ctaid.x;\nsetp.eq.u32 %p4, %r21, 1;\n@%p4 ret;\n" +
                                     neighbours(barrier, release, acquire, barrier));
  CHECK_MESSAGE(stuck.find("blocks that wait for each other without an end") != std::string::npos, stuck);
}

TEST_CASE("a cooperative launch that does not fit the device is refused") {
  PtxKernel k(testing::entry(""));
  emulator::Device& d = emulator::Device::instance();
  const unsigned most = static_cast<unsigned>(d.blocks_each * emulator::multiprocessors);
  CHECK(k.start(most, 64, nullptr, nullptr, nullptr, true) == cudaSuccess);
  CHECK(k.start(most + 1, 64, nullptr, nullptr, nullptr, true) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(k.start(most + 1, 64, nullptr, nullptr, nullptr, false) == cudaSuccess);
  d.cooperative = 0;
  CHECK(k.start(most, 64, nullptr, nullptr, nullptr, true) == cudaErrorNotSupported);
  d.cooperative = 1;
  d.finish();
}

namespace {

// Starts a kernel that writes `out`, and after it, early, one with the body. Returns the fault's message.
std::string early(const std::string& body) {
  PtxKernel first(testing::entry(room + places + "st.global.u32 [%rd2], %r22;\n")), second(testing::entry(room + body));
  const DeviceArray<std::uint32_t> in(128), out(128);
  const std::string said = testing::end_of([&] {
    if (first.start(2, 64, in.data(), out.data(), nullptr, false) != cudaSuccess ||
        second.start(2, 64, in.data(), out.data(), nullptr, false, true) != cudaSuccess)
      std::abort();
    emulator::Device::instance().finish();
  });
  return said == "no signal: " ? "" : said;
}
constexpr const char* first_wait = "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n";

}  // namespace

TEST_CASE("a kernel that starts early must wait in each thread before it accesses global memory") {
  const std::string read = "ld.global.u32 %r1, [%rd2];\n", write = "st.global.u32 [%rd2], %r1;\n";
  CHECK(early(places + first_wait + read + write).empty());
  CHECK(early(first_wait + places + read).empty());
  const auto fault = [](const std::string& body) {
    const std::string said = early(body);
    CHECK_MESSAGE(said.find("signal: emulator: an access before the wait for earlier kernels in kernel k") == 0, said);
  };
  fault(places + read + first_wait + write);
  fault(places + write + first_wait);
  fault(places + "ld.global.nc.u32 %r1, [%rd2];\n" + first_wait);
  fault(places + "red.global.add.u32 [%rd2], 1;\n" + first_wait);
  // The wait of another thread is not enough.
  fault(places + "setp.ne.u32 %p1, %r20, 5;\n@%p1 griddepcontrol.wait;\n" + read);
  const std::string none = early("griddepcontrol.launch_dependents;\n");
  CHECK_MESSAGE(none.find("a thread that does not wait for earlier kernels, in kernel k") != std::string::npos, none);
}

TEST_CASE("a kernel starts early only after a kernel, and on devices and drivers that can do it") {
  PtxKernel k(testing::entry(first_wait));
  emulator::Device& d = emulator::Device::instance();
  const auto start = [&](bool as_early, bool together = false) {
    return k.start(1, 32, nullptr, nullptr, nullptr, together, as_early);
  };
  const auto refused = [&](const std::function<void()>& between) {
    const std::string said = testing::end_of([&] {
      (void)start(false);
      between();
      (void)start(true);
    });
    CHECK_MESSAGE(said.find("a kernel that may start before work has ended that is no kernel") != std::string::npos,
                  said);
  };
  const DeviceArray<std::uint32_t> some(1);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  refused([&] { cudaMemsetAsync(some.data(), 0, 4, nullptr); });
  refused([&] { d.submit([] {}); });  // a library's kernel
  refused([&] { cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal); });
  refused([&] {
    cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal);
    (void)start(false);
    cudaEventRecord(event, nullptr);
    cudaStreamWaitEvent(nullptr, event, 0);
  });
  CHECK(start(false) == cudaSuccess);
  CHECK(start(true) == cudaSuccess);
  CHECK(start(true) == cudaSuccess);
  CHECK(start(true, true) == cudaErrorNotSupported);
  d.driver = 12020;
  CHECK(start(true) == cudaErrorNotSupported);
  d.driver = 13000;
  d.major = 8;
  CHECK(start(true) == cudaErrorNotSupported);
  d.major = 9;
  d.finish();
  cudaEventDestroy(event);
}
