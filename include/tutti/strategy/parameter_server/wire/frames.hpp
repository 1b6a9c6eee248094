// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>

// The messages between workers and servers: frames of a head, followed by data. Numbers are little-endian.
namespace tutti::ps {

// Largest data of a frame; larger pieces are sent in several frames. Only a complete frame shows the receiver that this
// process lives, so frames are small enough for a slow link.
inline constexpr std::size_t max_data = std::size_t{1} << 20;

enum class FrameKind : std::uint8_t {  // kind of a message
  hello = 1,                           // a worker introduces itself: data is a Greeting
  welcome,                             // all workers have arrived: data is their names
  push,                                // data of one worker
  answer,                              // the result: of all workers, or of this worker's operation
  goodbye,                             // a worker has ended; the server answers with the same kind
  give_up,                             // the sender cannot continue: data is the reason
  refuse,                              // the last message is refused: data is the reason
};

// How the data of the workers is combined.
enum class Operation : std::uint8_t {
  sum,
  max,
  take,  // the root's data
  // Operations of one worker on data that a server owns. Only that worker gets the answer.
  apply,         // updates weights by gradients, answers with these weights
  fetch,         // sends no data, answers with the stored data
  store,         // sends the initial data; the answer is empty
  offer_window,  // sends a WindowOffer; the answer is a text: empty, or why the server cannot take it
};
[[nodiscard]] constexpr bool concerns_one_worker(Operation o) noexcept { return o >= Operation::apply; }  // only one

// Returns whether a window may hold the data of the operation and its result.
[[nodiscard]] constexpr bool may_lie_in_window(Operation o) noexcept { return o <= Operation::apply; }

// The values of Frame::root for operations of one worker.
namespace arena {
// The arena of the weights, then the optimizer's arenas, then data that is not divided among servers.
inline constexpr std::uint32_t weights = 0, slots = 1, others = 3, most = 16;
inline constexpr std::uint32_t text = most - 1;       // facts on which workers agree before there are weights
inline constexpr std::uint32_t began = 0xfffffffb;    // fetch: whether the complete initial state is stored
inline constexpr std::uint32_t steps = 0xfffffffc;    // fetch: the next step to run, below Frame::step; store: a
                                                      // finished step
inline constexpr std::uint32_t facts = 0xfffffffd;    // store: facts that must be the same on all workers
inline constexpr std::uint32_t seal = 0xfffffffe;     // store: the state is complete; data is the step from which to
                                                      // count
inline constexpr std::uint32_t at_work = 0xffffffff;  // fetch: the number of other workers that have not ended, eight
                                                      // bytes
}  // namespace arena

// (generation, session, worker) identifies the sender: each process draws a new session, so that servers distinguish a
// restarted process from its predecessor. (round, offset) identifies the data: rounds count the operations of a
// generation, equally on all workers. step and bucket are for messages.
struct Frame {
  FrameKind kind = FrameKind::hello;
  Operation operation = Operation::sum;
  DType dtype = DType::u8;
  std::uint32_t worker = 0, root = 0;
  std::uint32_t bucket = 0;    // no_bucket: the data is not gradients
  std::uint32_t bytes = 0;     // size of the data
  std::uint32_t patience = 0;  // ms until a missing worker is named
  // 0: the data follows the head. Otherwise data and result are in this window of the worker, at `place`.
  std::uint32_t window = 0;
  std::uint64_t generation = 0, session = 0;
  std::uint64_t step = 0, round = 0;
  std::uint64_t done = 0;    // the sender has completed all rounds with a smaller number; from a server that owns
                             // weights: the number of applied steps
  std::uint64_t offset = 0;  // position of the data in its piece, in bytes
  std::uint64_t place = 0;
  bool packed = false;  // for a push of f32: the result of two_bit::pack() for `bytes` follows the head
  bool has = false;     // for Operation::take: this worker already has the data, so its answer is only a head

  static constexpr std::uint32_t no_bucket = 0xffffffff;
};

inline constexpr std::size_t head_bytes = 88;
using Head = std::array<std::byte, head_bytes>;

// Returns whether the fields that must be equal on all workers are equal.
[[nodiscard]] constexpr bool same_operation(const Frame& a, const Frame& b) noexcept {
  return a.bytes == b.bytes && a.dtype == b.dtype && a.operation == b.operation && a.root == b.root;
}

namespace detail {

inline constexpr std::uint32_t frame_magic = 0x33535054;  // "TPS3"

template <class T>
void put(std::byte*& at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) *at++ = static_cast<std::byte>(value >> (8 * i));
}
template <class T>
void take(const std::byte*& at, T& value) noexcept {
  value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(*at++) << (8 * i));
}

}  // namespace detail

[[nodiscard]] inline Head encode(const Frame& f) noexcept {  // in the form that is sent
  Head head{};
  std::byte* at = head.data();
  detail::put(at, detail::frame_magic);
  detail::put(at, static_cast<std::uint8_t>(f.kind));
  detail::put(at, static_cast<std::uint8_t>(f.operation));
  detail::put(at, static_cast<std::uint8_t>(f.dtype));
  detail::put(at, static_cast<std::uint8_t>((f.packed ? 1 : 0) | (f.has ? 2 : 0)));
  for (const std::uint32_t n : {f.worker, f.root, f.bucket, f.bytes, f.patience, f.window}) detail::put(at, n);
  for (const std::uint64_t n : {f.generation, f.session, f.step, f.round, f.done, f.offset, f.place})
    detail::put(at, n);
  return head;
}

