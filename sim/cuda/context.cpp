// Contexts: each device's primary one, those that a client creates, and the current one of each thread.
#include <algorithm>
#include <iterator>

#include "sim/cuda/client.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

constexpr std::uint32_t kProhibited = 2, kExclusiveProcess = 3;  // nvmlComputeMode_t
constexpr std::uint8_t kGraphicsProcess = 1;                     // Process::kind
constexpr unsigned int kContextFlags = 0xff;

// Of another process that computes on the GPU.
bool is_other_process(const Process& process) {
  return process.pid != 0 && process.kind != kGraphicsProcess && process.cuda_client != client().cuda_client;
}

CUresult check_compute_mode(std::uint32_t index) {
  const ReadGuard machine = client().state.lock_for_read();
  const Gpu& gpu = machine->gpus[index];
  const bool is_taken =
      gpu.compute_mode == kExclusiveProcess && std::ranges::any_of(gpu.processes, is_other_process);
  return is_taken || gpu.compute_mode == kProhibited ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUresult make_context(CUdevice number, bool is_primary, unsigned int flags, CUcontext* made) {
  const Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (const auto error = check_gpu(device->gpu)) return error;
  if (const auto refused = check_compute_mode(device->gpu)) return refused;
  Context context;
  context.device = static_cast<std::uint32_t>(number);
  context.is_primary = is_primary;
  context.flags = flags;
  if (const auto refused = GpuMemory::take(device->gpu, kContextBytes, context.memory)) return refused;
  *made = client().contexts.add(std::move(context));
  return CUDA_SUCCESS;
}

CUresult create_context(CUcontext* result, unsigned int flags, CUdevice device) {
  const Call call;
  if (const auto error = call.call_error(result)) return error;
  if (flags > kContextFlags) return CUDA_ERROR_INVALID_VALUE;
  if (const auto error = make_context(device, false, flags, result)) return error;
  context_stack().push_back(*result);
  return CUDA_SUCCESS;
}

void end_primary(PrimaryContext& primary) {
  if (primary.context != nullptr) destroy_context(primary.context);
  primary.context = nullptr;
  primary.users = 0;
}

}  // namespace

GPULET_CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice number) {
  const Call call;
  if (const auto error = call.call_error(result)) return error;
  Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryContext& primary = device->primary;
  if (primary.context == nullptr) {
    if (const auto error = make_context(number, true, primary.flags, &primary.context)) return error;
  }
  ++primary.users;
  *result = primary.context;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuDevicePrimaryCtxRelease_v2(CUdevice number) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary.users == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary.users == 0) end_primary(device->primary);
  return CUDA_SUCCESS;
}
GPULET_CUDA_ALIAS(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease);

GPULET_CUDA_EXPORT cuDevicePrimaryCtxReset_v2(CUdevice number) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  end_primary(device->primary);
  return CUDA_SUCCESS;
}
GPULET_CUDA_ALIAS(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset);

GPULET_CUDA_EXPORT cuDevicePrimaryCtxSetFlags_v2(CUdevice number, unsigned int flags) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags > kContextFlags) return CUDA_ERROR_INVALID_VALUE;
  device->primary.flags = flags;
  return CUDA_SUCCESS;
}
GPULET_CUDA_ALIAS(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags);

GPULET_CUDA_EXPORT cuDevicePrimaryCtxGetState(CUdevice number, unsigned int* flags, int* active) {
  const Call call;
  if (const auto error = call.call_error(flags, active)) return error;
  const Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *flags = device->primary.flags;
  *active = device->primary.context != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxCreate_v2(CUcontext* result, unsigned int flags, CUdevice device) {
  return create_context(result, flags, device);
}
// With parameters of an execution affinity, which needs MPS.
GPULET_CUDA_EXPORT cuCtxCreate_v4(CUcontext* result, const void* parameters, unsigned int flags,
                                  CUdevice device) {
  return parameters != nullptr ? CUDA_ERROR_NOT_SUPPORTED : create_context(result, flags, device);
}

GPULET_CUDA_EXPORT cuCtxDestroy_v2(CUcontext context) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  const Context* const found = client().contexts.find(context);
  if (found == nullptr || found->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = context_stack();
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  destroy_context(context);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxPushCurrent_v2(CUcontext context) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  if (client().contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxPopCurrent_v2(CUcontext* popped) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (popped != nullptr) *popped = context_stack().back();
  context_stack().pop_back();
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxSetCurrent(CUcontext context) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  auto& stack = context_stack();
  if (context != nullptr && client().contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxGetCurrent(CUcontext* context) {
  const Call call;
  if (const auto error = call.call_error(context)) return error;
  *context = context_stack().empty() ? nullptr : context_stack().back();
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxGetDevice(CUdevice* device) {
  const ContextCall call;
  if (const auto error = call.call_error(device)) return error;
  *device = static_cast<CUdevice>(call.context().device);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxGetFlags(unsigned int* flags) {
  const ContextCall call;
  if (const auto error = call.call_error(flags)) return error;
  *flags = call.context().flags;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  const Call call;
  if (const auto error = call.call_error(version)) return error;
  if (context != nullptr && client().contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;  // the interface of cuCtxCreate_v2
  return CUDA_SUCCESS;
}

// All work is done when its call returns.
GPULET_CUDA_EXPORT cuCtxSynchronize() { return ContextCall().call_error(); }

GPULET_CUDA_EXPORT cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
