// A node's GPUs by model, and its MIG devices by profile, in orders that do not depend on how the driver
// counts. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "inventory/snapshot.h"

namespace gpulet::labels {

// Where GPUs of one model differ, the least counts: what a Pod can rely on.
struct Model {
  std::string name;  // as the driver says it
  std::string key;   // as a part of a label's key
  std::vector<const inventory::Gpu*> gpus;
  Bytes memory;                 // 0 when unknown, as the rest
  std::uint64_t bandwidth = 0;  // bytes a second
  unsigned compute_major = 0, compute_minor = 0;
  std::string architecture;
};
// The first is the one that nvidia.com/gpu.… speaks of (labels.h has the order). Without display adapters and
// GPUs whose model was never learned. What it points to is the snapshot's.
std::vector<Model> models_of(const inventory::Snapshot& snapshot);

struct Profile {
  using Device = std::pair<const inventory::Gpu*, const inventory::MigDevice*>;
  std::string name;   // as a part of a resource's name: "1g.10gb.me"
  std::string model;  // the one with most of these devices; then as models go
  std::vector<Device> devices;
  std::vector<const inventory::Gpu*> gpus() const;  // each once
  // The device with the least attributes, in the order memory, multiprocessors, engines.
  const inventory::MigDevice& least() const;
};
// By name.
std::vector<Profile> profiles_of(const std::vector<Model>& models);

// "GPU 3", "GPU 0-5,7".
std::string name_indices(std::vector<const inventory::Gpu*> gpus);

}  // namespace gpulet::labels
