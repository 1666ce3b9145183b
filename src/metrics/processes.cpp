#include "metrics/processes.h"

#include <filesystem>

#include "base/file.h"
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

PodOfProcess pods_of_processes(const Sample& sample, const PodUids& known, const std::string& proc) {
  PodOfProcess pods;
  const auto find = [&](const std::vector<ProcessSample>& processes) {
    for (const auto& process : processes) {
      if (pods.contains(process.pid)) continue;
      // One that has ended since has none.
      const auto cgroups = read_file(proc + "/" + std::to_string(process.pid) + "/cgroup", kMostCgroupBytes);
      if (!cgroups) continue;
      if (auto pod = pod_of(pod_uids(*cgroups), known)) pods[process.pid] = std::move(*pod);
    }
  };
  for (const auto& gpu : sample.gpus) {
    find(gpu.processes);
    for (const auto& instance : gpu.instances) {
      for (const auto& device : instance.devices) find(device.processes);
    }
  }
  return pods;
}

}  // namespace gpulet::metrics
