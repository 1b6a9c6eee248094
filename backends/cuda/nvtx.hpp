// SPDX-License-Identifier: MIT
#pragma once

#if __has_include(<nvtx3/nvtxDetail/nvtxLinkOnce.h>)
// NVTX defines its table of functions as a weak variable, which every translation unit emits with all the functions
// (31 kB). This code makes it an inline variable, which has the same linkage, and which only units that use it emit.
#include <nvtx3/nvtxDetail/nvtxLinkOnce.h>
#pragma push_macro("NVTX_LINKONCE_DEFINE_GLOBAL")
#undef NVTX_LINKONCE_DEFINE_GLOBAL
#define NVTX_LINKONCE_DEFINE_GLOBAL inline NVTX_LINKONCE_HIDDEN
#include <nvtx3/nvToolsExt.h>
#pragma pop_macro("NVTX_LINKONCE_DEFINE_GLOBAL")
#elif __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <tutti/core/span.hpp>

namespace tutti::cuda {

#if defined(NVTX_VERSION)

// Spans as NVTX ranges, which Nsight Systems shows next to the GPU's work. They are spans of the host's threads, so the
// replay of a captured step is one range. The ranges of layers appear while a step is captured, or always with
// --no-cuda-graph.
class NvtxRanges final : public SpanWatcher {
 public:
  // Starts watching if a profiler is attached, which sets NVTX_INJECTION64_PATH to the path of its library.
  static void watch_if_profiled() noexcept {
    const char* const library = std::getenv("NVTX_INJECTION64_PATH");
    if (library != nullptr && *library != '\0') watch();
  }
  // Starts watching, in addition to other watchers. Further calls have no effect.
  static void watch() noexcept {
    static NvtxRanges ranges;
    static const bool joined = (ranges.join(), true);
    (void)joined;
  }

  void begin(Lane lane, std::string_view what, std::string_view name, std::int64_t number) noexcept override {
    const Text text(what, name);
    nvtxEventAttributes_t a = attributes(lane, text, number);
    nvtxDomainRangePushEx(domain_, &a);
    if (next_ != nullptr) next_->begin(lane, what, name, number);
  }
  void end() noexcept override {
    nvtxDomainRangePop(domain_);
    if (next_ != nullptr) next_->end();
  }
  // Sets a mark, because a range cannot begin in the past.
  void over(Lane lane, std::string_view name, std::int64_t number, std::int64_t nanoseconds) noexcept override {
    const Text text(name, {});
    nvtxEventAttributes_t a = attributes(lane, text, number);
    nvtxDomainMarkEx(domain_, &a);
    if (next_ != nullptr) next_->over(lane, name, number, nanoseconds);
  }
  void stand_behind(SpanWatcher& front) noexcept override {
    span_watcher.store(&front);
    detail_watcher.store(&front);
  }

 private:
  struct Text {
    Text(std::string_view what, std::string_view name) {
      append(what);
      if (!what.empty() && !name.empty()) append(" ");
      append(name);
    }
    void append(std::string_view s) {
      s = s.substr(0, bytes.size() - 1 - length);
      std::copy(s.begin(), s.end(), bytes.data() + length);  // not memcpy(): an empty text may have a null address,
                                                             // which memcpy() must not get
      length += s.size();
    }
    std::array<char, 96> bytes{};
    std::size_t length = 0;
  };

  NvtxRanges() : domain_(nvtxDomainCreateA("tutti")) {}
  void join() noexcept {
    next_ = span_watcher.load();
    if (next_ != nullptr) return next_->stand_behind(*this);
    stand_behind(*this);
  }
  static nvtxEventAttributes_t attributes(Lane lane, const Text& text, std::int64_t number) {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.category = static_cast<std::uint32_t>(lane) + 1;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = text.bytes.data();
    if (number >= 0) {
      a.payloadType = NVTX_PAYLOAD_TYPE_INT64;
      a.payload.llValue = number;
    }
    return a;
  }

  nvtxDomainHandle_t domain_;
  SpanWatcher* next_ = nullptr;
};

#else

// Does nothing: the toolkit has no headers of NVTX.
struct NvtxRanges {
  static void watch_if_profiled() noexcept {}
};

#endif

}  // namespace tutti::cuda
