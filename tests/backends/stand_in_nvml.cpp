// SPDX-License-Identifier: MIT
// Built as libnvidia-ml.so.1: replaces NVML on machines without a GPU. It knows the emulated GPU by its bus address.
// The reported utilisation grows by a percent with each request: 1, 2, 3.
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): these are the library's own names
extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** device) {
  static char gpu;
  *device = &gpu;
  return std::strcmp(place, "00000001:3b:02.0") == 0 ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  static unsigned percent;
  rates[0] = ++percent;
  rates[1] = 99;  // use of the memory, which tutti must not report
  return 0;
}
}
// NOLINTEND(readability-identifier-naming)
