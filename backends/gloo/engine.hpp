// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/device.hpp>
#include <tutti/backends/gloo/mesh.hpp>
#include <tutti/backends/gloo/options.hpp>
#include <tutti/backends/gloo/ring/connections.hpp>
#include <tutti/backends/gloo/secure/device.hpp>
#include <tutti/backends/gloo/wire.hpp>
#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/comm/host/host_routes.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/comm/host/shared_host.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The blocking operations of GlooCommunicator. Only one thread at a time may call them. Ranks of one host exchange data
// through shared memory and sum there in the order of the ranks. Between hosts, one rank of each host communicates
// through Gloo. Without shared memory, or if `hierarchical` is false, all ranks communicate through Gloo.
class GlooEngine {
 public:
  // A collective call of all ranks. store and flag must outlive this object. If the flag is raised, the group ends,
  // also while it is formed.
  GlooEngine(const GlooOptions& options, KeyStore& store, InterruptFlag& flag)
      : options_(checked(options)), store_(store), flag_(flag), topology_(options_.rank, options_.hosts) {
    flag_.watch([this] { stop(); });
    try {
      const ReachabilityMonitor::Operation waits(options_.reach);
      form();
    } catch (const std::exception& e) {
      flag_.watch({});
      stop();
      host_.abandon();
      if (flag_.raised()) fail<CommunicationError>("gloo", "a group of all ranks", flag_.why());
      if (dynamic_cast<const Error*>(&e) != nullptr) throw;
      fail<CommunicationError>("gloo", "a group of all ranks", e.what());
    }
  }
  // A collective call, unless an operation failed: the destructor then does not wait for other ranks.
  ~GlooEngine() {
    if (!flag_.raised() && !failed_) close();
    flag_.watch({});
    if (flag_.raised() || failed_) host_.abandon();
  }
  GlooEngine(const GlooEngine&) = delete;
  GlooEngine& operator=(const GlooEngine&) = delete;

