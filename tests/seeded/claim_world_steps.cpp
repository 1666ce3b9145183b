// What happens to a node and its claims in a storm.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/file.h"
#include "dra/test_claims.h"
#include "mig/test_states.h"
#include "tests/seeded/claim_world.h"

namespace gpulet::seeded {

using namespace std::chrono_literals;
using dra::ClaimRecord;
using nlohmann::json;

namespace {

constexpr std::size_t kMaxClaims = 12;  // at the same time
constexpr std::size_t kClaimChanges = 12, kNodeChanges = 10;
constexpr Duration kAnswered = 45s;
constexpr std::uint64_t kShare = mebibytes(20'000).value;

bool keeps_off(const dra::Device& device) {
  return std::ranges::any_of(device.taints,
                             [](const auto& taint) { return taint.effect != dra::TaintEffect::kNone; });
}

}  // namespace

ClaimWorld::Claim* ClaimWorld::any_claim() {
  if (claims_.empty()) return nullptr;
  return &std::next(claims_.begin(), static_cast<std::ptrdiff_t>(any(claims_.size())))->second;
}

// As the scheduler does: from complete pools, what no claim that exists has, without taints, within the
// counters and the capacity.
bool ClaimWorld::schedule_devices(std::vector<json>& results) {
  std::set<std::string> held;
  std::map<std::string, std::uint64_t> shared;
  for (const auto& [uid, claim] : claims_) {
    if (!claim.exists) continue;
    for (const auto& result : claim.object["status"]["allocation"]["devices"]["results"]) {
      const std::string name = result["device"];
      if (result.contains("shareID"))
        shared[name] += kShare;
      else if (!result.contains("adminAccess"))
        held.insert(name);
    }
  }
  std::int64_t newest = 0;
  for (const auto& [name, slice] : slices_) newest = std::max(newest, slice.generation);
  std::vector<dra::Device> devices;
  std::map<std::string, std::map<std::string, std::uint64_t>> left;
  std::int64_t complete = 0;
  for (const auto& [name, slice] : slices_) {
    if (slice.generation != newest) continue;
    ++complete;
    if (complete == 1) left.clear();
    devices.insert(devices.end(), slice.devices.begin(), slice.devices.end());
    for (const auto& set : slice.counter_sets) left[set.name] = set.counters;
  }
  for (const auto& [name, slice] : slices_) {
    if (slice.generation == newest && slice.slice_count != complete) return false;
  }
  const auto take = [&](const dra::Device& device) {
    for (const auto& use : device.consumes) {
      for (const auto& [counter, value] : use.counters) {
        if (left[use.set][counter] < value) return false;
      }
    }
    for (const auto& use : device.consumes) {
      for (const auto& [counter, value] : use.counters) left[use.set][counter] -= value;
    }
    return true;
  };
  for (const auto& device : devices) {
    if (held.contains(device.name)) take(device);
  }
  std::ranges::shuffle(devices, random_);
  const bool is_admin = chance(8);
  const std::size_t wanted = 1 + any(3) / 2 + any(6) / 5;
  for (const auto& device : devices) {
    if (results.size() == wanted) break;
    if (keeps_off(device)) continue;
    auto result = dra::test::result_json(device.name);
    if (is_admin) {
      result["adminAccess"] = true;
    } else if (held.contains(device.name)) {
      continue;
    } else if (device.allows_multiple) {
      if (shared[device.name] + kShare > device.capacity.at("memory")) continue;
      shared[device.name] += kShare;
      result["shareID"] = "share-" + std::to_string(next_claim_) + "-" + std::to_string(results.size());
      result["consumedCapacity"] = {{"memory", std::to_string(kShare)}};
    } else if (shared.contains(device.name) || !take(device)) {
      continue;
    }
    results.push_back(std::move(result));
  }
  return !results.empty();
}

void ClaimWorld::schedule_claim() {
  const auto count = std::ranges::count_if(claims_, [](const auto& entry) { return entry.second.exists; });
  if (!api_up_ || static_cast<std::size_t>(count) >= kMaxClaims) return;
  const std::string name = "c" + std::to_string(any(20));
  if (std::ranges::any_of(claims_,
                          [&](const auto& one) { return one.second.exists && one.second.name == name; }))
    return;
  std::vector<json> results;
  if (!schedule_devices(results)) return;
  Claim claim{.name = name, .uid = "uid-" + std::to_string(next_claim_++), .object = {}};
  claim.object = dra::test::claim_json(results, {}, claim.uid, name);
  ++counts["claims"];
  auto& added = claims_.emplace(claim.uid, std::move(claim)).first->second;
  if (!chance(3)) prepare({&added});
}

void ClaimWorld::prepare(const std::vector<Claim*>& claims) {
  std::vector<dra::ClaimName> names;
  for (const auto* claim : claims) {
    if (claim != nullptr) names.push_back({"team", claim->name, claim->uid});
  }
  ++counts["prepares"];
  ++open_calls_;
  controller_->prepare_claims(names, [this, alive = process_->watch()](auto answers) {
    if (!alive) return;
    --open_calls_;
    on_answer(answers);
  });
}

void ClaimWorld::on_answer(const std::map<std::string, Result<dra::PreparedClaim>>& answers) {
  for (const auto& [uid, answer] : answers) {
    auto& claim = claims_.at(uid);
    if (!answer) {
      ++counts["refused"];
      continue;
    }
    ++counts["prepared"];
    std::vector<std::string> expected, found;
    for (const auto& result : claim.object["status"]["allocation"]["devices"]["results"])
      expected.push_back(result["device"]);
    for (const auto& device : *answer) found.push_back(device.device);
    EXPECT_EQ(found, expected) << uid << ": another claim's devices";
    if (!claim.exists) continue;  // it was read before, and ends as an orphan
    EXPECT_EQ(claim.prepared.value_or(*answer), *answer) << uid << ": answered in two ways";
    claim.prepared = *answer;
    const auto record = controller_->records().find(uid);
    ASSERT_NE(record, controller_->records().end()) << uid;
    for (const auto& device : record->second.devices)
      claim.uuids.insert_or_assign(claim_cdi_id(record->second, device), device.uuid);
  }
}

void ClaimWorld::unprepare(const std::vector<Claim*>& claims) {
  std::vector<dra::ClaimName> names;
  for (const auto* claim : claims) {
    if (claim != nullptr) names.push_back({"team", claim->name, claim->uid});
  }
  ++counts["unprepares"];
  for (const auto& [uid, ended] : controller_->unprepare_claims(names)) {
    auto& claim = claims_.at(uid);
    // The Pod's containers have ended, whatever is answered.
    claim.prepared.reset();
    claim.uuids.clear();
    EXPECT_TRUE(ended || !blocked_.empty()) << ended.error().full_message();
  }
}

// Its record may be ended at any time from now on.
void ClaimWorld::delete_claim(Claim& claim) {
  claim.exists = false;
  claim.prepared.reset();
  claim.uuids.clear();
}

void ClaimWorld::damage_record() {
  if (controller_->records().empty() || !blocked_.empty()) return;
  const auto& records = controller_->records();
  const ClaimRecord record =
      std::next(records.begin(), static_cast<std::ptrdiff_t>(any(records.size())))->second;
  ++counts["damaged records"];
  const std::string path = directory_ + "/claims/" + record.uid + ".json";
  const auto text = read_file(path);
  ASSERT_TRUE(text);
  ASSERT_TRUE(write_file_atomic(path, text->substr(0, any(text->size() - 1))));  // without the last brace
  // Nobody knows any more that they are the claim's.
  const auto state = current_state();
  for (const auto& held : record.devices) {
    if (!held.partition || !held.partition->made) continue;
    for (const auto& instance : state.instances) {
      if (instance.placement != held.partition->partition.placement) continue;
      if (instance.compute.empty()) {
        gpu_.on_gpu([&](sim::Gpu& gpu) { sim::destroy_gpu_instance(gpu, instance.id); });
      } else {
        foreign_.insert(instance.compute[0].uuid);
      }
    }
  }
  auto& claim = claims_.at(record.uid);
  claim.prepared.reset();
  claim.uuids.clear();
  restart(false);
}

void ClaimWorld::toggle_foreign() {
  const auto state = current_state();
  if (!foreign_.empty() && chance(2)) {
    for (const auto& instance : state.instances) {
      if (instance.compute.empty() || holder_) continue;
      const auto uuid = instance.compute[0].uuid;
      const bool is_used = std::ranges::any_of(controller_->records(), [&](const auto& entry) {
        return std::ranges::any_of(entry.second.devices, [&](const auto& held) {
          return held.partition && held.partition->partition.placement == instance.placement;
        });
      });
      if (is_used || !foreign_.contains(uuid)) continue;
      gpu_.on_gpu([&](sim::Gpu& gpu) {
        sim::destroy_compute_instance(gpu, *sim::find_gpu_instance(gpu, instance.id), instance.compute[0].id);
        sim::destroy_gpu_instance(gpu, instance.id);
      });
      foreign_.erase(uuid);
      return;
    }
    return;
  }
  const dra::Partition made{"1g.10gb", 19, {static_cast<unsigned>(any(7)), 1}};
  const bool is_wanted = std::ranges::any_of(controller_->records(), [&](const auto& entry) {
    return std::ranges::any_of(entry.second.devices, [&](const auto& held) {
      return held.partition && held.partition->made && held.partition->partition.overlaps(made);
    });
  });
  if (is_wanted) return;
  ++counts["instances of others"];
  gpu_.on_gpu([&](sim::Gpu& gpu) { mig::states::add_instance(gpu, made.profile, made.placement.start); });
  for (const auto& instance : current_state().instances) {
    if (instance.placement == made.placement && !instance.compute.empty() &&
        std::ranges::none_of(state.instances, [&](const auto& one) { return one.id == instance.id; }))
      foreign_.insert(instance.compute[0].uuid);
  }
}

void ClaimWorld::toggle_holder() {
  if (holder_) {
    gpu_.on_gpu([&](sim::Gpu& gpu) { sim::remove_process(gpu, *holder_); });
    holder_.reset();
    return;
  }
  const auto state = current_state();
  if (state.instances.empty()) return;
  const auto& instance = state.instances[any(state.instances.size())];
  if (instance.compute.empty()) return;
  ++counts["holding processes"];
  gpu_.add_holder(kHoldingProcess, instance.id, instance.compute[0].id);
  holder_ = kHoldingProcess;
}

// Of a GPU that the device plugin offers.
void ClaimWorld::toggle_plugin_pod() {
  const auto& gpu = gpus_[any(gpus_.size())].uuid;
  if (plugin_pods_.erase(gpu) != 0) return;
  if (partition::offer_of(offers_.offers(), gpu).stage != partition::OfferStage::kDevicePlugin) return;
  ++counts["Pods of the device plugin"];
  plugin_pods_[gpu] = "Pod default/p";
}

// `step`: below kClaimChanges.
void ClaimWorld::change_claims(std::size_t step) {
  switch (step) {
    case 0:
    case 1:
    case 2:
    case 3:
      schedule_claim();
      break;
    case 4:
    case 5:
      if (auto* claim = any_claim()) prepare({claim});
      break;
    case 6:
      if (!claims_.empty()) prepare({any_claim(), any_claim(), any_claim()});
      break;
    case 7:
    case 8:
      if (auto* claim = any_claim()) unprepare({claim});
      break;
    case 9:
    case 10:  // as it is usual
      if (auto* claim = any_claim(); claim != nullptr && claim->exists && api_up_) {
        unprepare({claim});
        delete_claim(*claim);
      }
      break;
    default:  // a Pod that is deleted by force
      if (auto* claim = any_claim(); claim != nullptr && api_up_) delete_claim(*claim);
      break;
  }
}

// `step`: below kNodeChanges.
void ClaimWorld::change_node(std::size_t step) {
  switch (step) {
    case 0: {
      const auto& gpu = gpus_[any(gpus_.size())].uuid;
      ++counts["faults"];
      if (chance(2))
        taints_[gpu] = {
            {std::string(chance(2) ? dra::kLostTaint : dra::kXidTaint), "1", dra::TaintEffect::kNoSchedule}};
      else
        taints_.erase(gpu);
      break;
    }
    case 1: {
      auto& side = sides_[gpus_[any(gpus_.size())].uuid];
      side =
          side == config::OfferSide::kClaims ? config::OfferSide::kDevicePlugin : config::OfferSide::kClaims;
      if (chance(4)) shares_ = !shares_;
      ++counts["moves"];
      offers_.set_wanted(sides_, true, loop_.now());
      break;
    }
    case 2:
      api_up_ = !api_up_;
      break;
    case 3:
      if (!slices_.empty() && api_up_)
        slices_.erase(std::next(slices_.begin(), static_cast<std::ptrdiff_t>(any(slices_.size()))));
      break;
    case 4:
      restart(true);
      break;
    case 5:
      if (chance(2))
        restart_unchanged();
      else
        damage_record();
      break;
    case 6:
      partitions_->fault_at = any(6);
      partitions_->how = static_cast<mig::FailingHardware::How>(any(4));
      break;
    case 7:
      chance(2) ? toggle_foreign() : toggle_holder();
      break;
    case 8:
      if (chance(2)) {
        toggle_plugin_pod();
      } else {
        partitions_->driver_answers = !partitions_->driver_answers;
        partitions_->restart_calls();
        controller_->restart_partitions();
      }
      break;
    default: {
      const std::string directory = chance(2) ? "cdi" : "claims";
      block(directory, !blocked_.contains(directory));
      break;
    }
  }
}

void ClaimWorld::random_step() {
  // Nothing stays away for long.
  api_up_ |= chance(4);
  if (chance(4)) {
    for (const auto& directory : std::set<std::string>(blocked_)) block(directory, false);
  }
  partitions_->driver_answers |= chance(3);
  const auto step = any(kClaimChanges + kNodeChanges);
  if (step < kClaimChanges)
    change_claims(step);
  else
    change_node(step - kClaimChanges);
  // What follows comes in any order, or only in part.
  if (chance(3)) read_gpus();
  if (chance(3)) {
    offers_.apply_reading(partition::PluginReading{
        .began = loop_.now(), .holders = plugin_pods_, .allocatable = {}, .node_behind = {}});
  }
  if (!chance(4)) update_devices();
  loop_.run_ready(chance(3) ? any(4) : 100'000);
  if (!chance(4)) publish();
  if (chance(2)) {
    read_gpus();
    update_devices();
    loop_.advance(std::chrono::milliseconds(any(3000)));
  }
  if (partitions_->is_dead) restart(false);
}

// Nothing is written again by a process that finds everything as it was.
void ClaimWorld::restart_unchanged() {
  using enum partition::OfferStage;
  if (!api_up_ || !blocked_.empty() || !partitions_->driver_answers) return;
  settle();
  const bool moves = std::ranges::any_of(offers_.offers(), [](const auto& entry) {
    return entry.second.stage != kClaims && entry.second.stage != kDevicePlugin;
  });
  const bool is_ending = std::ranges::any_of(controller_->records(), [&](const auto& entry) {
    return entry.second.ending || !claims_.at(entry.first).prepared;
  });
  if (moves || is_ending || partitions_->is_dead || controller_->counts().preparing != 0) return;
  ++counts["unchanged restarts"];
  const auto before = files();
  const auto slices = slice_writes_;
  start();
  settle();
  std::vector<Claim*> prepared;
  for (auto& [uid, claim] : claims_) {
    if (claim.prepared) prepared.push_back(&claim);
  }
  if (!prepared.empty()) prepare(prepared);
  settle();
  EXPECT_EQ(files(), before);
  EXPECT_EQ(slice_writes_, slices);
}

void ClaimWorld::end_everything() {
  api_up_ = true;
  taints_.clear();
  plugin_pods_.clear();
  if (holder_) toggle_holder();
  restart(false);
  std::vector<Claim*> all;
  for (auto& [uid, claim] : claims_) all.push_back(&claim);
  unprepare(all);
  for (auto* claim : all) delete_claim(*claim);
  for (Duration waited{}; waited < kAnswered + 15s; waited += 6s) {
    settle();
    loop_.advance(6s);
  }
  settle();
}

}  // namespace gpulet::seeded
