// For tests of `kubectl gpulet`: GpuNodes as an API server has them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>  // tidy: heavy-header because objects are made with it

#include "scheduler/model/test_nodes.h"

namespace gpulet::cli::kubectl {

inline nlohmann::json gpu_node_object(const std::string& name, const scheduler::GpuNode& node) {
  return {{"apiVersion", scheduler::kGpuNodeApiVersion},
          {"kind", scheduler::kGpuNodeKind},
          {"metadata", {{"name", name}, {"resourceVersion", "7"}}},
          {"spec", nlohmann::json::parse(scheduler::encode_spec(node))}};
}

// Two GPUs: one that team-a/train holds, one that is quarantined.
inline scheduler::GpuNode faulty_node() {
  auto node = scheduler::test_node(2, 2);
  node.gpus[0].now = {.busy_percent = 90, .memory_percent = 55};
  scheduler::hold_units(node, "team-a/train", {0});
  scheduler::quarantine_gpu(node, 1, "XID 79: GPU has fallen off the bus");
  return node;
}

// One GPU in four shares, of which team-a/web holds one and team-b/api two.
inline scheduler::GpuNode shared_node() {
  auto node = scheduler::test_node(1, 1, 4);
  scheduler::hold_units(node, "team-a/web", {0});
  scheduler::hold_units(node, "team-b/api", {0}, 2);
  return node;
}

}  // namespace gpulet::cli::kubectl
