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

// What workers and servers say to each other: frames of a head and, behind it, data. Numbers are little-endian.
namespace tutti::ps {

// Data of a frame; larger pieces travel in several. Only a whole frame is a sign of life for the other side, so a small
// one passes a slow link within the time that it has.
inline constexpr std::size_t max_data = std::size_t{1} << 20;

enum class FrameKind : std::uint8_t {  // of a message
  hello = 1,                           // a worker introduces itself: data is a Greeting
  welcome,                             // all have come: data is their names
  push,                                // data of one worker
  answer,                              // what came of it over all workers
  goodbye,                             // a worker is done; the server says the same
  give_up,                             // somebody cannot go on: data says why
  refuse,                              // of what was sent last: data says why
};

// How the data of the workers becomes one.
enum class Operation : std::uint8_t {
  sum,
  max,
  take,  // that of the root
  // Of one worker with what a server owns; the answer is for it alone.
  apply,  // changes weights by gradients, answers with these weights
  fetch,  // brings nothing, answers with what is there
  store,  // brings what is to be there at the start; the answer is empty
  lend,   // brings a Loan; the answer is a text: empty, or why the server cannot have it
};
[[nodiscard]] constexpr bool concerns_one_worker(Operation o) noexcept { return o >= Operation::apply; }  // alone

// Whose data a window may hold, before and after.
[[nodiscard]] constexpr bool may_lie_in_window(Operation o) noexcept { return o <= Operation::apply; }

// What Frame::root names in these.
namespace arena {
// The weights' arena, behind it those of the optimizer, then what is not divided among servers.
inline constexpr std::uint32_t weights = 0, slots = 1, others = 3, most = 16;
inline constexpr std::uint32_t text = most - 1;       // what workers agree on before there are weights
inline constexpr std::uint32_t began = 0xfffffffb;    // fetch: whether all is there that workers begin with
inline constexpr std::uint32_t steps = 0xfffffffc;    // fetch: one to do, below Frame::step; store: one that is done
inline constexpr std::uint32_t facts = 0xfffffffd;    // store: what must be the same on all workers
inline constexpr std::uint32_t seal = 0xfffffffe;     // store: all is there; data is the step to count from
inline constexpr std::uint32_t at_work = 0xffffffff;  // fetch: other workers that have not ended, eight bytes
}  // namespace arena

// (generation, session, worker) says who speaks: a session is drawn anew by each process, so that one that comes again
// never passes for the one before it. (round, offset) says of what: rounds count the operations of a generation,
// alike on all workers. step and bucket are what messages call it.
struct Frame {
  FrameKind kind = FrameKind::hello;
  Operation operation = Operation::sum;
  DType dtype = DType::u8;
  std::uint32_t worker = 0, root = 0;
  std::uint32_t bucket = 0;    // no_bucket: no gradients
  std::uint32_t bytes = 0;     // of the data
  std::uint32_t patience = 0;  // ms until a worker whose part does not come is named
  // 0: the data lies behind the head. Else in this window of the worker, at `place`, and what becomes of it too.
  std::uint32_t window = 0;
  std::uint64_t generation = 0, session = 0;
  std::uint64_t step = 0, round = 0;
  std::uint64_t done = 0;    // all rounds below are over for the sender; from a server that owns weights: steps applied
  std::uint64_t offset = 0;  // of the data in its piece, in bytes
  std::uint64_t place = 0;
  bool packed = false;  // of a push of f32: what two_bit::pack() made of `bytes` lies behind the head
  bool has = false;     // of Operation::take: this worker has it already, so its answer is a head alone

