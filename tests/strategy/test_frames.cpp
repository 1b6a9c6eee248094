// SPDX-License-Identifier: MIT
// Tests the wire format of the parameter servers: valid frames byte by byte, and invalid frames.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/strategy/parameter_server/wire/frames.hpp>

using namespace tutti;
using namespace tutti::ps;

namespace {

// Returns why a frame is refused, or an empty text if it is valid and encodes to the same bytes again.
std::string refusal(const Frame& f, std::size_t data) {
  const Head head = encode(f);
  std::string_view why;
  const auto again = decode(head, data, why);
  if (!again) return std::string(why);
  CHECK(encode(*again) == head);
  return "";
}
// The same for a frame with data after its head.
std::string refusal(const Frame& f) { return refusal(f, f.bytes); }

Frame push(Operation operation = Operation::sum, std::uint32_t bytes = 64, DType dtype = DType::f32) {
  Frame f;
  f.kind = FrameKind::push;
  f.operation = operation;
  f.dtype = dtype;
  f.bytes = bytes;
  return f;
}
Frame answer(Operation operation = Operation::sum, std::uint32_t bytes = 64) {
  Frame f = push(operation, bytes);
  f.kind = FrameKind::answer;
  return f;
}
Frame in_window(Frame f, std::uint64_t place = 0) {
  f.window = 3;
  f.place = place;
  return f;
}
constexpr std::uint64_t end_of_all = std::numeric_limits<std::uint64_t>::max();

}  // namespace

TEST_CASE("the header of a frame has fixed bytes") {
  Frame f = push(Operation::take, 0x00040302, DType::i64);
  f.bytes = 0x00080200;
  f.worker = 0x14131211;
  f.root = 0x24232221;
  f.bucket = 0x34333231;
  f.patience = 0x54535251;
  f.generation = 0x7877767574737271;
  f.session = 0x8887868584838281;
  f.step = 0x9897969594939291;
  f.round = 0xa8a7a6a5a4a3a2a1;
  f.done = 0xb8b7b6b5b4b3b2b1;
  f.offset = 0x08c7c6c5c4c3c2c0;
  f.place = 0x08d7d6d5d4d3d2d0;
  f.has = true;
  std::vector<unsigned> expected{'T', 'P', 'S', '3', 3, 2, 5, 2};
  const auto number = [&](std::uint64_t n, int bytes) {
    for (int i = 0; i < bytes; ++i) expected.push_back(n >> (8 * i) & 0xff);
  };
  for (const std::uint32_t n : {f.worker, f.root, f.bucket, f.bytes, f.patience, f.window}) number(n, 4);
  for (const std::uint64_t n : {f.generation, f.session, f.step, f.round, f.done, f.offset, f.place}) number(n, 8);
  REQUIRE(expected.size() == head_bytes);
  REQUIRE(head_bytes == 88);
  const Head head = encode(f);
  for (std::size_t i = 0; i < head_bytes; ++i) {
    CAPTURE(i);
    CHECK(std::to_integer<unsigned>(head[i]) == expected[i]);
  }
  std::string_view why;
  const auto back = decode(head, f.bytes, why);
  REQUIRE(back.has_value());
  CHECK(back->worker == f.worker);
  CHECK(back->place == f.place);
  CHECK(encode(*back) == head);
  // A frame with default values.
  const Frame nothing;
  CHECK(nothing.kind == FrameKind::hello);
  CHECK(nothing.dtype == DType::u8);
  for (const std::uint64_t n :
       {std::uint64_t{nothing.worker}, std::uint64_t{nothing.root}, std::uint64_t{nothing.bucket}, nothing.generation,
        std::uint64_t{nothing.bytes}, std::uint64_t{nothing.patience}, std::uint64_t{nothing.window}, nothing.session,
        nothing.step, nothing.round, nothing.done, nothing.offset, nothing.place})
    CHECK(n == 0);
  CHECK_FALSE(nothing.packed);
  CHECK_FALSE(nothing.has);
}

TEST_CASE("the frame decoder rejects random headers") {
  const Head good = encode(push());
  const auto changed = [&](std::size_t at, unsigned value) {
    Head head = good;
    head[at] = static_cast<std::byte>(value);
    std::string_view why;
    return decode(head, 64, why) ? std::string() : std::string(why);
  };
  for (std::size_t i = 0; i < 4; ++i) CHECK(changed(i, 0) == "not a frame of this version");
  CHECK(changed(4, 0) == "an unknown kind");
  CHECK(changed(4, 8) == "an unknown kind");
  for (unsigned kind = 1; kind <= 7; ++kind) CHECK(changed(4, kind) == "");
  CHECK(changed(5, 7) == "an unknown operation");
  CHECK(changed(5, 255) == "an unknown operation");
  for (unsigned operation = 0; operation < 7; ++operation) {
    // A fetch may have data or not.
    CAPTURE(operation);
    CHECK(changed(5, operation) == "");
  }
  CHECK(changed(6, 7) == "an unknown type");
  for (unsigned type = 0; type < 7; ++type) CHECK(changed(6, type) == "");
  CHECK(changed(7, 3) == "unknown flags");
  CHECK(changed(7, 128) == "unknown flags");
  for (const std::size_t size : {std::size_t{0}, head_bytes - 1, head_bytes + 1}) {
    std::vector<std::byte> bytes(size);
    std::copy_n(good.begin(), std::min(size, head_bytes), bytes.begin());
    std::string_view why;
    CHECK_FALSE(decode(bytes, 64, why).has_value());
    CHECK(why == "a header of the wrong size");
  }
}

