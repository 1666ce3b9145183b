// Groups a node's GPUs by model and its MIG devices by profile, independent of the driver's order, and tells
// how they are shared. Pure.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "fraction/limit_grade.h"
#include "inventory/snapshot.h"

namespace gpulet::labels {

// If GPUs of one model differ, the smallest value counts, because Pods can rely on it.
struct Model {
  std::string name;  // the driver's name
  std::string key;   // as a part of a label's key
  std::vector<const inventory::Gpu*> gpus;
  Bytes memory;                 // 0: unknown, also below
  std::uint64_t bandwidth = 0;  // bytes a second
  unsigned compute_major = 0, compute_minor = 0;
  std::string architecture;
};

// The first model is the one of nvidia.com/gpu.… (order: labels.h). Omits display adapters, GPUs of unknown
// model and excluded ones. Points into the snapshot.
std::vector<Model> group_by_model(const inventory::Snapshot& snapshot);

struct Profile {
  using Device = std::pair<const inventory::Gpu*, const inventory::MigDevice*>;
  std::string name;   // as a part of a resource's name: "1g.10gb.me"
  std::string model;  // the model with the most of these devices; ties in the order of models
  std::vector<Device> devices;
  std::vector<const inventory::Gpu*> profile_gpus() const;  // without duplicates
  // The device with the smallest attributes, compared by memory, multiprocessors, engines.
  const inventory::MigDevice& smallest_device() const;
};
// By name.
std::vector<Profile> group_by_profile(const std::vector<Model>& models);

// "GPU 3", "GPU 0-5,7".
std::string gpu_range_text(std::vector<const inventory::Gpu*> gpus);

// How GPUs and MIG devices are shared, from the resource plan (partition/resources.h) that the kubelet's
// offers are made of.

struct SharingMode {
  unsigned replicas = 1;  // shares of one device
  config::SharingStrategy sharing = config::SharingStrategy::kNone;
  bool renamed = false;  // offered under another name than the unshared device
  friend auto operator<=>(const SharingMode&, const SharingMode&) = default;
};
std::string sharing_name(config::SharingStrategy sharing);  // "none", "time-slicing", "mps"

class SharingView {
 public:
  // `snapshot` and `config` outlive it.
  SharingView(const inventory::Snapshot& snapshot, const config::Config& config,
              const std::map<std::string, std::string>& node_labels);

  // flags.migStrategy. With MIG rules in gpulet.partition: single if the whole node has one kind of MIG
  // device under the name of whole GPUs, else mixed.
  config::MigStrategy strategy() const { return strategy_; }
  bool uses_mps() const { return uses_mps_; }
  // Of the memory limits on the shared devices, also on those that claims share (partition/limit_means.h).
  fraction::LimitGrade limit_grade() const { return limit_grade_; }

  // Whether the resource plan has the GPU as a whole, or the MIG device.
  bool offers_gpu(const inventory::Gpu* gpu) const;
  bool offers_mig_device(const Profile::Device& device) const;

  // The mode of most devices; on a tie, the one with the fewest shares. A device that is not offered counts
  // as unshared. GPUs with MIG devices do not count; 0 replicas if all have.
  SharingMode mode_of_gpus(const std::vector<const inventory::Gpu*>& gpus) const;
  SharingMode mode_of_mig_devices(const std::vector<Profile::Device>& devices) const;

 private:
  using Key = std::pair<std::size_t, std::optional<std::size_t>>;  // as partition::Device::gpu, ::mig
  Key key_of(const Profile::Device& device) const;
  SharingMode mode_of(const Key& key) const;
  std::size_t gpu_index(const inventory::Gpu* gpu) const;

  const inventory::Snapshot& snapshot_;
  std::map<Key, SharingMode> modes_;
  config::MigStrategy strategy_;
  bool uses_mps_ = false;
  fraction::LimitGrade limit_grade_ = fraction::LimitGrade::kNone;
};

}  // namespace gpulet::labels