// Returns no value and sets `why` if it is not a frame. data: number of bytes after the head. Checks only the frame
// itself, not whether it arrives at the right time.
[[nodiscard]] inline std::optional<Frame> decode(std::span<const std::byte> head, std::size_t data,
                                                 std::string_view& why) noexcept {
  const auto no = [&](std::string_view reason) {
    why = reason;
    return std::nullopt;
  };
  if (head.size() != head_bytes) return no("a header of the wrong size");
  const std::byte* at = head.data();
  std::uint32_t magic = 0;
  std::uint8_t kind = 0, operation = 0, dtype = 0, flags = 0;
  Frame f;
  detail::take(at, magic);
  for (std::uint8_t* n : {&kind, &operation, &dtype, &flags}) detail::take(at, *n);
  for (std::uint32_t* n : {&f.worker, &f.root, &f.bucket, &f.bytes, &f.patience, &f.window}) detail::take(at, *n);
  for (std::uint64_t* n : {&f.generation, &f.session, &f.step, &f.round, &f.done, &f.offset, &f.place})
    detail::take(at, *n);
  if (magic != detail::frame_magic) return no("not a frame of this version");
  if (kind < static_cast<std::uint8_t>(FrameKind::hello) || kind > static_cast<std::uint8_t>(FrameKind::refuse))
    return no("an unknown kind");
  if (operation > static_cast<std::uint8_t>(Operation::offer_window)) return no("an unknown operation");
  f.kind = static_cast<FrameKind>(kind);
  f.operation = static_cast<Operation>(operation);
  f.dtype = static_cast<DType>(dtype);
  const std::size_t element = size_of(f.dtype);
  if (element == 0) return no("an unknown type");
  if (flags > 2) return no("unknown flags");
  f.packed = flags == 1;
  f.has = flags == 2;
  if (f.bytes > max_data) return no("too much data");
  const bool carries = f.kind == FrameKind::push || f.kind == FrameKind::answer;
  if (carries && (f.bytes == 0 || f.bytes % element != 0 || f.offset % element != 0)) return no("incomplete elements");
  if (f.offset > ~std::uint64_t{0} - f.bytes) return no("an offset that is too large");
  const bool pushes = f.kind == FrameKind::push;
  if (f.window != 0) {
    if (!carries || !may_lie_in_window(f.operation)) return no("a window in a frame that cannot have one");
    if (f.place % element != 0 || f.place > ~std::uint64_t{0} - f.bytes) return no("an invalid address in a window");
    if (data != 0 && !f.packed) return no("data in addition to a window");
  }
  if (f.packed) {
    const bool gradients = f.operation == Operation::sum || f.operation == Operation::apply;
    if (!pushes || !gradients || f.dtype != DType::f32) return no("two-bit values in a frame that cannot have them");
    if (data != two_bit::bytes_of(f.bytes / sizeof(float))) return no("two-bit values of the wrong size");
    return f;
  }
  if (f.has && (!carries || f.operation != Operation::take || f.window != 0))
    return no("a request without data in a frame that cannot have one");
  if (f.has && !pushes) return data == 0 ? std::optional(f) : no("data that was not requested");
  // A worker that is not the root has no data to send.
  const bool brings_nothing =
      data == 0 &&
      (f.window != 0 || (pushes && f.operation == Operation::take && f.worker != f.root) ||
       (pushes && f.operation == Operation::fetch) || (f.kind == FrameKind::answer && f.operation == Operation::store));
  if (data != f.bytes && !brings_nothing) return no("data of the wrong size");
  return f;
}

// A worker's first message, so that a server can refuse workers of another job or with other options.
struct Greeting {
  std::uint32_t server = 0, workers = 0, servers = 0;  // server: the one to reach; workers, servers: numbers in the job
  std::uint64_t big_array = 0;                         // smallest size of an array that is divided, see placement.hpp
  std::string name{};                                  // name of the worker's host

  static constexpr std::size_t max_name = 256;
};

[[nodiscard]] inline std::vector<std::byte> encode(const Greeting& g) {  // in the form that is sent
  const std::size_t name = std::min(g.name.size(), Greeting::max_name);
  std::vector<std::byte> bytes(20 + name);
  std::byte* at = bytes.data();
  for (const std::uint32_t n : {g.server, g.workers, g.servers}) detail::put(at, n);
  detail::put(at, g.big_array);
  std::memcpy(at, g.name.data(), name);
  return bytes;
}
// Returns no value if the bytes are not a greeting.
[[nodiscard]] inline std::optional<Greeting> decode_greeting(std::span<const std::byte> bytes) {
  if (bytes.size() < 20 || bytes.size() > 20 + Greeting::max_name) return {};
  const std::byte* at = bytes.data();
  Greeting g;
  for (std::uint32_t* n : {&g.server, &g.workers, &g.servers}) detail::take(at, *n);
  detail::take(at, g.big_array);
  g.name.assign(reinterpret_cast<const char*>(at), bytes.size() - 20);
  return g;
}

// Returns "step 3 bucket 0", the name that the all-reduce uses too.
[[nodiscard]] inline std::string name_of(const Frame& f) {
  if (f.step == 0) return "operation " + std::to_string(f.round);
  return "step " + std::to_string(f.step) +
         (f.bucket == Frame::no_bucket ? " statistics" : " bucket " + std::to_string(f.bucket));
}

}  // namespace tutti::ps
