// SPDX-License-Identifier: MIT
// Sends any bytes to a parameter server: from its two workers, one of which has exported a window to the server, and
// from strangers. The server refuses or answers them, its memory stays bounded, and a worker that follows the protocol
// gets the right sums.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/window_offer.hpp>

namespace fuzz::frames {

using namespace tutti;

struct Bytes {
  std::vector<std::byte> h, d;
  [[nodiscard]] std::span<const std::byte> head() const { return h; }
  [[nodiscard]] std::span<const std::byte> data() const { return d; }
};

// The server's end of the connections: gives it the input as events, and then stops it.
class Script {
 public:
  using Message = Bytes;
  explicit Script(std::span<const std::uint8_t> input) : input_(input) {
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      const auto greeting = ps::encode(ps::Greeting{0, 2, 1, 1000, "host"});
      ps::Frame f;
      f.worker = worker;
      f.generation = 1;
      f.session = worker + 7;
      f.bytes = static_cast<std::uint32_t>(greeting.size());
      const auto head = ps::encode(f);
      first_.push_back({{head.begin(), head.end()}, greeting});
    }
    static ProcessWindows of_worker;
    static const std::shared_ptr<HostWindow> window = [] {
      std::string why;
      auto w = of_worker.make(4096, why);
      if (w == nullptr) std::abort();
      return w;
    }();
    const auto record = ps::encode(ps::WindowOffer{1, of_worker.name_of(*window)});
    ps::Frame f;
    f.kind = ps::FrameKind::push;
    f.operation = ps::Operation::offer_window;
    f.generation = 1;
    f.session = 7;
    f.bytes = ps::WindowOffer::record;
    const auto head = ps::encode(f);
    first_.push_back({{head.begin(), head.end()}, {record.begin(), record.end()}});
  }
  [[nodiscard]] std::string name() const { return "script"; }
  [[nodiscard]] std::string peer_name(std::int64_t) const { return "nobody"; }
  bool send(std::int64_t, std::span<const std::byte> head, std::span<const std::byte> data, ps::PendingSends*) {
    std::string_view why;
    if (!ps::decode(head, data.size(), why)) std::abort();  // the server must send valid frames
    return true;
  }
  ps::Event<Message> receive(ps::Moment) {
    ps::Event<Message> e;
    e.what = ps::Event<Message>::What::message;
    if (greeted_ < first_.size()) {
      e.peer = greeted_ == 1 ? 1 : 0;
      e.message = first_[greeted_++];
      return e;
    }
    if (input_.size() < 3) {
      e.what = ps::Event<Message>::What::nothing;
      stop();
      return e;
    }
    // A step has a peer, a valid frame with fields from the input or invalid bytes, and data.
    const std::uint8_t how = input_[0], n = input_[1];
    input_ = input_.subspan(2);
    e.peer = how & 3;
    const auto take = [&](std::size_t bytes) {
      const auto part = std::as_bytes(input_.first(std::min(bytes, input_.size())));
      input_ = input_.subspan(part.size());
      return std::vector<std::byte>(part.begin(), part.end());
    };
    if ((how & 0x80) != 0) {
      e.message.h = take(ps::head_bytes);
      e.message.d = take(n);
    } else {
      const auto number = [&] { return input_.empty() ? 0U : take(1).empty() ? 0U : static_cast<std::uint32_t>(n); };
      ps::Frame f;
      f.kind = static_cast<ps::FrameKind>(1 + (how >> 2) % 7);
      f.operation = static_cast<ps::Operation>(n % 3);
      f.dtype = static_cast<DType>(n % 7);
      f.worker = static_cast<std::uint32_t>(e.peer & 1);
      f.root = number() & 1U;
      f.generation = 1;
      f.session = f.worker + 7;
      f.patience = 60'000;
      f.round = (how >> 5) & 3U;
      f.offset = (n >> 6U) * 64U;
      e.message.d.resize((n % 16) * std::max<std::size_t>(size_of(f.dtype), 1));
      const auto more = take(e.message.d.size());
      std::copy(more.begin(), more.end(), e.message.d.begin());
      f.bytes = static_cast<std::uint32_t>(e.message.d.size());
      // Marks f32 data as two-bit values if it is long enough. Its first bytes are the threshold.
      if ((n & 0x20) != 0 && f.dtype == DType::f32 && e.message.d.size() >= 8) {
        f.packed = true;
        f.bytes = static_cast<std::uint32_t>((e.message.d.size() - 4) * 16);
        e.message.d.resize(ps::two_bit::bytes_of(f.bytes / sizeof(float)));
      }
      if (n >= 0xc0) {
        f.window = 1 + (n & 1U);
        f.place = (n & 0x3eU) * 128U;
        e.message.d.clear();
      }
      const auto head = ps::encode(f);
      e.message.h.assign(head.begin(), head.end());
    }
    return e;
  }
  void wake() noexcept {}
  std::function<void()> stop;

 private:
  std::span<const std::uint8_t> input_;
  std::vector<Bytes> first_;
  std::size_t greeted_ = 0;
};
static_assert(ps::Transport<Script>);

int run(const std::uint8_t* data, std::size_t size) {
  // An accepted frame encodes to the same bytes again.
  std::string_view why;
  const std::vector<std::byte> exact(reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + std::min(size, ps::head_bytes));
  if (const auto f = ps::decode(exact, size - exact.size(), why)) {
    const auto again = ps::encode(*f);
    if (!std::equal(again.begin(), again.end(), exact.begin())) std::abort();
  } else if (why.empty()) {
    std::abort();
  }
  if (const auto g = ps::decode_greeting(std::as_bytes(std::span(data, size))))
    if (ps::encode(*g) != std::vector<std::byte>(reinterpret_cast<const std::byte*>(data),
                                                 reinterpret_cast<const std::byte*>(data) + size))
      std::abort();

  ps::ServerOptions options;
  options.workers = 2;
  options.in_flight = 1 << 10;
  static ProcessWindows windows;
  options.windows = &windows;
  auto script = std::make_unique<Script>(std::span(data, size));
  Script& s = *script;
  ps::Server<Script> server(std::move(script), options);
  s.stop = [&] { server.stop(); };
  try {
    server.run();
  } catch (const CommunicationError& e) {
    if (std::string_view(e.what()).find("[server 0]") != 0) std::abort();
  }
  return 0;
}

}  // namespace fuzz::frames
