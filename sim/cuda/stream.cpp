#include "sim/cuda/stream.h"

#include <algorithm>

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace gpulet::sim::cuda {

HandleTable<CUstream, Stream>& streams() {
  static auto* const kStreams = new HandleTable<CUstream, Stream>;
  return *kStreams;
}

bool is_stream(CUstream stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 2 || streams().find(stream) != nullptr;
}

}  // namespace gpulet::sim::cuda

namespace {

constexpr unsigned int kNonBlocking = 1;
constexpr unsigned int kDisableTiming = 2, kEventFlags = 0x07;
constexpr int kGreatestPriority = -5;
constexpr double kNanosecondsInMillisecond = 1e6;

HandleTable<CUevent, cuda::Event>& events() {
  static auto* const kEvents = new HandleTable<CUevent, cuda::Event>;
  return *kEvents;
}

CUresult create_stream(CUstream* stream, unsigned int flags, int priority) {
  const ContextCall call;
  if (const auto error = call.call_error(stream)) return error;
  if (flags > kNonBlocking) return CUDA_ERROR_INVALID_VALUE;
  *stream = streams().add(Stream{call.handle(), flags, std::clamp(priority, kGreatestPriority, 0)});
  return CUDA_SUCCESS;
}

// A call about an existing stream, which has nothing to wait for.
CUresult use_stream(CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  return is_stream(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult use_event(CUevent event) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  return events().find(event) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

GPULET_CUDA_EXPORT cuStreamCreate(CUstream* stream, unsigned int flags) {
  return create_stream(stream, flags, 0);
}
GPULET_CUDA_EXPORT cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create_stream(stream, flags, priority);
}
GPULET_CUDA_EXPORT cuStreamDestroy_v2(CUstream stream) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  return streams().remove(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
GPULET_CUDA_EXPORT cuStreamSynchronize(CUstream stream) { return use_stream(stream); }
GPULET_CUDA_EXPORT cuStreamQuery(CUstream stream) { return use_stream(stream); }
GPULET_CUDA_EXPORT cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  const CUresult error = use_stream(stream);
  return error != CUDA_SUCCESS ? error : use_event(event);
}
GPULET_CUDA_EXPORT cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  const ContextCall call;
  if (const auto error = call.call_error(flags)) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const Stream* const found = streams().find(stream);
  *flags = found == nullptr ? 0 : found->flags;
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuStreamGetPriority(CUstream stream, int* priority) {
  const ContextCall call;
  if (const auto error = call.call_error(priority)) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const Stream* const found = streams().find(stream);
  *priority = found == nullptr ? 0 : found->priority;
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const ContextCall call;
  if (const auto error = call.call_error(context)) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const Stream* const found = streams().find(stream);
  *context = found == nullptr ? call.handle() : found->context;
  return CUDA_SUCCESS;
}
// Never in a capture.
GPULET_CUDA_EXPORT cuStreamIsCapturing(CUstream stream, int* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *status = 0;
  return use_stream(stream);
}

// The functions that a client gives to a stream run before the call returns, without the client's lock.
GPULET_CUDA_EXPORT cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void*),
                                       void* data, unsigned int flags) {
  if (const auto error = use_stream(stream)) return error;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  callback(stream, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* data) {
  if (const auto error = use_stream(stream)) return error;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  function(data);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuEventCreate(CUevent* event, unsigned int flags) {
  const ContextCall call;
  if (const auto error = call.call_error(event)) return error;
  if (flags > kEventFlags) return CUDA_ERROR_INVALID_VALUE;
  *event = events().add(cuda::Event{call.handle(), flags});
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuEventDestroy_v2(CUevent event) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  return events().remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
GPULET_CUDA_EXPORT cuEventRecord(CUevent event, CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  cuda::Event* const found = events().find(event);
  if (found == nullptr || !is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  found->recorded_ns = monotonic_ns();
  found->copy_time_ns = client().copy_time_ns;
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuEventSynchronize(CUevent event) { return use_event(event); }
GPULET_CUDA_EXPORT cuEventQuery(CUevent event) { return use_event(event); }
GPULET_CUDA_EXPORT cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  const ContextCall call;
  if (const auto error = call.call_error(milliseconds)) return error;
  const cuda::Event* const first = events().find(start);
  const cuda::Event* const last = events().find(end);
  if (first == nullptr || last == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool are_timed = ((first->flags | last->flags) & kDisableTiming) == 0;
  if (!are_timed || first->recorded_ns == 0 || last->recorded_ns == 0) return CUDA_ERROR_INVALID_HANDLE;
  // Copies over links take the time of the links, however busy this machine is.
  const std::uint64_t copied = last->copy_time_ns - first->copy_time_ns;
  const auto between =
      static_cast<std::int64_t>(copied != 0 ? copied : last->recorded_ns - first->recorded_ns);
  *milliseconds = static_cast<float>(static_cast<double>(between) / kNanosecondsInMillisecond);
  return CUDA_SUCCESS;
}

GPULET_CUDA_ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);
GPULET_CUDA_ALIAS(cuStreamSynchronize, cuStreamSynchronize_ptsz);
GPULET_CUDA_ALIAS(cuStreamQuery, cuStreamQuery_ptsz);
GPULET_CUDA_ALIAS(cuStreamWaitEvent, cuStreamWaitEvent_ptsz);
GPULET_CUDA_ALIAS(cuStreamAddCallback, cuStreamAddCallback_ptsz);
GPULET_CUDA_ALIAS(cuLaunchHostFunc, cuLaunchHostFunc_ptsz);
GPULET_CUDA_ALIAS(cuEventRecord, cuEventRecord_ptsz);
