#include "labels/rules.h"

#include <algorithm>

namespace gpulet::labels {
namespace {

constexpr std::string_view kName = "nvmlDeviceGetName";
constexpr std::string_view kDriver = "nvmlSystemGetDriverVersion";
constexpr std::string_view kCuda = "nvmlSystemGetCudaDriverVersion_v2";
constexpr std::string_view kCompute = "nvmlDeviceGetCudaComputeCapability";
constexpr std::string_view kMode = "nvmlDeviceGetMigMode";
constexpr std::string_view kOffered = "flags.migStrategy, sharing and gpulet.partition";
constexpr std::string_view kInstances = "nvmlDeviceGetMigDeviceHandleByIndex";
constexpr std::string_view kAttributes = "nvmlDeviceGetAttributes_v2";
constexpr std::string_view kCapability = "the vendor's capability in /sys/bus/pci/devices/*/config";
constexpr std::string_view kMemory = "nvmlDeviceGetMemoryInfo";
constexpr std::string_view kBandwidth = "nvmlDeviceGetMemoryBusWidth, nvmlDeviceGetMaxClockInfo";
constexpr std::string_view kLinks = "nvmlDeviceGetNvLinkState, …RemotePciInfo_v2";

constexpr Rule kRules[] = {
    {"nvidia.com/gfd.timestamp",
     "seconds since 1970 when the labels were first made with this configuration; not with noTimestamp",
     "the clock"},
    {"nvidia.com/cuda.driver-version.full", "the driver's version, whole", kDriver},
    {"nvidia.com/cuda.driver-version.major", "its first number; like the next two only of X.Y or X.Y.Z",
     kDriver},
    {"nvidia.com/cuda.driver-version.minor", "its second number", kDriver},
    {"nvidia.com/cuda.driver-version.revision", "its third number; empty where it has two", kDriver},
    {"nvidia.com/cuda.driver.major", "as cuda.driver-version.major; the older name", kDriver},
    {"nvidia.com/cuda.driver.minor", "as cuda.driver-version.minor; the older name", kDriver},
    {"nvidia.com/cuda.driver.rev", "as cuda.driver-version.revision; the older name", kDriver},
    {"nvidia.com/cuda.runtime-version.full", "the newest CUDA that the driver serves", kCuda},
    {"nvidia.com/cuda.runtime-version.major", "its first number", kCuda},
    {"nvidia.com/cuda.runtime-version.minor", "its second number", kCuda},
    {"nvidia.com/cuda.runtime.major", "as cuda.runtime-version.major; the older name", kCuda},
    {"nvidia.com/cuda.runtime.minor", "as cuda.runtime-version.minor; the older name", kCuda},
    {"nvidia.com/gpu.machine", "the machine's name, cleaned; unknown where the file cannot be read",
     "flags.gfd.machineTypeFile"},
    {"nvidia.com/gpu.mode", "graphics or compute by the PCI class of all GPUs; unknown for others and a mix",
     "/sys/bus/pci/devices/*/class"},
    {"nvidia.com/mig.capable", "true where any GPU can be cut up, whether or not it is", kMode},
    {"nvidia.com/mig.strategy", "single or mixed; absent with none", kOffered},
    {"nvidia.com/mps.capable", "true where something is shared with MPS", kOffered},
    {"nvidia.com/gpu.clique", "cluster.clique of the NVLink fabric, where all GPUs in one have the same",
     "nvmlDeviceGetGpuFabricInfoV"},
    {"nvidia.com/gpu.product",
     "the model, cleaned; with -MIG- and the profile in strategy single, -MIG-INVALID where that cannot be, "
     "and "
     "-SHARED where it is shared under its own name",
     kName},
    {"nvidia.com/gpu.count", "GPUs of the model, cut up or not; in strategy single MIG devices, 0 if invalid",
     "nvmlDeviceGetCount_v2"},
    {"nvidia.com/gpu.replicas",
     "shares of each; 1 unshared; 0 where all GPUs of the model are cut up, and if invalid", kOffered},
    {"nvidia.com/gpu.sharing-strategy", "none, time-slicing or mps; empty if invalid", kOffered},
    {"nvidia.com/gpu.memory", "MiB of one; 0 if invalid", kMemory},
    {"nvidia.com/gpu.family", "the architecture, by the compute capability", kCompute},
    {"nvidia.com/gpu.compute.major", "the compute capability's first number", kCompute},
    {"nvidia.com/gpu.compute.minor", "the compute capability's second number", kCompute},
    {"nvidia.com/gpu.multiprocessors", "of a MIG device in strategy single; so are those below", kAttributes},
    {"nvidia.com/gpu.slices.gi", "slices of its GPU instance", kAttributes},
    {"nvidia.com/gpu.slices.ci", "slices of its compute instance", kAttributes},
    {"nvidia.com/gpu.engines.copy", "its copy engines", kAttributes},
    {"nvidia.com/gpu.engines.decoder", "its video decoders", kAttributes},
    {"nvidia.com/gpu.engines.encoder", "its video encoders", kAttributes},
    {"nvidia.com/gpu.engines.jpeg", "its JPEG decoders", kAttributes},
    {"nvidia.com/gpu.engines.ofa", "its optical flow accelerators", kAttributes},
    {"nvidia.com/mig-<profile>.product", "in strategy mixed: the model, then -MIG- and the profile", kName},
    {"nvidia.com/mig-<profile>.count", "MIG devices of the profile", kInstances},
    {"nvidia.com/mig-<profile>.replicas", "shares of each; 1 unshared", kOffered},
    {"nvidia.com/mig-<profile>.sharing-strategy", "none, time-slicing or mps", kOffered},
    {"nvidia.com/mig-<profile>.memory", "MiB of one", kAttributes},
    {"nvidia.com/mig-<profile>.multiprocessors", "of one", kAttributes},
    {"nvidia.com/mig-<profile>.slices.gi", "slices of its GPU instance", kAttributes},
    {"nvidia.com/mig-<profile>.slices.ci", "slices of its compute instance", kAttributes},
    {"nvidia.com/mig-<profile>.engines.copy", "its copy engines", kAttributes},
    {"nvidia.com/mig-<profile>.engines.decoder", "its video decoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.encoder", "its video encoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.jpeg", "its JPEG decoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.ofa", "its optical flow accelerators", kAttributes},
    {"nvidia.com/vgpu.present", "true where a GPU is a hypervisor's virtual one; absent otherwise",
     kCapability},
    {"nvidia.com/vgpu.host-driver-version", "the hypervisor's driver", kCapability},
    {"nvidia.com/vgpu.host-driver-branch", "its branch", kCapability},
    {"gpulet.io/gpu.models", "how many models of GPU the node has", kName},
    {"gpulet.io/gpu.memory-bandwidth",
     "class of the model's memory: GB/s at its greatest clock, down to two digits", kBandwidth},
    {"gpulet.io/gpu.nvlink-domain",
     "the most GPUs of this node that are joined by NVLink, also through others; 1 without NVLink", kLinks},
    {"gpulet.io/model.<model>.count", "GPUs of the model, cut up or not", "nvmlDeviceGetCount_v2"},
    {"gpulet.io/model.<model>.memory", "MiB of one", kMemory},
    {"gpulet.io/model.<model>.compute", "the compute capability: 9.0", kCompute},
    {"gpulet.io/model.<model>.memory-bandwidth", "as gpu.memory-bandwidth, of this model", kBandwidth},
};

bool matches(std::string_view pattern, std::string_view key) {
  const auto open = pattern.find('<');
  if (open == std::string_view::npos) return pattern == key;
  const auto before = pattern.substr(0, open), after = pattern.substr(pattern.find('>') + 1);
  return key.size() > before.size() + after.size() && key.starts_with(before) && key.ends_with(after);
}

}  // namespace

std::span<const Rule> rules() { return kRules; }

const Rule* rule_of(std::string_view key) {
  // "….memory-bandwidth" ends in nothing shorter that there is, so the first is the only one.
  const auto found = std::ranges::find_if(kRules, [&](const Rule& rule) { return matches(rule.key, key); });
  return found == std::end(kRules) ? nullptr : found;
}

}  // namespace gpulet::labels
