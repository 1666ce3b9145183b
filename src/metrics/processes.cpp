#include "metrics/processes.h"

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "metrics/cgroups.h"

namespace gpulet::metrics {

Result<PodUids> pods_of_logs(const std::string& folder) {
  PodUids pods;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (auto pod = parse_log_folder(at->path().filename().string())) pods[pod->uid] = std::move(pod->pod);
  }
  if (error) return fail(errno_error("cannot be read", error.value(), folder));
  return pods;
}

CgroupsOfProcess read_cgroups(const GpuSample& gpu, const std::string& proc) {
  CgroupsOfProcess found;
  const auto read = [&](const std::vector<ProcessSample>& processes) {
    for (const auto& process : processes) {
      if (found.contains(process.pid)) continue;
      const auto cgroups = read_file(proc + "/" + std::to_string(process.pid) + "/cgroup", kMostCgroupBytes);
      if (!cgroups) continue;
      auto uids = pod_uids(*cgroups);
      if (!uids.empty()) found[process.pid] = std::move(uids);
    }
  };
  read(gpu.processes);
  for (const auto& instance : gpu.instances) {
    for (const auto& device : instance.devices) read(device.processes);
  }
  return found;
}

void read_names(GpuSample& gpu, const std::string& proc) {
  constexpr std::size_t kMostNameBytes = 64;
  const auto read = [&](std::vector<ProcessSample>& processes) {
    for (auto& process : processes) {
      const auto name = read_file(proc + "/" + std::to_string(process.pid) + "/comm", kMostNameBytes);
      if (name) process.name = text::trim(*name);
    }
  };
  read(gpu.processes);
  for (auto& instance : gpu.instances) {
    for (auto& device : instance.devices) read(device.processes);
  }
}

void add_pods(const CgroupsOfProcess& cgroups, const PodUids& known, PodOfProcess& pods) {
  for (const auto& [pid, uids] : cgroups) {
    if (auto pod = pod_of(uids, known)) pods[pid] = std::move(*pod);
  }
}

}  // namespace gpulet::metrics