  static constexpr std::uint32_t no_bucket = 0xffffffff;
};

inline constexpr std::size_t head_bytes = 88;
using Head = std::array<std::byte, head_bytes>;

// What all workers must do alike.
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

[[nodiscard]] inline Head encode(const Frame& f) noexcept {  // as it travels
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

// Nothing where it is no frame, and `why` says it. data: so many bytes lie behind the head. Looks at the frame alone,
// not at whether it comes at the right time.
[[nodiscard]] inline std::optional<Frame> decode(std::span<const std::byte> head, std::size_t data,
                                                 std::string_view& why) noexcept {
  const auto no = [&](std::string_view reason) {
    why = reason;
    return std::nullopt;
  };
  if (head.size() != head_bytes) return no("a head of another size");
  const std::byte* at = head.data();
  std::uint32_t magic = 0;
  std::uint8_t kind = 0, operation = 0, dtype = 0, flags = 0;
  Frame f;
  detail::take(at, magic);
  for (std::uint8_t* n : {&kind, &operation, &dtype, &flags}) detail::take(at, *n);
  for (std::uint32_t* n : {&f.worker, &f.root, &f.bucket, &f.bytes, &f.patience, &f.window}) detail::take(at, *n);
  for (std::uint64_t* n : {&f.generation, &f.session, &f.step, &f.round, &f.done, &f.offset, &f.place})
    detail::take(at, *n);
  if (magic != detail::frame_magic) return no("no frame of this version");
  if (kind < static_cast<std::uint8_t>(FrameKind::hello) || kind > static_cast<std::uint8_t>(FrameKind::refuse))
    return no("an unknown kind");
  if (operation > static_cast<std::uint8_t>(Operation::lend)) return no("an unknown operation");
  f.kind = static_cast<FrameKind>(kind);
  f.operation = static_cast<Operation>(operation);
  f.dtype = static_cast<DType>(dtype);
  const std::size_t element = size_of(f.dtype);
  if (element == 0) return no("an unknown type");
  if (flags > 2) return no("bytes that are not zero");
  f.packed = flags == 1;
  f.has = flags == 2;
  if (f.bytes > max_data) return no("too much data");
  const bool carries = f.kind == FrameKind::push || f.kind == FrameKind::answer;
  if (carries && (f.bytes == 0 || f.bytes % element != 0 || f.offset % element != 0)) return no("parts of elements");
  if (f.offset > ~std::uint64_t{0} - f.bytes) return no("an offset beyond all memory");
  const bool pushes = f.kind == FrameKind::push;
  if (f.window != 0) {
    if (!carries || !may_lie_in_window(f.operation)) return no("a window where none can be");
    if (f.place % element != 0 || f.place > ~std::uint64_t{0} - f.bytes) return no("a place that is none");
    if (data != 0 && !f.packed) return no("data beside a window");
  }
  if (f.packed) {
    const bool gradients = f.operation == Operation::sum || f.operation == Operation::apply;
    if (!pushes || !gradients || f.dtype != DType::f32) return no("two bits where none can be");
    if (data != two_bit::bytes_of(f.bytes / sizeof(float))) return no("two bits of another size");
    return f;
  }
  if (f.has && (!carries || f.operation != Operation::take || f.window != 0)) return no("nothing to be wanted");
  if (f.has && !pushes) return data == 0 ? std::optional(f) : no("data that is not wanted");
  // Who is not the root has nothing to bring.
  const bool brings_nothing =
      data == 0 &&
      (f.window != 0 || (pushes && f.operation == Operation::take && f.worker != f.root) ||
       (pushes && f.operation == Operation::fetch) || (f.kind == FrameKind::answer && f.operation == Operation::store));
  if (data != f.bytes && !brings_nothing) return no("data of another size");
  return f;
}

// What a worker says of itself first, so that those of another job or another kind are refused.
struct Greeting {
  std::uint32_t server = 0, workers = 0, servers = 0;  // whom it means to speak to
  std::uint64_t big_array = 0;                         // where arrays are divided, see placement.hpp
  std::string name{};                                  // of its host

  static constexpr std::size_t max_name = 256;
};

[[nodiscard]] inline std::vector<std::byte> encode(const Greeting& g) {  // as it travels
  const std::size_t name = std::min(g.name.size(), Greeting::max_name);
  std::vector<std::byte> bytes(20 + name);
  std::byte* at = bytes.data();
  for (const std::uint32_t n : {g.server, g.workers, g.servers}) detail::put(at, n);
  detail::put(at, g.big_array);
  std::memcpy(at, g.name.data(), name);
  return bytes;
}
[[nodiscard]] inline std::optional<Greeting> decode_greeting(std::span<const std::byte> bytes) {  // if it is one
  if (bytes.size() < 20 || bytes.size() > 20 + Greeting::max_name) return {};
  const std::byte* at = bytes.data();
  Greeting g;
  for (std::uint32_t* n : {&g.server, &g.workers, &g.servers}) detail::take(at, *n);
  detail::take(at, g.big_array);
  g.name.assign(reinterpret_cast<const char*>(at), bytes.size() - 20);
  return g;
}

// "step 3 bucket 0", as the all-reduce calls it.
[[nodiscard]] inline std::string name_of(const Frame& f) {
  if (f.step == 0) return "operation " + std::to_string(f.round);
  return "step " + std::to_string(f.step) +
         (f.bucket == Frame::no_bucket ? " statistics" : " bucket " + std::to_string(f.bucket));
}

}  // namespace tutti::ps
