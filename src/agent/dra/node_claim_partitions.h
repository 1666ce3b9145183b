// The MIG devices of claims, made and removed on the driver's thread; and the profiles that their GPUs have.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/driver/nvml_driver.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "config/config.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "dra/partition.h"
#include "inventory/snapshot.h"
#include "mig/hardware.h"
#include "mig/layout.h"

namespace gpulet::agent {

struct ClaimPartitionsPorts {
  Loop& loop;
  std::function<NvmlDriver*()> driver;    // null while there is none
  std::function<void()> request_reading;  // of the GPUs
  // More is known, a MIG device has come or gone, or one could not be removed. Called from the loop.
  std::function<void()> changed;
};

// Loop's thread only. The driver is asked again for everything after restart_calls().
class NodeClaimPartitions final : public dra::ClaimPartitions {
 public:
  explicit NodeClaimPartitions(ClaimPartitionsPorts ports) : ports_(std::move(ports)) {}

  void find_partition(const DeviceUuid& gpu, const dra::Partition& partition,
                      std::function<void(Result<DeviceUuid>)> done) override;
  void make_partition(const DeviceUuid& gpu, const dra::Partition& partition, bool resumes,
                      std::function<void(Result<DeviceUuid>)> done) override;
  void remove_partition(const DeviceUuid& gpu, const dra::Partition& partition, const DeviceUuid& uuid,
                        std::function<void(Status)> done) override;

  // The GPUs whose rules make MIG devices for claims; reads the profiles that are not known yet. `staying`:
  // ClaimController::held_partitions().
  std::map<DeviceUuid, dra::DynamicGpu> dynamic_gpus(
      const inventory::Snapshot& snapshot, const config::Config& config,
      const std::map<std::string, std::string>& labels,
      const std::map<std::string, dra::ClaimRecord>& records,
      const std::map<DeviceUuid, std::set<dra::Partition>>& staying);
  void restart_calls();

 private:
  template <class T>
  void run_on_hardware(const DeviceUuid& gpu, const std::string& what,
                       std::function<Result<T>(mig::Hardware&)> work, std::function<void(Result<T>)> done);
  void read_profiles(const DeviceUuid& gpu);
  void notify_changed();

  ClaimPartitionsPorts ports_;
  std::map<DeviceUuid, std::vector<mig::Profile>> profiles_;  // by GPU
  std::set<DeviceUuid> reading_;
  std::string read_error_;
  Subscription retry_;
  std::set<DeviceUuid> removed_;  // MIG devices that the snapshot may still have
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
