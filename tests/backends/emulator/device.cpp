// SPDX-License-Identifier: MIT
#include "device.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace tutti::emulator {

bool covers(const Clock& all, const Clock& part) {
  return std::all_of(part.begin(), part.end(), [&](const auto& p) {
    const auto it = all.find(p.first);
    return p.second == 0 || (it != all.end() && it->second >= p.second);
  });
}

std::vector<const Item*> Graph::order(bool others_first) const {
  std::map<const Stream*, std::deque<const Node*>> queues;
  for (const Node& n : nodes) queues[n.stream].push_back(&n);
  std::vector<const Stream*> streams;
  for (const auto& [s, queue] : queues)
    if (s != origin) streams.push_back(s);
  streams.insert(others_first ? streams.end() : streams.begin(), origin);
  std::vector<const Item*> list;
  Clock done;
  while (list.size() < nodes.size()) {
    const auto next = std::find_if(streams.begin(), streams.end(), [&](const Stream* s) {
      return !queues[s].empty() && covers(done, queues[s].front()->before);
    });
    if (next == streams.end()) give_up("a graph that waits for itself");
    list.push_back(&queues[*next].front()->item);
    queues[*next].pop_front();
    ++done[*next];
  }
  return list;
}

Device& Device::instance() {
  static Device d;
  return d;
}

Contraction Device::chosen_contraction() {
  const char* const text = std::getenv("TUTTI_EMULATOR_CONTRACTION");
  const std::string_view named = text != nullptr ? text : "";
  return named == "none" ? Contraction::none : named == "all" ? Contraction::all : Contraction::some;
}

void Device::submit_kernel(cudaStream_t stream, std::function<void()> work, bool early) {
  Stream* const s = stream_of(stream);
  if (early && !(capturing(s) ? capture->after_kernel.count(s) != 0 : s->after_kernel))
    give_up("a kernel that may start before work has ended that is no kernel");
  early_kernels += early ? 1 : 0;
  submit(s, {std::move(work)});
  if (capturing(s))
    capture->after_kernel.insert(s);
  else
    s->after_kernel = true;
}
void Device::submit(Stream* s, Item item) {
  if (capturing(s)) {
    capture->after_kernel.erase(s);
    Clock& now = capture->streams[s];
    capture->graph.nodes.push_back({s, std::move(item), now});
    ++now[s];
    return;
  }
  s->items.push_back(std::move(item));
  s->after_kernel = false;
  hurry();
}

bool Device::advance(Stream& s) {
  if (s.items.empty()) return false;
  if (const auto after = s.items.front().after; after && !after->happened) {
    if (s.waits) give_up("streams that wait for each other");
    s.waits = true;
    const bool did = advance(*after->stream);
    s.waits = false;
    if (!did && after->stream->items.empty()) give_up("an event that never happens");
    return did;
  }
  if (s.items.front().ready && !s.items.front().ready()) return false;
  const Item item = std::move(s.items.front());
  s.items.pop_front();
  if (item.run) item.run();
  hurry();
  return true;
}

void Device::finish(Stream& s) {
  std::size_t turns = 0;
  while (!s.items.empty()) advance(s) ? void(turns = 0) : pause(turns);
}
void Device::finish(const Point& p) {
  std::size_t turns = 0;
  while (!p.happened) {
    if (p.stream->items.empty()) give_up("an event that never happens");
    advance(*p.stream) ? void(turns = 0) : pause(turns);
  }
}
void Device::finish_all() {
  finish(own_);
  for (Stream* s : sides) finish(*s);
}
void Device::pause(std::size_t& turns) const {
  constexpr std::chrono::microseconds turn(100);
  if (turn * ++turns > std::chrono::seconds(patience)) give_up("the host waits without a deadline for what never ends");
  std::this_thread::sleep_for(turn);
}
void Device::hurry() {
  if (!hasty || hurries_) return;
  hurries_ = true;
  for (bool again = true; again;) {
    again = false;
    for (Stream* s : sides)
      while (!s->items.empty() && (!s->items.front().after || s->items.front().after->happened) && advance(*s))
        again = true;
  }
  hurries_ = false;
}

cudaError_t Device::refuse(cudaError_t e, const std::string& what) {
  std::fprintf(stderr, "emulator: %s while a graph is captured\n", what.c_str());
  capture->broken = true;
  return e;
}
cudaError_t Device::outside_capture(const char* call) {
  const std::lock_guard lock(capture_changes_);
  if (!capture || capture->thread != std::this_thread::get_id()) return cudaSuccess;
  return refuse(cudaErrorStreamCaptureUnsupported, call);
}

void Device::record(Event& e, Stream* s) {
  if (capturing(s)) {
    e = {nullptr, capture->number, capture->streams[s]};
    return;
  }
  const auto point = std::make_shared<Point>(Point{false, s});
  e = {point};
  submit(s, {[point] { point->happened = true; }});
}
cudaError_t Device::wait(Stream* s, const Event& e) {
  if (e.capture != 0) {
    if (!capture || capture->number != e.capture) return cudaErrorCapturedEvent;
    Clock& now = capture->streams[s];  // from here on the stream is part of the capture
    capture->after_kernel.erase(s);
    for (const auto& [stream, works] : e.clock) now[stream] = std::max(now[stream], works);
    return cudaSuccess;
  }
  if (!e.point) return cudaSuccess;  // never recorded
  if (capturing(s)) return refuse(cudaErrorStreamCaptureIsolation, "a wait for what was started before");
  if (e.point->stream != s) submit(s, {{}, {}, e.point});
  return cudaSuccess;
}

cudaError_t Device::begin_capture(Stream* s) {
  const std::lock_guard lock(capture_changes_);
  if (capture) return cudaErrorIllegalState;
  capture = std::make_unique<Capture>(Capture{++captures_, std::this_thread::get_id(), {s, {}}, {{s, {}}}});
  return cudaSuccess;
}
cudaError_t Device::end_capture(Stream* s, Graph** graph) {
  *graph = nullptr;
  if (!capture || capture->graph.origin != s) return cudaErrorStreamCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  const auto ended = [&] {
    const std::lock_guard lock(capture_changes_);
    return std::exchange(capture, nullptr);
  }();
  if (ended->broken) return cudaErrorStreamCaptureInvalidated;
  for (const auto& [stream, clock] : ended->streams)
    if (!covers(ended->streams[s], clock)) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph(std::move(ended->graph));
  return cudaSuccess;
}
void Device::launch(Graph& g, Stream* s) {
  ++graph_launches;
  for (const Item* item : g.order(g.launches++ % 2 == 1)) {
    Item launched = *item;
    launched.of_graph = true;
    submit(s, std::move(launched));
  }
}

}  // namespace tutti::emulator
