#include "agent/dra/node_claim_partitions.h"

#include <chrono>
#include <memory>
#include <utility>

#include "agent/dra/offer_readings.h"
#include "base/log.h"
#include "mig/fixed_instance.h"

namespace gpulet::agent {
namespace {

// Making or removing one takes seconds on some boards. After this limit the GPU counts as hanging.
constexpr Duration kPartitionLimit = std::chrono::minutes(2);
constexpr Duration kProfilesLimit = std::chrono::seconds(30), kProfilesRetry = std::chrono::seconds(10);

mig::FixedPlace place_of(const dra::Partition& partition) {
  return {partition.profile_id, partition.placement};
}

}  // namespace

// `done` gets an error while there is no driver.
template <class T>
void NodeClaimPartitions::run_on_hardware(const DeviceUuid& gpu, const std::string& what,
                                          std::function<Result<T>(mig::Hardware&)> work,
                                          std::function<void(Result<T>)> done) {
  NvmlDriver* const driver = ports_.driver();
  if (driver == nullptr) {
    return ports_.loop.post(
        [done = std::move(done)] { done(fail(Code::kUnavailable, "the driver is being initialised")); });
  }
  driver->run_on_gpu<T>(
      gpu, what, kPartitionLimit,
      [gpu, work = std::move(work)](const NvmlDriver::SessionPtr& session, unsigned index) {
        const auto hardware = mig::make_hardware(session, index, gpu);
        return work(*hardware);
      },
      std::move(done));
}

void NodeClaimPartitions::find_partition(const DeviceUuid& gpu, const dra::Partition& partition,
                                         std::function<void(Result<DeviceUuid>)> done) {
  run_on_hardware<DeviceUuid>(
      gpu, "reading MIG of",
      [place = place_of(partition)](mig::Hardware& hardware) {
        return mig::find_fixed_instance(hardware, place);
      },
      std::move(done));
}

void NodeClaimPartitions::make_partition(const DeviceUuid& gpu, const dra::Partition& partition, bool resumes,
                                         std::function<void(Result<DeviceUuid>)> done) {
  run_on_hardware<DeviceUuid>(
      gpu, "making a MIG device of",
      [place = place_of(partition), resumes](mig::Hardware& hardware) {
        return mig::make_fixed_instance(hardware, place, resumes);
      },
      [this, alive = lifetime_.watch(), done = std::move(done)](Result<DeviceUuid> made) {
        if (!alive) return;
        if (made) removed_.erase(*made);
        done(std::move(made));
        if (alive) notify_changed();
      });
}

void NodeClaimPartitions::remove_partition(const DeviceUuid& gpu, const dra::Partition& partition,
                                           const DeviceUuid& uuid, std::function<void(Status)> done) {
  run_on_hardware<bool>(
      gpu, "removing a MIG device of",
      [place = place_of(partition), uuid](mig::Hardware& hardware) -> Result<bool> {
        GPULET_TRY(mig::remove_fixed_instance(hardware, place, uuid));
        return true;
      },
      [this, alive = lifetime_.watch(), uuid, done = std::move(done)](const Result<bool>& removed) {
        if (!alive) return;
        if (removed && !uuid.empty()) removed_.insert(uuid);
        done(removed ? Status() : fail(removed.error()));
        if (!alive) return;
        if (removed) return notify_changed();
        ports_.changed();  // what cannot be made beside it
      });
}

void NodeClaimPartitions::notify_changed() {
  ports_.request_reading();
  ports_.changed();
}

std::map<DeviceUuid, dra::DynamicGpu> NodeClaimPartitions::dynamic_gpus(
    const inventory::Snapshot& snapshot, const config::Config& config,
    const std::map<std::string, std::string>& labels, const std::map<std::string, dra::ClaimRecord>& records,
    const std::map<DeviceUuid, std::set<dra::Partition>>& staying) {
  auto dynamic = agent::dynamic_gpus(snapshot, config, labels, records);
  std::set<DeviceUuid> present;
  for (const auto& gpu : snapshot.gpus) {
    for (const auto& mig : gpu.mig_devices) present.insert(mig.uuid);
  }
  std::erase_if(removed_, [&](const DeviceUuid& uuid) { return !present.contains(uuid); });
  for (auto& [uuid, one] : dynamic) {
    one.removed = removed_;
    if (const auto of_gpu = staying.find(uuid); of_gpu != staying.end()) one.held = of_gpu->second;
    const auto known = profiles_.find(uuid);
    if (known != profiles_.end()) {
      one.profiles = known->second;
    } else {
      read_profiles(uuid);
    }
  }
  return dynamic;
}

void NodeClaimPartitions::read_profiles(const DeviceUuid& gpu) {
  auto* driver = ports_.driver();
  if (driver == nullptr || retry_ || !reading_.insert(gpu).second) return;
  driver->run_on_gpu<mig::State>(
      gpu, "reading the MIG profiles of", kProfilesLimit,
      [](const NvmlDriver::SessionPtr& session, unsigned index) {
        return mig::read_mig_state(*session, index);
      },
      [this, gpu, alive = lifetime_.watch()](const Result<mig::State>& state) {
        if (!alive) return;
        reading_.erase(gpu);
        if (state) {
          profiles_.insert_or_assign(gpu, state->profiles);
          return ports_.changed();
        }
        if (std::exchange(read_error_, state.error().full_message()) != state.error().full_message())
          log::warning("the MIG profiles of a GPU are not known", state.error());
        retry_ = ports_.loop.after(kProfilesRetry, [self = this] {
          auto& keeper = *self;  // the task goes with its subscription
          keeper.retry_.reset();
          keeper.ports_.changed();
        });
      });
}

void NodeClaimPartitions::restart_calls() {
  reading_.clear();
  retry_.reset();
}

}  // namespace gpulet::agent
