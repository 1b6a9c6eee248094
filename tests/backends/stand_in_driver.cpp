// SPDX-License-Identifier: MIT
// Built as libcuda.so.1: replaces the CUDA driver on machines without one, so that cuDNN makes plans for a GPU of which
// it has only a description. cuDNN immediately loads each kernel that it compiles as a library, although it never
// launches the kernel. This driver returns success and handles that cuDNN never uses. It reports that no device exists.
namespace {

using Result = int;
constexpr Result success = 0, no_device = 100;

Result give(void** handle) {
  static char somewhere;
  *handle = &somewhere;
  return success;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): these are the driver's own names
extern "C" {

Result cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return give(library);
}
Result cuLibraryUnload(void*) { return success; }
Result cuLibraryGetKernel(void** kernel, void*, const char*) { return give(kernel); }
Result cuKernelGetFunction(void** function, void*) { return give(function); }

// Other functions that cuDNN looks up. They read no parameters, so the types of their parameters do not matter.
#define TUTTI_WITHOUT_DEVICE(function) \
  Result function() { return no_device; }
TUTTI_WITHOUT_DEVICE(cuInit)
TUTTI_WITHOUT_DEVICE(cuDriverGetVersion)
TUTTI_WITHOUT_DEVICE(cuDeviceGet)
TUTTI_WITHOUT_DEVICE(cuDeviceGetCount)
TUTTI_WITHOUT_DEVICE(cuGetErrorName)
TUTTI_WITHOUT_DEVICE(cuGetErrorString)
TUTTI_WITHOUT_DEVICE(cuCtxGetCurrent)
TUTTI_WITHOUT_DEVICE(cuCtxGetLimit)
TUTTI_WITHOUT_DEVICE(cuCtxPopCurrent)
TUTTI_WITHOUT_DEVICE(cuCtxPushCurrent)
TUTTI_WITHOUT_DEVICE(cuStreamGetCtx)
TUTTI_WITHOUT_DEVICE(cuLibraryLoadFromFile)
TUTTI_WITHOUT_DEVICE(cuKernelGetAttribute)
TUTTI_WITHOUT_DEVICE(cuKernelSetAttribute)
TUTTI_WITHOUT_DEVICE(cuLinkCreate)
TUTTI_WITHOUT_DEVICE(cuLinkAddData)
TUTTI_WITHOUT_DEVICE(cuLinkComplete)
TUTTI_WITHOUT_DEVICE(cuLinkDestroy)
TUTTI_WITHOUT_DEVICE(cuLaunchKernel)
TUTTI_WITHOUT_DEVICE(cuLaunchKernelEx)
TUTTI_WITHOUT_DEVICE(cuLaunchCooperativeKernel)
TUTTI_WITHOUT_DEVICE(cuOccupancyMaxPotentialClusterSize)
#undef TUTTI_WITHOUT_DEVICE
}
// NOLINTEND(readability-identifier-naming)