TEST_CASE("the size and offset of a frame must describe whole elements within the memory") {
  CHECK(max_data == 1048576);
  CHECK(refusal(push(Operation::sum, 1048576)) == "");
  CHECK(refusal(push(Operation::sum, 1048576 + 4)) == "too much data");
  CHECK(refusal(push(Operation::sum, 0)) == "incomplete elements");
  CHECK(refusal(push(Operation::sum, 4)) == "");
  CHECK(refusal(push(Operation::sum, 6)) == "incomplete elements");
  CHECK(refusal(answer(Operation::sum, 0)) == "incomplete elements");
  CHECK(refusal(push(Operation::sum, 3, DType::u8)) == "");
  CHECK(refusal(push(Operation::sum, 3, DType::bf16)) == "incomplete elements");
  CHECK(refusal(push(Operation::sum, 12, DType::f64)) == "incomplete elements");
  // A frame without elements may have data of any size.
  Frame text;
  text.kind = FrameKind::give_up;
  text.dtype = DType::f32;
  for (const std::uint32_t bytes : {0U, 3U}) {
    text.bytes = bytes;
    CHECK(refusal(text) == "");
  }
  Frame f = push();
  f.offset = 6;
  CHECK(refusal(f) == "incomplete elements");
  f.offset = end_of_all - 63;
  CHECK(refusal(f) == "an offset that is too large");
  f.offset = end_of_all - 67;  // the last offset at which a whole element fits into memory
  CHECK(refusal(f) == "");
  Frame bytes = push(Operation::sum, 64, DType::u8);
  bytes.offset = end_of_all - 64;
  CHECK(refusal(bytes) == "");
  ++bytes.offset;
  CHECK(refusal(bytes) == "an offset that is too large");
  CHECK(refusal(push(), 60) == "data of the wrong size");
  CHECK(refusal(push(), 68) == "data of the wrong size");
  CHECK(refusal(push(), 0) == "data of the wrong size");
}

TEST_CASE("a frame for a window is not followed by data") {
  for (const Operation o : {Operation::sum, Operation::max, Operation::take, Operation::apply}) {
    CHECK(refusal(in_window(push(o)), 0) == "");
    CHECK(refusal(in_window(answer(o)), 0) == "");
  }
  for (const Operation o : {Operation::fetch, Operation::store, Operation::offer_window})
    CHECK(refusal(in_window(push(o)), 0) == "a window in a frame that cannot have one");
  Frame text;
  text.kind = FrameKind::refuse;
  text.window = 1;
  CHECK(refusal(text, 0) == "a window in a frame that cannot have one");
  CHECK(refusal(in_window(push()), 64) == "data in addition to a window");
  CHECK(refusal(in_window(push()), 1) == "data in addition to a window");
  CHECK(refusal(in_window(push(), 64), 0) == "");
  CHECK(refusal(in_window(push(), 2), 0) == "an invalid address in a window");
  CHECK(refusal(in_window(push(), end_of_all - 63), 0) == "an invalid address in a window");
  CHECK(refusal(in_window(push(), end_of_all - 67), 0) == "");
  Frame bytes = in_window(push(Operation::sum, 64, DType::u8), end_of_all - 64);
  CHECK(refusal(bytes, 0) == "");
  ++bytes.place;
  CHECK(refusal(bytes, 0) == "an invalid address in a window");
  // `place` has no meaning without a window.
  Frame f = push();
  f.place = 2;
  CHECK(refusal(f) == "");
}

TEST_CASE("two-bit frames push gradients in f32") {
  const auto packed = [](Frame f) {
    f.packed = true;
    return refusal(f, two_bit::bytes_of(f.bytes / 4));
  };
  CHECK(packed(push()) == "");
  CHECK(packed(push(Operation::apply)) == "");
  CHECK(packed(in_window(push())) == "");  // the server writes the answer to the window
  for (const Operation o :
       {Operation::max, Operation::take, Operation::fetch, Operation::store, Operation::offer_window})
    CHECK(packed(push(o)) == "two-bit values in a frame that cannot have them");
  CHECK(packed(answer()) == "two-bit values in a frame that cannot have them");
  CHECK(packed(push(Operation::sum, 64, DType::i32)) == "two-bit values in a frame that cannot have them");
  Frame f = push();
  f.packed = true;
  CHECK(refusal(f, two_bit::bytes_of(16) + 1) == "two-bit values of the wrong size");
  CHECK(refusal(f, two_bit::bytes_of(16) - 1) == "two-bit values of the wrong size");
  CHECK(refusal(f) == "two-bit values of the wrong size");
}

