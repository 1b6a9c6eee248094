// SPDX-License-Identifier: MIT
// Built as libtutti-nvtx.so.1: replaces a profiler to which NVTX sends its ranges. It records "begin NAME NUMBER",
// "end" and "mark NAME NUMBER" of the domain "tutti" in a text that tests read.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string said;
char domain;

void say(const std::string& line) {
  const std::lock_guard lock(mutex);
  said += line + "\n";
}
std::string text_of(const nvtxEventAttributes_t* a) {
  std::string text = std::string(" ") + a->message.ascii;
  if (a->payloadType == NVTX_PAYLOAD_TYPE_INT64) text.append(" ").append(std::to_string(a->payload.llValue));
  return text;
}

nvtxDomainHandle_t create(const char* name) {
  say(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int push(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  if (d == reinterpret_cast<nvtxDomainHandle_t>(&domain)) say("begin" + text_of(a));
  return 0;
}
int pop(nvtxDomainHandle_t) {
  say("end");
  return 0;
}
void mark(nvtxDomainHandle_t, const nvtxEventAttributes_t* a) { say("mark" + text_of(a)); }

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVTX's own name
extern "C" {

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  *table[NVTX_CBID_CORE2_DomainMarkEx] = reinterpret_cast<NvtxFunctionPointer>(&mark);
  return 1;
}
const char* tutti_nvtx_said() {
  const std::lock_guard lock(mutex);
  return said.c_str();
}
}
// NOLINTEND(readability-identifier-naming)
#endif
