#include "agent/node/gpu_processes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "agent/driver/gpu_reset.h"
#include "agent/node/devices.h"
#include "base/device_id.h"

namespace gpulet::agent {
namespace {

// All of /proc once for each GPU.
constexpr Duration kHoldersLimit = std::chrono::seconds(30);

}  // namespace

void read_gpu_processes(Node& node, ProcessKind kind, std::vector<DeviceUuid> gpus,
                        std::function<void(Result<GpuProcesses>)> done) {
  std::vector<unsigned> minors;
  const auto snapshot = node.devices->agent()->status().snapshot;
  for (const auto& gpu : gpus) {
    const auto* found = snapshot ? snapshot->find(gpu) : nullptr;
    if (found == nullptr) {
      return node.loop.post([done = std::move(done), gpu] {
        done(fail(Code::kNotFound, "the driver no longer lists this GPU", gpu.str()));
      });
    }
    minors.push_back(found->minor);
  }
  node.devices->driver()->run_on_gpus<GpuProcesses>(
      gpus, "listing the processes of", kHoldersLimit,
      [kind, gpus, minors](const NvmlDriver::SessionPtr& session,
                           const NvmlDriver::GpuIndices& indices) -> Result<GpuProcesses> {
        GpuProcesses holders;
        for (std::size_t i = 0; i < gpus.size(); ++i) {
          if (!indices[i]) return fail(Code::kNotFound, "the driver no longer lists this GPU", gpus[i].str());
          auto read = kind == ProcessKind::kAll ? read_gpu_holders(*session, *indices[i], gpus[i], minors[i])
                                                : read_gpu_contexts(*session, *indices[i], gpus[i]);
          if (!read) return fail(read.error());
          holders[gpus[i]] = std::move(*read);
        }
        return holders;
      },
      std::move(done));
}

std::vector<std::string> pods_on(const inventory::Gpu& gpu, const mig::PodsByDevice& pods) {
  std::set<std::string> names;
  for (const auto& [id, pod] : pods) {
    const auto uuid = without_share(id.str());
    const bool is_part = std::ranges::any_of(
        gpu.mig_devices, [&](const inventory::MigDevice& device) { return device.uuid.str() == uuid; });
    if (is_part || uuid == gpu.uuid.str()) names.insert(pod);
  }
  return {names.begin(), names.end()};
}

}  // namespace gpulet::agent