TEST_CASE("frames state which workers already have the root's data, and which workers send no data") {
  Frame f = push(Operation::take);
  f.has = true;
  CHECK(refusal(f) == "");
  f.worker = 1;  // this worker is not the root
  CHECK(refusal(f, 0) == "");
  Frame a = answer(Operation::take);
  a.has = true;
  CHECK(refusal(a, 0) == "");
  CHECK(refusal(a) == "data that was not requested");
  for (Frame wrong : {push(Operation::sum), answer(Operation::max), in_window(push(Operation::take))}) {
    wrong.has = true;
    CHECK(refusal(wrong) == (wrong.window != 0 ? "data in addition to a window"
                                               : "a request without data in a frame that cannot have one"));
    CHECK(refusal(wrong, 0) == "a request without data in a frame that cannot have one");
  }
  Frame hello;
  hello.operation = Operation::take;
  hello.has = true;
  CHECK(refusal(hello) == "a request without data in a frame that cannot have one");

  // These frames have no data: of a worker that is not the root, in a question, and in an answer without content.
  Frame t = push(Operation::take);
  CHECK(refusal(t, 0) == "data of the wrong size");
  t.root = 1;
  CHECK(refusal(t, 0) == "");
  CHECK(refusal(t, 4) == "data of the wrong size");
  CHECK(refusal(push(Operation::fetch), 0) == "");
  CHECK(refusal(answer(Operation::store), 0) == "");
  for (const Operation o :
       {Operation::sum, Operation::max, Operation::apply, Operation::store, Operation::offer_window})
    CHECK(refusal(push(o), 0) == "data of the wrong size");
  for (const Operation o : {Operation::sum, Operation::max, Operation::take, Operation::apply, Operation::fetch}) {
    Frame no_root = answer(o);
    no_root.root = 1;
    CHECK(refusal(no_root, 0) == "data of the wrong size");
  }
}

TEST_CASE("operations have fixed numbers and names") {
  for (const Operation o : {Operation::sum, Operation::max, Operation::take}) CHECK_FALSE(concerns_one_worker(o));
  for (const Operation o : {Operation::apply, Operation::fetch, Operation::store, Operation::offer_window})
    CHECK(concerns_one_worker(o));
  const Frame one = push();
  CHECK(same_operation(one, push()));
  CHECK_FALSE(same_operation(one, push(Operation::max)));
  CHECK_FALSE(same_operation(one, push(Operation::sum, 32)));
  CHECK_FALSE(same_operation(one, push(Operation::sum, 64, DType::i32)));
  Frame f = push();
  f.root = 1;
  CHECK_FALSE(same_operation(one, f));
  f.round = 9;
  CHECK(name_of(f) == "operation 9");
  f.step = 1;
  CHECK(name_of(f) == "step 1 bucket 0");
  f.bucket = Frame::no_bucket;
  CHECK(name_of(f) == "step 1 statistics");
  // Workers and servers must use the same numbers.
  CHECK(Frame::no_bucket == 0xffffffff);
  CHECK(std::array{arena::weights, arena::slots, arena::others, arena::most, arena::text, arena::began, arena::steps,
                   arena::facts, arena::seal, arena::at_work} ==
        std::array<std::uint32_t, 10>{0, 1, 3, 16, 15, 0xfffffffb, 0xfffffffc, 0xfffffffd, 0xfffffffe, 0xffffffff});
}

TEST_CASE("a greeting is read back unchanged, and all other bytes are refused") {
  CHECK(Greeting::max_name == 256);
  const auto same = [](const Greeting& g) {
    const auto back = decode_greeting(encode(g));
    return back && back->server == g.server && back->workers == g.workers && back->servers == g.servers &&
           back->big_array == g.big_array && back->name == g.name.substr(0, 256);
  };
  CHECK(same({1, 2, 3, 0x123456789abc, "h"}));
  CHECK(same({}));
  CHECK(same({1, 2, 3, 4, std::string(256, 'x')}));
  CHECK(same({1, 2, 3, 4, std::string(300, 'x')}));
  CHECK(Greeting{}.server + Greeting{}.workers + Greeting{}.servers + Greeting{}.big_array == 0);
  const auto bytes = encode(Greeting{1, 2, 3, 4, "ab"});
  const std::vector<unsigned> expected{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 'a', 'b'};
  REQUIRE(bytes.size() == expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(std::to_integer<unsigned>(bytes[i]) == expected[i]);
  CHECK_FALSE(decode_greeting(std::vector<std::byte>(19)).has_value());
  CHECK(decode_greeting(std::vector<std::byte>(20)).has_value());
  CHECK(decode_greeting(std::vector<std::byte>(276)).has_value());
  CHECK_FALSE(decode_greeting(std::vector<std::byte>(277)).has_value());
}
