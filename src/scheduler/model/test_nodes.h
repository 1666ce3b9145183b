// GpuNodes and Pods for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

inline const ResourceName kGpu{"nvidia.com/gpu"};

// `size` GPUs of 80 GiB; NV4 links within each group of `group`, SYS between groups.
inline GpuNode test_node(std::size_t size, std::size_t group, unsigned shares = 1) {
  GpuNode node;
  node.driver = "570.124.06";
  node.cuda_version = 12080;
  node.models.push_back({"NVIDIA H100 80GB HBM3", "hopper", 9, 0, 81920});
  node.resources.push_back(
      {.name = kGpu, .sharing = shares == 1 ? Sharing::kNone : Sharing::kTimeSlicing, .units = {}});
  for (std::size_t gpu = 0; gpu < size; ++gpu) {
    node.gpus.push_back({.uuid = "GPU-" + std::to_string(gpu),
                         .model = 0,
                         .numa = static_cast<int>(gpu * 2 / size),
                         .reason = {},
                         .load = {}});
    ResourceUnit unit;
    unit.gpu = gpu;
    unit.shares = shares;
    node.resources[0].units.push_back(unit);
  }
  node.pairs.resize(size * size);
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = 0; b < size; ++b) {
      auto& pair = node.pairs[a * size + b];
      pair.pcie = a == b ? inventory::PcieDistance::kInternal : inventory::PcieDistance::kSystem;
      if (a != b && a / group == b / group) pair.direct_nvlinks = 4;
    }
  }
  return node;
}

// test_node() that offers its GPUs by claims.
inline GpuNode test_claim_node(std::size_t size, std::size_t group) {
  GpuNode node = test_node(size, group);
  node.resources[0].name = ResourceName(kClaimedResource);
  return node;
}

inline void quarantine_gpu(GpuNode& node, std::size_t gpu, const std::string& reason) {
  node.gpus[gpu].state = health::DeviceState::kQuarantined;
  node.gpus[gpu].reason = reason;
  for (auto& resource : node.resources) {
    for (auto& unit : resource.units) {
      if (unit.gpu == gpu) unit.unavailable = unit.shares, unit.unavailable_reason = reason;
    }
  }
}

inline void hold_units(GpuNode& node, const std::string& pod, const std::vector<std::size_t>& units,
                       unsigned shares = 1) {
  PodAllocation holding{.pod = pod, .parts = {}};
  for (const auto unit : units) holding.parts.push_back({0, unit, shares});
  node.allocations.push_back(std::move(holding));
}

// A Pod with a claim, and no extended resource.
inline PodRequest test_claim_pod(const std::string& name, const std::string& node = {}) {
  PodRequest pod;
  pod.name_space = "default";
  pod.name = name;
  pod.node = node;
  pod.has_claims = true;
  return pod;
}

inline PodRequest test_pod(const std::string& name, unsigned gpus, const std::string& node = {}) {
  PodRequest pod;
  pod.name_space = "default";
  pod.name = name;
  pod.uid = "uid-" + name;
  pod.node = node;
  pod.containers.push_back(
      {.name = "main", .kind = ContainerRequest::Kind::kMain, .devices = {{kGpu, gpus}}});
  return pod;
}

}  // namespace gpulet::scheduler
