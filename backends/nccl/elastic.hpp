// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/channel/channel_store.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/rendezvous/rendezvous.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>

// NCCL communicators of an elastic job: one for each generation.
namespace tutti {

struct NcclJobOptions {
  std::chrono::milliseconds deadline = usual_deadline;  // of each operation, and for all ranks to join NCCL
};

// Returns a rendezvous that sends rank 0's bytes through a store, under this key. It ends when the flag is raised or
// the time has passed. store and flag must outlive it.
[[nodiscard]] inline Rendezvous rendezvous_through(KeyStore& store, const std::string& key, int rank,
                                                   InterruptFlag& flag, std::chrono::milliseconds at_most) {
  return [&store, key, rank, &flag, at_most](std::span<std::byte> bytes) {
    if (rank == 0) return store.publish(key, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    flag.watch([&store] { store.wake(); });
    const auto unwatch = [](InterruptFlag* f) { f->watch({}); };
    const std::unique_ptr<InterruptFlag, decltype(unwatch)> watched(&flag, unwatch);
    const auto text = store.lookup(key, Deadline(at_most), flag.raised());
    if (!text) fail<CommunicationError>("nccl", "rank 0's identity", flag.raised() ? flag.why() : "no message in time");
    if (text->size() != bytes.size())
      fail<CommunicationError>("nccl", {"an identity of ", bytes.size(), " bytes"}, text->size(),
                               "run the same build on all hosts");
    std::memcpy(bytes.data(), text->data(), bytes.size());
  };
}

namespace detail {
struct NcclGeneration {
  NcclGeneration(const cuda::Device& device, const Assignment& a, const NcclJobOptions& o, ControlChannel& channel,
                 InterruptFlag& flag)
      : store(channel),
        nccl(device, options(a, o, flag),
             rendezvous_through(store, generation_key(a.generation, "nccl"), a.rank, flag, o.deadline)) {}
  [[nodiscard]] static NcclOptions options(const Assignment& a, const NcclJobOptions& o, const InterruptFlag& flag) {
    NcclOptions n{.rank = a.rank, .size = static_cast<int>(a.workers.size()), .deadline = o.deadline, .flag = &flag};
    for (const control::Member& m : a.workers) n.hosts.push_back(m.host.empty() ? "localhost" : m.host);
    return n;
  }
  ChannelStore store;
  NcclCommunicator nccl;
};
}  // namespace detail

// This process's membership in the communicator of a generation. If the flag is raised, the thread that waits in an
// operation, or the next thread that starts one, aborts the communicator.
class NcclMember : private detail::NcclGeneration, public AllReduce<NcclCommunicator> {
 public:
  NcclMember(const cuda::Device& device, const Assignment& a, const NcclJobOptions& o, ControlChannel& channel,
             InterruptFlag& flag)
      : detail::NcclGeneration(device, a, o, channel, flag),
        AllReduce<NcclCommunicator>(detail::NcclGeneration::nccl) {}
};

// Forms the communicators for Elastic. The device must outlive them.
struct NcclGroupFactory {
  const cuda::Device* device;
  NcclJobOptions options{};
  std::shared_ptr<NcclMemory> memory{};  // the gradients, which keep their memory in all generations

  [[nodiscard]] std::unique_ptr<NcclMember> operator()(const Assignment& a, ControlChannel& channel,
                                                       InterruptFlag& flag) const {
    auto member = std::make_unique<NcclMember>(*device, a, options, channel, flag);
    member->communicator().share(memory);
    return member;
  }
  // Returns registered memory for all generations, once, or an empty span. member: of the current generation, or null.
  [[nodiscard]] std::span<std::byte> allocate(std::size_t bytes, NcclMember* member) {
    if (memory != nullptr) return {};
    memory = NcclMemory::allocate(nccl_registration(), *device, bytes);
    if (memory == nullptr) return {};
    if (member != nullptr) member->communicator().share(memory);
    return memory->bytes();
  }
};

using ElasticNccl = Elastic<NcclGroupFactory>;

}  // namespace tutti
