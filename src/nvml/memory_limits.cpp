#include "nvml/memory_limits.h"

#include "nvml/library.h"

namespace gpulet::nvml {
namespace {

static_assert(kNoMemoryLimit.value == NVML_DEVICE_MEMORY_LIMIT_MAX);

Error error_about(const Error& error, const std::string& cgroup) {
  return Error(error.code(), error.message(), cgroup);
}

}  // namespace

bool MemoryLimiter::has_functions(const Session& session) {
  const Api& api = session.library_->api();
  return api.nvmlDeviceSetMemoryLimits_v1 != nullptr && api.nvmlDeviceGetMemoryLimits_v1 != nullptr;
}

Status MemoryLimiter::set_limits(const std::string& cgroup, const MemoryLimits& limits) const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  nvmlSetMemoryLimits_v1_t request{};
  request.nameSpace = cgroup.c_str();
  request.softLimit = limits.soft.value;
  request.hardLimit = limits.hard.value;
  const auto status =
      call_nvml(api, api.nvmlDeviceSetMemoryLimits_v1, "nvmlDeviceSetMemoryLimits_v1", raw(gpu_), &request);
  if (!status) return fail(error_about(status.error(), cgroup));
  return {};
}

Result<MemoryLimits> MemoryLimiter::read_limits(const std::string& cgroup) const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  nvmlGetMemoryLimits_v1_t found{};
  found.nameSpace = cgroup.c_str();
  const auto status =
      call_nvml(api, api.nvmlDeviceGetMemoryLimits_v1, "nvmlDeviceGetMemoryLimits_v1", raw(gpu_), &found);
  if (!status) return fail(error_about(status.error(), cgroup));
  return MemoryLimits{Bytes{found.softLimit}, Bytes{found.hardLimit}, Bytes{found.currentUsed}};
}

}  // namespace gpulet::nvml
