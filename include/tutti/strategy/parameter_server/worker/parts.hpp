// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tutti/core/dtype.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/strategy/parameter_server/worker/exported_windows.hpp>
#include <tutti/strategy/parameter_server/worker/operations.hpp>

// Cuts the data of a worker's operation into parts, each a frame to one server, and chooses the form in which it is
// sent.
namespace tutti::ps::parts {

using Job = Operations::Job;

namespace detail {

// Cuts before Request::plain, because these first bytes are sent in another form than the rest.
inline void cut(Job& job, int server, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end;) {
    std::size_t to = std::min(end, at + max_data);
    if (at < job.request.plain) to = std::min(to, job.request.plain);
    job.parts.push_back({server, at, static_cast<std::uint32_t>(to - at)});
    at = to;
  }
}

}  // namespace detail

// Cuts data that all workers send, by its key and size, see placement.hpp.
inline void cut_shared(Job& job, int servers, std::uint64_t big_array) {
  const Request& r = job.request;
  const std::size_t element = size_of(r.dtype);
  place(r.key == 0 ? job.round : r.key, r.data.size() / element, element, servers, big_array,
        [&](int server, std::size_t begin, std::size_t end) { detail::cut(job, server, begin, end); });
}
// Cuts data of an arena, as Request::where divides it among servers.
inline void cut_alone(Job& job) {
  const Request& r = job.request;
  const std::size_t element = size_of(r.dtype), first = r.base / element, last = first + r.data.size() / element;
  for (const ServerRange& s : r.where)
    detail::cut(job, s.server, std::max(s.begin, first) * element, std::min(s.end, last) * element);
}

// Packs the data that is sent in two bits.
inline void make_ready(Job& job) {
  while (job.under_way.size() < job.parts.size()) job.under_way.emplace_back();
  const Request& r = job.request;
  if (r.threshold == 0) return;
  std::size_t room = 0;
  for (Operations::Part& p : job.parts) {
    if (p.offset - r.base < r.plain) continue;
    p.packed_at = room;
    p.packed_bytes = static_cast<std::uint32_t>(two_bit::bytes_of(p.bytes / sizeof(float)));
    room += p.packed_bytes;
  }
  job.packed.resize(room);
  for (const Operations::Part& p : job.parts) {
    if (p.packed_bytes == 0) continue;
    const std::size_t at = p.offset - r.base, n = p.bytes / sizeof(float);
    two_bit::pack({reinterpret_cast<const float*>(r.data.data() + at), n},
                  r.kept.subspan((at - r.plain) / sizeof(float), n), r.threshold, job.packed.data() + p.packed_at);
  }
}

// Converts f32 that is sent as bf16. Writes it into a window if there is one for it.
inline void make_narrow(Job& job) {
  Request& r = job.request;
  job.wide = r.data;
  const std::span wide(reinterpret_cast<const float*>(r.data.data()), r.data.size() / sizeof(float));
  const ExportedWindow* const window = r.exported != nullptr ? r.exported->narrow : nullptr;
  if (window != nullptr) {
    r.place /= 2;
    r.data = window->memory->bytes().subspan(r.place, r.data.size() / 2);
  } else {
    job.narrow.resize(wide.size());
    r.data = std::as_writable_bytes(std::span(job.narrow));
  }
  r.exported = window;
  auto* const narrow = reinterpret_cast<bf16*>(r.data.data());
  for (std::size_t i = 0; i < wide.size(); ++i) narrow[i] = bf16(wide[i]);
  r.dtype = DType::bf16;
  r.stays = true;
}
inline void make_wide(Job& job) {
  float* const wide = reinterpret_cast<float*>(job.wide.data());
  const auto* const narrow = reinterpret_cast<const bf16*>(job.request.data.data());
  for (std::size_t i = 0; i < job.wide.size() / sizeof(float); ++i) wide[i] = narrow[i];
}

// Returns whether the head of a push is followed by data.
[[nodiscard]] inline bool brings_data(const Request& r, const Frame& f) noexcept {
  return f.window == 0 && (r.operation == Operation::take ? r.root == f.worker : r.operation != Operation::fetch);
}
// Returns the head of a part. from: identifies the sender; done: the worker has completed all rounds below it;
// in_window: the server has the window.
[[nodiscard]] inline Frame frame_of(const Job& job, const Operations::Part& p, const Frame& from, bool in_window,
                                    std::uint64_t done) {
  const Request& r = job.request;
  Frame f = from;
  f.operation = r.operation;
  f.dtype = r.dtype;
  f.root = r.root;
  f.bucket = r.bucket;
  f.bytes = p.bytes;
  f.patience = static_cast<std::uint32_t>(std::min<std::int64_t>(job.deadline.count(), 0xffffffff));
  f.step = r.step;
  f.round = job.round;
  f.done = done;
  f.offset = p.offset;
  if (in_window) {
    f.window = r.exported->number;
    f.place = r.place + (p.offset - r.base);
  }
  f.packed = p.packed_bytes > 0;
  f.has = r.has;
  return f;
}

}  // namespace tutti::ps::parts
