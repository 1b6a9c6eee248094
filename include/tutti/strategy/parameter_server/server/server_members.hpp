// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/strategy/parameter_server/server/server_options.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>

namespace tutti::ps {

// The workers of a server, by their numbers.
class ServerMembers {
 public:
  struct Member {  // this server's state of a worker
    std::int64_t peer = -1;
    std::uint64_t session = 0, big_array = 0, done = 0;
    std::string name;
    bool gone = false;  // has said goodbye
    bool was_lost = false;
    bool out = false;  // not in the job: not yet, or no longer
    [[nodiscard]] bool there() const noexcept { return peer >= 0; }
  };

  // ended: workers that will not connect.
  ServerMembers(std::size_t workers, const std::vector<int>& ended) : all_(workers) {
    for (const int w : ended) all_.at(static_cast<std::size_t>(w)).gone = true;
  }

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] Member& operator[](std::size_t number) { return all_[number]; }
  [[nodiscard]] const Member& operator[](std::size_t number) const { return all_[number]; }
  [[nodiscard]] auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] auto end() const noexcept { return all_.end(); }
  [[nodiscard]] bool knows(std::uint32_t number) const noexcept { return number < all_.size() && !all_[number].out; }
  [[nodiscard]] std::uint32_t number_of(const Member& m) const { return static_cast<std::uint32_t>(&m - all_.data()); }

  // Sets the workers of the job; all others are not in it. Calls left(number) for each worker that was in it before.
  template <class F>
  void set(const std::vector<std::uint32_t>& numbers, F&& left) {
    for (const std::uint32_t n : numbers)
      if (n >= all_.size()) {
        const std::size_t before = all_.size();
        all_.resize(std::size_t{n} + 1);
        for (std::size_t i = before; i < n; ++i) all_[i].out = true;
      }
    for (std::size_t w = 0; w < all_.size(); ++w) {
      const bool in = std::find(numbers.begin(), numbers.end(), w) != numbers.end();
      const bool was = !std::exchange(all_[w].out, !in);
      if (was && !in) left(all_[w]);
    }
  }
  // Returns the worker of a connection, or null if there is none or the worker has said goodbye.
  [[nodiscard]] Member* of_peer(std::int64_t peer) {
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const Member& m) { return m.peer == peer && !m.gone; });
    return found == all_.end() ? nullptr : &*found;
  }
  // Returns whether all workers have connected.
  [[nodiscard]] bool complete() const {
    return std::all_of(all_.begin(), all_.end(), [](const Member& m) { return m.there(); });
  }
  [[nodiscard]] bool nobody_is_there() const {
    return std::none_of(all_.begin(), all_.end(), [](const Member& m) { return m.there() && !m.gone; });
  }
  // Returns whether all workers have said goodbye.
  [[nodiscard]] bool done() const {
    return std::all_of(all_.begin(), all_.end(), [](const Member& m) { return m.gone; });
  }
  // Returns whether some workers have said goodbye and all others are lost: the server then stops waiting.
  [[nodiscard]] bool done_or_lost() const {
    return std::any_of(all_.begin(), all_.end(), [](const Member& m) { return m.gone; }) &&
           std::all_of(all_.begin(), all_.end(), [](const Member& m) { return m.gone || m.was_lost; });
  }
  // Returns the number of other workers that have not ended, including workers that have not connected yet.
  [[nodiscard]] std::int64_t at_work_beside(const Member& m) const {
    return std::count_if(all_.begin(), all_.end(),
                         [&](const Member& x) { return &x != &m && !x.gone && !x.was_lost && !x.out; });
  }
  // Returns the lowest round that a worker has not completed yet.
  [[nodiscard]] std::uint64_t floor() const {
    std::uint64_t floor = ~std::uint64_t{0};
    for (const Member& m : all_) floor = std::min(floor, m.done);
    return floor;
  }
  // Returns how a worker that connects differs from this server, or an empty text.
  [[nodiscard]] std::string difference(const ServerOptions& o, const Frame& f, const Greeting& g) const {
    const auto differs = [](const char* what, std::uint64_t mine, std::uint64_t other) {
      return mine == other ? std::string()
                           : std::string(what) + " " + std::to_string(mine) + " on this server and " +
                                 std::to_string(other) + " on the worker";
    };
    std::string why = differs("generation", o.generation, f.generation);
    if (why.empty()) why = differs("server", static_cast<std::uint64_t>(o.index), g.server);
    if (why.empty()) why = differs("servers", static_cast<std::uint64_t>(o.servers), g.servers);
    if (why.empty()) why = differs("workers", static_cast<std::uint64_t>(o.workers), g.workers);
    for (const Member& other : all_)
      if (other.there() && why.empty()) why = differs("MXNET_KVSTORE_BIGARRAY_BOUND", other.big_array, g.big_array);
    return why;
  }
  // Returns the list of the workers for which f(member, number) is true; without a name, a worker is named by its rank.
  template <class F>
  [[nodiscard]] std::string list(F&& f) const {
    std::string names;
    for (std::size_t w = 0; w < all_.size(); ++w)
      if (f(all_[w], static_cast<std::uint32_t>(w)))
        names += (names.empty() ? "" : ", ") + (all_[w].name.empty() ? "rank " + std::to_string(w) : all_[w].name);
    return names;
  }

 private:
  std::vector<Member> all_;
};

}  // namespace tutti::ps
