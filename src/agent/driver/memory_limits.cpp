#include "agent/driver/memory_limits.h"

#include <linux/capability.h>

#include <filesystem>

#include "agent/driver/gpu_lookup.h"
#include "base/file.h"
#include "base/process.h"
#include "nvml/memory_limits.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxParameterBytes = 64 << 10;

// Work on one GPU that the driver still has at that index.
using LimiterWork = std::function<Status(const nvml::MemoryLimiter&)>;

void run_limiter_work(NvmlDriver& driver, const DeviceUuid& gpu, const std::string& what, LimiterWork work,
                      std::function<void(Status)> done) {
  driver.run_on_gpu<bool>(
      gpu, what, kMemoryLimitDeadline,
      [gpu, work = std::move(work)](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<bool> {
        GPULET_TRY_ASSIGN(const auto device, find_gpu_at(*session, index, gpu));
        GPULET_TRY(work(nvml::MemoryLimiter(*session, device)));
        return true;
      },
      [done = std::move(done)](const Result<bool>& result) {
        done(result ? Status{} : Status(fail(result.error())));
      });
}

std::string describe_limits(const nvml::MemoryLimits& limits) {
  if (!limits.is_limited()) return "none";
  return "soft " + std::to_string(limits.soft.value) + " and hard " + std::to_string(limits.hard.value) +
         " bytes";
}

// Whether it worked is seen by reading: the driver may refuse to clear what is not there.
Status clear_limits_of(const nvml::MemoryLimiter& limiter, const std::string& cgroup) {
  const auto cleared = limiter.set_limits(cgroup, {});
  const auto read = limiter.read_limits(cgroup);
  if (read && read->is_limited()) {
    if (!cleared) return cleared;
    return fail(Code::kFailedPrecondition,
                "the driver reads the cleared memory limit back as " + describe_limits(*read), cgroup);
  }
  const bool has_none =
      read || read.error().code() == Code::kNotFound || read.error().code() == Code::kUnsupported;
  if (has_none) return {};
  return fail(read.error());
}

Status set_limits_of(const nvml::MemoryLimiter& limiter, const std::string& cgroup, Bytes limit) {
  GPULET_TRY(limiter.set_limits(cgroup, {.soft = limit, .hard = limit}));
  const auto read = limiter.read_limits(cgroup);
  if (read && read->soft == limit && read->hard == limit) return {};
  std::string found = "cannot read the memory limit of " + std::to_string(limit.value) + " bytes back: ";
  if (read) {
    found = "the driver reads the memory limit of " + std::to_string(limit.value) + " bytes back as " +
            describe_limits(*read);
  } else {
    found += read.error().message();
  }
  const auto cleared = clear_limits_of(limiter, cgroup);
  if (!cleared) found += "; it may still be set: " + cleared.error().message();
  return fail(Code::kFailedPrecondition, std::move(found), cgroup);
}

Status set_hard_limit_of(const nvml::MemoryLimiter& limiter, const std::string& cgroup, Bytes limit) {
  GPULET_TRY_ASSIGN(const auto before, limiter.read_limits(cgroup));
  GPULET_TRY(limiter.set_limits(cgroup, {.soft = before.soft, .hard = limit}));
  GPULET_TRY_ASSIGN(const auto read, limiter.read_limits(cgroup));
  if (read.hard == limit) return {};
  return fail(Code::kFailedPrecondition,
              "the driver reads the hard memory limit of " + std::to_string(limit.value) + " bytes back as " +
                  describe_limits(read),
              cgroup);
}

}  // namespace

void set_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup, Bytes limit,
                      std::function<void(Status)> done) {
  run_limiter_work(
      driver, gpu, "limiting the memory of",
      [cgroup = std::move(cgroup), limit](const nvml::MemoryLimiter& limiter) {
        return set_limits_of(limiter, cgroup, limit);
      },
      std::move(done));
}

void set_pod_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup, Bytes limit,
                          std::function<void(Status)> done) {
  run_limiter_work(
      driver, gpu, "limiting a Pod's memory of",
      [cgroup = std::move(cgroup), limit](const nvml::MemoryLimiter& limiter) {
        return set_hard_limit_of(limiter, cgroup, limit);
      },
      std::move(done));
}

void clear_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup,
                        std::function<void(Status)> done) {
  run_limiter_work(
      driver, gpu, "clearing a memory limit of",
      [cgroup = std::move(cgroup)](const nvml::MemoryLimiter& limiter) {
        return clear_limits_of(limiter, cgroup);
      },
      std::move(done));
}

fraction::MemoryLimitSupport read_memory_limit_support(const nvml::Session& session,
                                                       const LimitFiles& files) {
  fraction::LimitEvidence evidence;
  evidence.driver_version = session.driver_version();
  evidence.has_functions = nvml::MemoryLimiter::has_functions(session);
  evidence.is_administrator = has_capability(CAP_SYS_ADMIN);
  // Of a hybrid hierarchy, where the kubelet uses version 1, it is not in the root.
  std::error_code ignored;
  evidence.is_cgroup_v2 = std::filesystem::exists(files.cgroups + "/cgroup.controllers", ignored);
  if (const auto text = read_file(files.parameters, kMaxParameterBytes)) evidence.parameters = *text;
  return fraction::check_limit_support(evidence);
}

}  // namespace gpulet::agent
