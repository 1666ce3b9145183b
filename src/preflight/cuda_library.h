// The functions of the CUDA driver API that the checks use, under NVIDIA's names, from the libcuda.so.1 of
// the driver. NVIDIA's header is no build dependency. Source: cuda.h 12.9.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace gpulet::preflight {

using CudaResult = int;  // CUresult; 0: CUDA_SUCCESS
using CudaAddress = unsigned long long;
using CudaHandle = void*;  // CUcontext, CUmodule, CUfunction, CUevent, CUstream
using CudaUuid = unsigned char[16];

// X(name here, exported name, parameters).
#define GPULET_CUDA_FUNCTIONS(X)                                                                           \
  X(init, "cuInit", (unsigned))                                                                            \
  X(error_name, "cuGetErrorName", (CudaResult, const char**))                                              \
  X(device_count, "cuDeviceGetCount", (int*))                                                              \
  X(device_get, "cuDeviceGet", (int*, int))                                                                \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                                     \
  X(device_uuid, "cuDeviceGetUuid", (CudaUuid*, int))                                                      \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int*, int, int))                                            \
  X(retain_context, "cuDevicePrimaryCtxRetain", (CudaHandle*, int))                                        \
  X(set_context, "cuCtxSetCurrent", (CudaHandle))                                                          \
  X(synchronize, "cuCtxSynchronize", ())                                                                   \
  X(enable_peer, "cuCtxEnablePeerAccess", (CudaHandle, unsigned))                                          \
  X(memory_info, "cuMemGetInfo_v2", (std::size_t*, std::size_t*))                                          \
  X(allocate, "cuMemAlloc_v2", (CudaAddress*, std::size_t))                                                \
  X(free_memory, "cuMemFree_v2", (CudaAddress))                                                            \
  X(allocate_host, "cuMemAllocHost_v2", (void**, std::size_t))                                             \
  X(fill, "cuMemsetD32_v2", (CudaAddress, unsigned, std::size_t))                                          \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (CudaAddress, const void*, std::size_t, CudaHandle))           \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, CudaAddress, std::size_t, CudaHandle))                   \
  X(copy_to_peer, "cuMemcpyPeerAsync",                                                                     \
    (CudaAddress, CudaHandle, CudaAddress, CudaHandle, std::size_t, CudaHandle))                           \
  X(create_event, "cuEventCreate", (CudaHandle*, unsigned))                                                \
  X(record_event, "cuEventRecord", (CudaHandle, CudaHandle))                                               \
  X(elapsed, "cuEventElapsedTime", (float*, CudaHandle, CudaHandle))                                       \
  X(load_module, "cuModuleLoadData", (CudaHandle*, const void*))                                           \
  X(get_function, "cuModuleGetFunction", (CudaHandle*, CudaHandle, const char*))                           \
  X(launch, "cuLaunchKernel",                                                                              \
    (CudaHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CudaHandle, void**, \
     void**))

class CudaLibrary {
 public:
  // Errors: kUnavailable: there is no such library, it cannot be loaded, or it lacks a function. It stays
  // loaded: the driver's threads outlive any use.
  static Result<std::unique_ptr<CudaLibrary>> load_library(const std::string& path);

#define GPULET_CUDA_MEMBER(member, name, parameters) CudaResult(*member) parameters = nullptr;
  GPULET_CUDA_FUNCTIONS(GPULET_CUDA_MEMBER)
#undef GPULET_CUDA_MEMBER

  // "CUDA_ERROR_OUT_OF_MEMORY", or "CUDA error 999".
  std::string error_text(CudaResult result) const;
};

// Whether the error says that the GPU is faulty, rather than that it is in use, full or away.
bool is_gpu_fault(CudaResult result);

}  // namespace gpulet::preflight
