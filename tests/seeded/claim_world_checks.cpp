// What holds after every step of a storm, and at its end.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "agent/dra/offer_readings.h"
#include "base/file.h"
#include "dra/test_machines.h"
#include "tests/seeded/claim_world.h"

namespace gpulet::seeded {

namespace fs = std::filesystem;

std::set<std::string> ClaimWorld::files() const {
  std::set<std::string> found;
  for (const auto* directory : {"/claims", "/cdi"}) {
    if (!fs::is_directory(directory_ + directory)) continue;
    for (const auto& entry : fs::directory_iterator(directory_ + directory)) {
      struct stat status{};
      EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
      found.insert(entry.path().filename().string() + " " + std::to_string(status.st_ino));
    }
  }
  return found;
}

std::set<DeviceUuid> ClaimWorld::instances() const {
  std::set<DeviceUuid> found;
  for (const auto& instance : current_state().instances)
    found.insert(instance.compute.empty() ? DeviceUuid("without a device") : instance.compute[0].uuid);
  return found;
}

void ClaimWorld::expect_invariants() {
  expect_claims_keep_devices();
  expect_each_device_once();
  expect_sides_apart();
  expect_instances_owned();
  expect_slices_of_state();
}

void ClaimWorld::expect_claims_keep_devices() {
  const auto there = instances();
  for (const auto& [uid, claim] : claims_) {
    if (!claim.prepared) continue;
    const auto record = controller_->records().find(uid);
    ASSERT_NE(record, controller_->records().end()) << uid << " has no record";
    EXPECT_FALSE(record->second.ending) << uid;
    const auto spec = blocked_.contains("cdi")
                          ? Result<std::string>("")
                          : read_file(directory_ + "/cdi/" + dra::claim_spec_file_name(uid));
    EXPECT_TRUE(spec) << uid << " has no CDI document";
    ASSERT_EQ(record->second.devices.size(), claim.prepared->size()) << uid;
    for (const auto& device : record->second.devices) {
      const auto uuid = claim.uuids.find(claim_cdi_id(record->second, device));
      ASSERT_NE(uuid, claim.uuids.end()) << uid;
      // A record that could not be written again has the place only.
      if (device.uuid.empty() && device.partition && device.partition->made) {
        EXPECT_TRUE(there.contains(uuid->second)) << uid << " lost " << uuid->second.str();
        continue;
      }
      EXPECT_EQ(uuid->second, device.uuid) << uid;
      EXPECT_TRUE(!device.partition || there.contains(device.uuid)) << uid << " lost " << device.uuid.str();
      EXPECT_TRUE(blocked_.contains("cdi") ||
                  (spec && spec->find("X=" + device.uuid.str()) != std::string::npos))
          << uid;
    }
  }
}

void ClaimWorld::expect_each_device_once() {
  std::map<DeviceUuid, std::string> whole;
  std::map<DeviceUuid, std::uint64_t> shares;
  std::vector<std::pair<dra::Partition, std::string>> places;
  for (const auto& [uid, record] : controller_->records()) {
    for (const auto& held : record.devices) {
      if (held.admin_access) continue;
      if (held.is_share()) {
        shares[held.uuid] += held.consumed.at("memory");
      } else if (!held.uuid.empty()) {
        const auto [at, is_new] = whole.emplace(held.uuid, uid);
        EXPECT_TRUE(is_new || at->second == uid)
            << held.uuid.str() << " is held by " << at->second << " and " << uid;
      }
      if (!held.partition) continue;
      for (const auto& [place, holder] : places) {
        EXPECT_FALSE(holder != uid && place.overlaps(held.partition->partition))
            << partition_text(place) << " is held by " << holder << " and " << uid;
      }
      places.emplace_back(held.partition->partition, uid);
    }
  }
  for (const auto& [uuid, sum] : shares) {
    EXPECT_FALSE(whole.contains(uuid)) << uuid.str() << " is held whole and as a share";
    EXPECT_LE(sum, gpus_[kSharedGpu].memory.value);
  }
}

void ClaimWorld::expect_sides_apart() {
  const auto holders = agent::claim_holders(controller_->records(), *dra::test::make_snapshot(gpus_));
  for (const auto& [gpu, pod] : plugin_pods_) {
    const auto holder = holders.find(gpu);
    EXPECT_EQ(holder, holders.end()) << gpu.str() << " is held by " << pod << " and by " << holder->second;
  }
}

void ClaimWorld::expect_instances_owned() {
  for (const auto& instance : current_state().instances) {
    if (!instance.compute.empty() && foreign_.contains(instance.compute[0].uuid)) continue;
    const bool is_owned = std::ranges::any_of(controller_->records(), [&](const auto& entry) {
      return std::ranges::any_of(entry.second.devices, [&](const auto& held) {
        return held.partition && held.partition->made &&
               held.partition->partition.placement == instance.placement;
      });
    });
    EXPECT_TRUE(is_owned) << "an instance at " << instance.placement.start << " is nobody's";
  }
}

// Whatever the slices show is what some state wanted; complete pools name each device once.
void ClaimWorld::expect_slices_of_state() {
  std::map<std::int64_t, std::set<std::string>> names;
  for (const auto& [name, slice] : slices_) {
    for (const auto& device : slice.devices)
      EXPECT_TRUE(names[slice.generation].insert(device.name).second) << device.name << " is there twice";
  }
}

void ClaimWorld::expect_nothing_left() {
  EXPECT_TRUE(controller_->records().empty()) << controller_->records().begin()->first;
  EXPECT_EQ(files(), std::set<std::string>());
  EXPECT_EQ(instances(), foreign_);
  EXPECT_EQ(controller_->counts().preparing, 0u);
  EXPECT_EQ(open_calls_, 0u);
  std::set<std::string> expected, shown;
  for (const auto& offered : pool_.devices) expected.insert(offered.device.name);
  for (const auto& [name, slice] : slices_) {
    for (const auto& device : slice.devices) shown.insert(device.name);
  }
  EXPECT_EQ(shown, expected);
  for (const auto& [gpu, side] : sides_) {
    EXPECT_EQ(partition::offer_of(offers_.offers(), gpu).stage, side == config::OfferSide::kClaims
                                                                    ? partition::OfferStage::kClaims
                                                                    : partition::OfferStage::kDevicePlugin)
        << gpu.str() << " " << partition::offer_of(offers_.offers(), gpu).reason;
  }
  const auto writes = slice_writes_;
  publish();
  EXPECT_EQ(slice_writes_, writes);
}

}  // namespace gpulet::seeded