  [[nodiscard]] int rank() const noexcept { return topology_.rank(); }
  [[nodiscard]] int size() const noexcept { return topology_.size(); }
  [[nodiscard]] std::string rank_name(int r) const { return topology_.name(r); }
  // Returns how the ranks communicate, for the output at the start.
  [[nodiscard]] std::string name() const {
    return routes_->name("gloo") +
           (wire_ && options_.streams != nullptr ? ", encrypted by " + options_.streams->name() : "");
  }
  [[nodiscard]] WireType wire() const noexcept { return options_.wire; }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    guard(what, deadline, [&] { routes_->all_reduce(t, data, op, deadline, what); });
  }
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    guard(what, deadline, [&] { routes_->broadcast(data, root, deadline, what); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    guard(what, deadline, [&] { routes_->all_gather(mine, all, deadline, what); });
  }
  void barrier(const Deadline& deadline, std::string_view what) {
    guard(what, deadline, [&] { routes_->barrier(deadline, what); });
  }

  // Returns memory of this rank that all ranks of its host can access, initially zero. Returns an empty span if such
  // memory would be useless or cannot be allocated. Collective: all ranks must call it with the same size.
  std::span<std::byte> allocate(std::size_t bytes, const Deadline& deadline) {
    if (!routes_->in_shared_memory() || bytes == 0) return {};
    std::span<std::byte> mine;
    guard("allocate", deadline, [&] {
      routes_->barrier(deadline, "allocate");
      mine = keep(host_.allocate(bytes, deadline), bytes, deadline);
    });
    return mine;
  }
  // Shares a window of this process that outlives the group. If all ranks share a window, data in it is summed in
  // place. mine: null if this rank has no window. Collective. Returns true if all ranks have shared a window.
  bool share(const std::shared_ptr<HostWindow>& mine, const Deadline& deadline) {
    if (!routes_->in_shared_memory()) return false;
    bool shared = false;
    guard("windows", deadline, [&] {
      shared = !keep(host_.share(mine, deadline), mine == nullptr ? 0 : mine->bytes().size(), deadline).empty();
    });
    return shared;
  }

  // Ends the work of this rank in the group. Publishes the reason for ranks that can still be reached. The first rank
  // that calls it prints its reason.
  void abort(const std::string& reason, ExitCode) noexcept {
    if (size() == 1 || gave_up_.exchange(true)) return;
    const std::string said = rank_name(rank()) + " ends the job: " + reason;
    bool first = true;
    try {
      first = !store_.find(key("abort"));
      if (first) store_.publish(key("abort"), said);
    } catch (const Error&) {
      // The operations of the other ranks fail at their deadlines.
    }
    flag_.raise("this rank has aborted");
    if (first) {
      std::fprintf(stderr, "tutti: %s\n", said.c_str());
      std::fflush(nullptr);
    } else {
      // Gives the rank that called it first time to end, so that the job gets that rank's exit code.
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }
  void give_up() noexcept { flag_.raise("this rank has aborted"); }

  // Returns for how long after its deadline an operation may still look for missing ranks.
  [[nodiscard]] static std::chrono::milliseconds grace() noexcept {
    return Routes::after_leader + roll_call + std::chrono::seconds(4);
  }

 private:
  using Routes = HostRoutes<GlooWire>;
  // The time after a failure within which living ranks must answer.
  static constexpr std::chrono::seconds roll_call{1};
  static constexpr std::chrono::milliseconds pause{20}, patience{300};

  static GlooOptions checked(GlooOptions o) {
    if (o.hosts.empty()) o.hosts.assign(static_cast<std::size_t>(std::max(o.size, 1)), "localhost");
    if (o.size < 1 || o.rank < 0 || o.rank >= o.size || o.hosts.size() != static_cast<std::size_t>(o.size))
      fail<UsageError>("gloo", "a rank in [0, size), and the host of each rank",
                       {"rank ", o.rank, " of ", o.size, " and ", o.hosts.size(), " hosts"});
    return o;
  }
  [[nodiscard]] std::string key(const std::string& name) const { return options_.prefix + "/" + name; }

  // Keeps the windows if all ranks have them, otherwise returns an empty span on all ranks.
  std::span<std::byte> keep(GroupWindows windows, std::size_t bytes, const Deadline& deadline) {
    if (!windows.fits() && topology_.is_leader())
      host_.say(windows.reason() + "; gradients are copied into shared memory piece by piece");
    std::int32_t missing = windows.fits() ? 0 : 1;
    routes_->all_reduce(DType::i32, std::as_writable_bytes(std::span(&missing, 1)), ReduceOp::max, deadline, "windows");
    return missing == 0 ? host_.keep(std::move(windows), bytes) : std::span<std::byte>();
  }

  void form() {
    const Deadline deadline(options_.rendezvous_timeout);
    const bool shared = options_.shared_memory && host_.join(deadline);
    const auto route = Routes::choose(topology_, shared, options_.hierarchical);
    std::vector<int> members;
    if (route == Routes::Route::plain) {
      members.resize(static_cast<std::size_t>(size()));
      std::iota(members.begin(), members.end(), 0);
    } else if (route == Routes::Route::tree && topology_.is_leader()) {
      members = topology_.leaders();
    }
    if (!members.empty()) connect(members, deadline);
    routes_.emplace(topology_, route, host_.group(), wire_ ? &*wire_ : nullptr, wire_ ? &*wire_ : nullptr);
  }
  void connect(const std::vector<int>& members, const Deadline& deadline) {
    std::vector<std::string> names;
    names.reserve(members.size());
    for (const int r : members) names.push_back(rank_name(r));
    const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
    const auto mesh = std::make_shared<GlooMesh>(static_cast<int>(me), static_cast<int>(members.size()),
                                                 device(members, names, static_cast<int>(me), deadline));
    std::shared_ptr<RingConnections> ring;  // of connections that are not encrypted
    if (options_.streams == nullptr) ring = std::make_shared<RingConnections>(mesh->rank, mesh->size, options_.address);
    {
      const std::lock_guard lock(mutex_);
      wire_.emplace(mesh, ring, names, options_.wire);
    }
    // If the flag was raised before the mesh existed, stop() has not stopped the mesh.
    if (flag_.raised()) wire_->stop();
    if (ring != nullptr) ring->publish(store_, key("ring/"));
    mesh->connect(store_, key("mesh/"), names, deadline, flag_.raised());
    if (ring != nullptr) ring->connect(store_, key("ring/"), names, deadline, flag_.raised());
  }

  // Returns the device of the mesh. The first rank publishes the key of encrypted connections, or that the connections
  // are not encrypted, so that a rank that was started otherwise notices it.
  std::shared_ptr<::gloo::transport::Device> device(const std::vector<int>& members,
                                                    const std::vector<std::string>& names, int me,
                                                    const Deadline& deadline) {
    const auto host = [&](int r) { return options_.hosts[static_cast<std::size_t>(r)]; };
    if (std::all_of(members.begin(), members.end(), [&](int r) { return host(r) == host(members.front()); }))
      options_.streams = nullptr;  // the connections do not leave the host
    const bool encrypted = options_.streams != nullptr;
    std::optional<std::string> secret;
    if (rank() == members.front()) {
      secret = encrypted ? new_secret() : "";
      store_.publish(key("secret"), *secret);
    } else {
      secret = store_.lookup(key("secret"), deadline, flag_.raised());
      if (!secret) fail<CommunicationError>("gloo", {"a message from ", names.front(), " in time"}, "no message");
    }
    if (encrypted == secret->empty()) {
      store_.publish(key("mesh/" + std::to_string(me)), "");  // the first rank need not wait for the addresses
      fail<CommunicationError>("gloo", {encrypted ? "encrypted" : "unencrypted", " connections with ", names.front()},
                               {encrypted ? "unencrypted" : "encrypted", " ones"},
                               "give all processes the same --encrypt and the same build");
    }
    if (!encrypted) return gloo_device(options_.address);
    const std::string group = options_.prefix;
    return std::make_shared<GlooSecureDevice>(
        GlooSecurity{options_.streams, options_.refusals, options_.address, *secret, group, rank_name(rank())});
  }

  // Called by the thread that raises the flag.
  void stop() noexcept {
    store_.wake();
    host_.abort();
    std::shared_ptr<GlooMesh> mesh;
    std::shared_ptr<RingConnections> ring;
    {
      const std::lock_guard lock(mutex_);
      if (wire_) mesh = wire_->shared_mesh(), ring = wire_->shared_ring();
    }
    if (ring != nullptr) ring->stop();
    if (mesh != nullptr) mesh->stop();
    news_.notify_all();
  }

  template <class F>
  void guard(std::string_view what, const Deadline& deadline, F&& f) {
    if (flag_.raised()) fail<CommunicationError>(what, "all ranks", flag_.why());
    const auto start = std::chrono::steady_clock::now();
    try {
      const ReachabilityMonitor::Operation waits(options_.reach);
      f();
    } catch (const CommunicationError& e) {
      fail_group(what, e);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {  // Gloo throws several types
      // The rank whose deadline passes first ends the connections of the others.
      const bool late = (wire_ && wire_->mesh().expired()) || deadline.is_nearly_over();
      fail_wire(what, e, late, start);
    }
  }

  // Call if the failed operation waited for ranks of this host.
  [[noreturn]] void fail_group(std::string_view what, const CommunicationError& e) {
    failed_ = true;
    if (flag_.raised()) fail<CommunicationError>(what, "all ranks", flag_.why());
    if (host_.gave_up_here()) {
      tell(got_of(e.what()));
    } else if (host_.gave_up()) {
      const std::string said = word(patience);
      if (flag_.raised() || !said.empty())
        fail<CommunicationError>(what, "all ranks", flag_.raised() ? flag_.why() : said);
    }
    stop();
    throw;
  }

  // Call if the failed operation waited for ranks of other hosts. late: the deadline has passed.
  [[noreturn]] void fail_wire(std::string_view what, const std::exception& e, bool late,
                              std::chrono::steady_clock::time_point start) {
    failed_ = true;
    // Ends the operations of the other ranks, so that they answer the roll call.
    if (wire_) wire_->stop();
    const std::string missing = flag_.raised() ? "" : call_roll();
    const std::string said = flag_.raised() ? flag_.why() : word();
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
    std::string expected = "all ranks", got = said, hint;
    if (said.empty() && !missing.empty()) {
      expected = missing.starts_with("no message") && late ? "all ranks within the deadline" : expected;
      got = missing;
      hint = late ? "check these ranks, or raise --comm-deadline" : "";
    } else if (said.empty() && late) {
      expected = "the end of the operation within the deadline";
      got = "no end after " + std::to_string(ms) + " ms, although all ranks still take part";
      hint = "raise --comm-deadline, or check the network";
    } else if (said.empty()) {
      got = std::string("the end of a connection: ") + e.what();
    }
    if (said.empty() && topology_.local_size() > 1) tell(got);
    host_.abort();
    fail<CommunicationError>(what, expected, got, hint);
  }

  // Returns the part of an error message after ", got ".
  [[nodiscard]] static std::string got_of(std::string_view message) {
    constexpr std::string_view before = ", got ", hint = ". hint: ";
    const std::size_t at = message.find(before);
    if (at != std::string_view::npos) message.remove_prefix(at + before.size());
    message = message.substr(0, std::min(message.find(hint), message.size()));
    if (message.ends_with('.')) message.remove_suffix(1);
    return std::string(message);
  }
  // Tells the other ranks why this rank leaves the group.
  void tell(const std::string& why) {
    try {
      if (!flag_.raised()) store_.publish(key("word"), rank_name(rank()) + ": " + why);
    } catch (const Error&) {
      // The other ranks learn only that this rank left.
    }
  }
  // Returns the reason that a rank has published, or the leader of this host for it. Waits for the reason for up to
  // `time`.
  [[nodiscard]] std::string word(std::chrono::milliseconds time = {}) {
    try {
      if (const auto said = store_.find(key("abort"))) return *said;
      if (time.count() == 0) return store_.find(key("word")).value_or("");
      return store_.lookup(key("word"), Deadline(time), flag_.raised()).value_or("");
    } catch (const Error&) {
      // The store cannot be reached.
    }
    return "";
  }

  // Waits until all ranks of the mesh have published their operation. Returns what is wrong, or an empty text.
  [[nodiscard]] std::string call_roll() {
    const std::vector<std::string>& names = wire_->names();
    std::vector<std::optional<std::string>> at(names.size());
    const auto me = static_cast<std::size_t>(wire_->mesh().rank);
    const auto end = std::chrono::steady_clock::now() + roll_call;
    try {
      at[me] = wire_->position();
      store_.publish(key("at/" + std::to_string(me)), *at[me]);
      for (;;) {
        bool all = true;
        for (std::size_t r = 0; r < at.size(); ++r) {
          if (!at[r]) at[r] = store_.find(key("at/" + std::to_string(r)));
          all = all && at[r];
        }
        const auto now = std::chrono::steady_clock::now();
        if (all || flag_.raised() || now >= end || store_.find(key("abort"))) break;
        std::unique_lock lock(mutex_);
        news_.wait_until(lock, std::min(end, now + pause));
      }
    } catch (const Error&) {
      return "";
    }
    std::string missing, other;
    for (std::size_t r = 0; r < at.size(); ++r) {
      if (!at[r])
        missing += (missing.empty() ? "no message from " : ", ") + names[r];
      else if (*at[r] != *at[me] && other.empty())
        other = *at[me] + " on this rank and " + *at[r] + " on " + names[r];
    }
    return missing.empty() ? other : missing;
  }

  void close() noexcept {
    const Deadline deadline(options_.deadline);
    try {
      const ReachabilityMonitor::Operation waits(options_.reach);
      routes_->barrier(deadline, "end");
    } catch (const std::exception& e) {
      if (options_.reach != nullptr) options_.reach->waits_no_more();
      stop();
      // No error before the deadline: a rank has finished and closed its connections, so all ranks have arrived.
      if (deadline.is_over()) std::fprintf(stderr, "tutti: %s: %s\n", rank_name(rank()).c_str(), e.what());
    }
  }

  GlooOptions options_;
  KeyStore& store_;
  InterruptFlag& flag_;
  HostTopology topology_;
  std::mutex mutex_;
  std::condition_variable news_;
  SharedHost host_{topology_, store_, flag_, options_.prefix};
  std::optional<GlooWire> wire_;
  std::optional<Routes> routes_;
  std::atomic<bool> gave_up_{false};
  bool failed_ = false;
};

}  // namespace tutti
