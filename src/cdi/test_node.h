// A node with eight GPUs for the tests and benchmarks of src/cdi, as values: no root, no driver.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cdi/generate.h"

namespace gpulet::cdi {

struct TestNode {
  inventory::Snapshot snapshot;
  DriverFiles driver;
  NodeFiles files;

  // The first `mig` GPUs have seven MIG devices each.
  explicit TestNode(unsigned gpus = 8, unsigned mig = 0) {
    snapshot.driver = {"570.124.06", 12080};
    driver.version = "570.124.06";
    driver.library_dirs = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/vdpau"};
    driver.cuda_library_dirs = {"/usr/lib/x86_64-linux-gnu"};
    for (int i = 0; i < 40; ++i) {
      const std::string file = "/usr/lib/x86_64-linux-gnu/libnvidia-" + std::to_string(i) + ".so.570.124.06";
      driver.libraries.push_back({"/run/driver" + file, file});
      driver.links.push_back({"libnvidia-" + std::to_string(i) + ".so.1",
                              "/usr/lib/x86_64-linux-gnu/libnvidia-" + std::to_string(i) + ".so"});
    }
    driver.binaries = {{"/run/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"}};
    driver.sockets = {{"/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", true}};
    files.control = {test_device_node("/dev/nvidiactl", 255), test_device_node("/dev/nvidia-uvm", 0),
                     test_device_node("/dev/nvidia-uvm-tools", 1),
                     test_device_node("/dev/nvidia-modeset", 254)};
    for (unsigned i = 0; i < gpus; ++i) add_gpu(i, i < mig);
  }

  static DeviceNode test_device_node(const std::string& path, unsigned minor, mode_t mode = 0666,
                                     gid_t gid = 0) {
    return {path, path, 195, minor, mode, gid};
  }

  void add_gpu(unsigned index, bool mig) {
    inventory::Gpu gpu;
    gpu.index = gpu.minor = index;
    gpu.uuid = DeviceUuid("GPU-0000000" + std::to_string(index));
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.brand = "NVIDIA RTX";
    gpu.compute_major = 9;
    gpu.pci.bus = index + 1;
    gpu.mig_enabled = mig;
    const std::string number = std::to_string(index);
    NodeFiles::GpuNodes nodes;
    nodes.node = test_device_node("/dev/nvidia" + number, index);
    for (unsigned i = 0; mig && i < 7; ++i) {
      inventory::MigDevice device;
      device.index = i;
      device.uuid = DeviceUuid("MIG-" + number + "-" + std::to_string(i));
      device.profile = i == 0 ? "1g.10gb+gfx" : "1g.10gb";
      device.gpu_instance = i + 7;
      gpu.mig_devices.push_back(device);
      for (unsigned cap = 0; cap < 2; ++cap) {
        const unsigned minor = index * 100 + i * 2 + cap + 3;
        nodes.mig[{i + 7, 0}].push_back(
            test_device_node("/dev/nvidia-caps/nvidia-cap" + std::to_string(minor), minor, 0444));
      }
    }
    nodes.drm.nodes = {
        test_device_node("/dev/dri/card" + number, index, 0660, 44),
        test_device_node("/dev/dri/renderD" + std::to_string(128 + index), 128 + index, 0660, 105)};
    nodes.drm.links = {{"../card" + number, "/dev/dri/by-path/pci-0000:0" + number + ":00.0-card"}};
    snapshot.gpus.push_back(std::move(gpu));
    files.gpus.push_back(std::move(nodes));
  }
};

}  // namespace gpulet::cdi
