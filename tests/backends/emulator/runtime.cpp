// SPDX-License-Identifier: MIT
// The functions of CUDA's runtime that the backend calls, except those for kernels. A call fails only if CUDA refuses
// it, or if a test requests the failure.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "device.hpp"

extern "C" {
using namespace tutti::emulator;

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capture sequence contains a fork that was not joined to the primary stream";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an error";
  }
}
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    default:
      return "cudaError";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(Device::instance().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return Device::instance().last_error; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = Device::instance().driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = Device::instance().runtime, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) {
  *n = Device::instance().count;
  if (Device::instance().driver < Device::instance().runtime / 1000 * 1000) return done(cudaErrorInsufficientDriver);
  return done(*n == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int) { return done(Device::instance().access); }
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  p->major = Device::instance().major;
  p->minor = Device::instance().minor;
  p->multiProcessorCount = multiprocessors;
  p->cooperativeLaunch = Device::instance().cooperative;
  p->l2CacheSize = Device::instance().cache;
  p->pciDomainID = 1;
  p->pciBusID = 0x3b;
  p->pciDeviceID = 2;
  p->totalGlobalMem = Device::instance().capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int d) { return cudaGetDeviceProperties(p, d); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  *s = reinterpret_cast<cudaStream_t>(1);
  return cudaSuccess;
}
// A stream in addition to the device's own.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  Device::instance().sides.push_back(new Stream);
  *s = reinterpret_cast<cudaStream_t>(Device::instance().sides.back());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Device& d = Device::instance();
  Stream* const s = d.stream_of(stream);
  if (d.is_own(s)) return cudaSuccess;
  d.finish(*s);
  std::erase(d.sides, s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t e = refused("cudaStreamSynchronize")) return e;
  Device& d = Device::instance();
  Stream* const s = d.stream_of(stream);
  if (d.is_own(s)) ++d.stream_waits;
  d.finish(*s);
  return done(d.fault);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
  Device& d = Device::instance();
  return done(d.wait(d.stream_of(stream), *reinterpret_cast<Event*>(e)));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<Event*>(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  Device& d = Device::instance();
  d.record(*reinterpret_cast<Event*>(e), d.stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (const cudaError_t r = refused("cudaEventQuery")) return r;
  Device& d = Device::instance();
  const Event& event = *reinterpret_cast<Event*>(e);
  if (event.capture != 0) return done(cudaErrorCapturedEvent);
  if (!event.point || event.point->happened) return done(d.fault);
  const auto point = event.point;
  d.advance(*point->stream);  // so that the device makes progress while the host asks
  return done(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (const cudaError_t r = refused("cudaEventSynchronize")) return r;
  Device& d = Device::instance();
  const Event& event = *reinterpret_cast<Event*>(e);
  if (event.capture != 0) return done(cudaErrorCapturedEvent);
  if (!event.point) return done(d.fault);
  const auto point = event.point;
  d.event_waits += point->happened || !d.is_own(point->stream) ? 0 : 1;
  d.finish(*point);
  return done(d.fault);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }

cudaError_t cudaMalloc(void** p, size_t n) {
  if (const cudaError_t e = refused("cudaMalloc")) return e;
  Device& d = Device::instance();
  if (d.memory.used() + n > d.capacity) return done(cudaErrorMemoryAllocation);
  *p = d.memory.allocate(n);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (const cudaError_t e = refused("cudaFree")) return e;
  if (p == nullptr) return cudaSuccess;
  Device::instance().finish_all();
  if (!Device::instance().memory.release(p)) give_up("memory freed that was not allocated");
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  if (const cudaError_t e = refused("cudaHostAlloc")) return e;
  *p = Device::instance().pinned.allocate(n);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t e = refused("cudaFreeHost")) return e;
  Device& d = Device::instance();
  const char* const begin = static_cast<char*>(p);
  for (const auto* side : d.sides)
    for (const auto& item : side->items)
      if (const auto* at = static_cast<const char*>(item.reads);
          at != nullptr && at >= begin && at < begin + d.pinned.size_of(p))
        give_up("pinned memory freed that an upload has yet to read");
  if (p != nullptr && !d.pinned.release(p)) give_up("pinned memory freed that was not allocated");
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  const Device& d = Device::instance();
  *available = d.capacity - std::min(d.capacity, d.memory.used());
  *total = d.capacity;
  return cudaSuccess;
}
#undef cudaPointerGetAttributes
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  *a = {};
  const Device& d = Device::instance();
  a->type = d.memory.holds(p)   ? cudaMemoryTypeDevice
            : d.pinned.holds(p) ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t stream) {
  Device::instance().submit(stream, [=] { std::memset(p, v, n); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  Device& d = Device::instance();
  const bool in = kind == cudaMemcpyHostToDevice, out = kind == cudaMemcpyDeviceToHost;
  if ((!in && !out) || d.pinned.holds(in ? from : to)) {
    d.submit(
        stream, [=] { std::memcpy(to, from, n); }, from);
    return cudaSuccess;
  }
  if (const cudaError_t e = refused("a copy of pageable memory")) return e;
  if (in) {
    // The call reads the source before it returns.
    std::vector<char> copy(static_cast<const char*>(from), static_cast<const char*>(from) + n);
    d.submit(stream, [=, copy = std::move(copy)] { std::memcpy(to, copy.data(), n); });
    return cudaSuccess;
  }
  // The call writes the destination before it returns, so it waits for all work of the stream.
  d.submit(stream, [=] { std::memcpy(to, from, n); });
  d.finish(*d.stream_of(stream));
  return done(d.fault);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* s) {
  Device& d = Device::instance();
  *s = !d.capturing(d.stream_of(stream)) ? cudaStreamCaptureStatusNone
       : d.capture->broken               ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (mode != cudaStreamCaptureModeThreadLocal) give_up("a capture that other threads may break");
  Device& d = Device::instance();
  return done(d.begin_capture(d.stream_of(stream)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Device& d = Device::instance();
  return done(d.end_capture(d.stream_of(stream), reinterpret_cast<Graph**>(graph)));
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
// Waits for launched graphs: on a GPU the destruction may wait for the graph's operations, without a deadline.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  Device& d = Device::instance();
  const auto& items = d.stream_of(nullptr)->items;
  if (std::any_of(items.begin(), items.end(), [](const Item& i) { return i.of_graph; })) d.finish();
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (const cudaError_t e = refused("cudaGraphLaunch")) return e;
  Device& d = Device::instance();
  d.launch(*reinterpret_cast<Graph*>(graph), d.stream_of(stream));
  return cudaSuccess;
}
}
