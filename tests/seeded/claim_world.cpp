#include "tests/seeded/claim_world.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "agent/dra/offer_readings.h"
#include "base/file.h"
#include "cdi/spec.h"
#include "dra/device_pool.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"
#include "mig/fixed_instance.h"
#include "mig/test_states.h"

namespace gpulet::seeded {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using dra::ClaimRecord;
using nlohmann::json;

namespace {

constexpr std::size_t kMaxClaims = 12;  // at the same time
constexpr Duration kFirstPublished = 5s, kAnswered = 45s;
constexpr std::uint64_t kShare = mebibytes(20'000).value;
constexpr unsigned kProcess = 4711;
constexpr std::size_t kDynamic = 0, kStatic = 1, kShared = 2;  // GPUs; the others are whole

const dra::PoolName kPool{"gpu.nvidia.com", "node-1", "node-1"};

mig::FixedPlace place_of(const dra::Partition& partition) {
  return {partition.profile_id, partition.placement};
}

bool keeps_off(const dra::Device& device) {
  return std::ranges::any_of(device.taints,
                             [](const auto& taint) { return taint.effect != dra::TaintEffect::kNone; });
}

}  // namespace

template <class Answer>
void StormPartitions::run(std::function<Answer(mig::Hardware&)> work, std::function<void(Answer)> done) {
  loop_.post([this, alive = lifetime_.watch(), work = std::move(work), done = std::move(done),
              session = session_, asked = *session_] {
    if (!alive || is_dead || *session != asked) return;
    if (!driver_answers) return done(fail(Code::kUnavailable, "the driver is being initialised"));
    mig::FailingHardware hardware(gpu_.hardware(), fault_at - changes_, how, Code::kUnavailable);
    try {
      Answer answer = work(hardware);
      changes_ += hardware.change_calls();
      done(std::move(answer));
    } catch (const mig::FailingHardware::Killed&) {
      is_dead = true;
    }
  });
}

void StormPartitions::find_partition(const DeviceUuid&, const dra::Partition& partition,
                                     std::function<void(Result<DeviceUuid>)> done) {
  run<Result<DeviceUuid>>(
      [=](mig::Hardware& hardware) { return mig::find_fixed_instance(hardware, place_of(partition)); },
      std::move(done));
}

void StormPartitions::make_partition(const DeviceUuid&, const dra::Partition& partition, bool resumes,
                                     std::function<void(Result<DeviceUuid>)> done) {
  run<Result<DeviceUuid>>(
      [=](mig::Hardware& hardware) {
        return mig::make_fixed_instance(hardware, place_of(partition), resumes);
      },
      [this, done = std::move(done)](Result<DeviceUuid> made) {
        if (made) removed.erase(*made);
        done(std::move(made));
        changed();
      });
}

void StormPartitions::remove_partition(const DeviceUuid&, const dra::Partition& partition,
                                       const DeviceUuid& uuid, std::function<void(Status)> done) {
  run<Status>(
      [=](mig::Hardware& hardware) {
        return mig::remove_fixed_instance(hardware, place_of(partition), uuid);
      },
      [this, uuid, done = std::move(done)](Status gone) {
        if (gone && !uuid.empty()) removed.insert(uuid);
        const bool is_gone = gone.has_value();
        done(std::move(gone));
        if (is_gone) changed();
      });
}

struct ClaimWorld::Source final : dra::ClaimSource {
  explicit Source(ClaimWorld& world) : world(world) {}
  void read_claim(const dra::ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    world.loop_.post([this, claim, done = std::move(done), alive = world.process_->watch()] {
      if (!alive) return;
      if (!world.api_up_) return done(fail(Code::kUnavailable, "connection refused"));
      for (const auto& [uid, known] : world.claims_) {
        if (known.exists && known.name == claim.name) return done(known.object.dump());
      }
      done(std::nullopt);
    });
  }
  ClaimWorld& world;
};

struct ClaimWorld::NoDaemons final : dra::ClaimDaemons {
  void set_daemons(std::vector<mps::DaemonSpec>) override {}
  Status check_daemon(const std::string&) const override { return {}; }
  std::string find_holder(const DeviceUuid&) const override { return ""; }
  std::string mps_root() const override { return "/run/nvidia/mps"; }
};

ClaimWorld::ClaimWorld(std::uint64_t seed, mig::SimHardware& gpu) : random_(seed * 7919 + 1), gpu_(gpu) {
  const fs::path memory = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string name = (memory / "claim_storm.XXXXXX").string();
  directory_ = ::mkdtemp(name.data());
  gpu_.on_gpu([](sim::Gpu& one) {
    sim::remove_process(one, kProcess);
    for (auto& instance : one.mig.instances) instance = {};
  });
  read_gpus();
  for (unsigned i = 0; i < 5; ++i) {
    gpus_.push_back(i == kStatic ? dra::test::make_partitioned_gpu(i, 3) : dra::test::make_gpu(i));
    if (i == kDynamic) {
      gpus_[i].uuid = seen_.uuid;
      gpus_[i].mig_capable = gpus_[i].mig_enabled = true;
    }
    sides_[gpus_[i].uuid] = chance(4) ? config::OfferSide::kDevicePlugin : config::OfferSide::kClaims;
  }
  source_ = std::make_unique<Source>(*this);
  daemons_ = std::make_unique<NoDaemons>();
  start();
}

mig::State ClaimWorld::current_state() const {
  return gpu_.on_gpu([](sim::Gpu& gpu) { return mig::states::state_of(gpu); });
}

ClaimWorld::~ClaimWorld() {
  controller_.reset();
  partitions_.reset();
  for (const auto& directory : std::set<std::string>(blocked_)) block(directory, false);
  fs::remove_all(directory_);
}

// A new process; what it knows of the slices comes with the first answer of the API server.
void ClaimWorld::start() {
  controller_.reset();
  partitions_ = std::make_unique<StormPartitions>(loop_, gpu_);
  partitions_->changed = [this] { update_devices(); };
  process_.emplace();
  offers_ = {};
  shown_.clear();
  synced_ = false;
  publishes_ = false;
  pool_ = {};
  open_calls_ = 0;
  started_ = loop_.now();
  offers_.set_wanted(sides_, true, loop_.now());
  read_gpus();
  auto started = dra::ClaimController::start_controller(loop_, *source_, *daemons_, *partitions_,
                                                        {.pool_name = "node-1",
                                                         .record_directory = directory_ + "/claims",
                                                         .cdi_directory = directory_ + "/cdi"});
  ASSERT_TRUE(started) << started.error().full_message();
  controller_ = std::move(*started);
  controller_->end_orphans();
  update_devices();
}

// As by `kill`, between any two tasks of the loop, and so that the next process finds its directories.
void ClaimWorld::restart(bool runs_tasks) {
  ++counts["restarts"];
  if (runs_tasks) loop_.run_ready(any(6));
  for (const auto& directory : std::set<std::string>(blocked_)) block(directory, false);
  start();
}

void ClaimWorld::block(const std::string& directory, bool blocked) {
  const fs::path path = directory_ + "/" + directory, away = path.string() + ".away";
  if (blocked && fs::exists(path)) {
    fs::rename(path, away);
    ASSERT_TRUE(write_file_atomic(path, ""));
    blocked_.insert(directory);
  } else if (!blocked && blocked_.erase(directory) != 0) {
    fs::remove(path);
    fs::rename(away, path);
  }
}

// As ClaimServer::update_devices() of the agent does.
void ClaimWorld::update_devices() {
  if (!controller_) return;
  auto gpus = gpus_;
  dra::NodeDevices devices;
  const auto add_base = [&](const DeviceUuid& uuid) {
    devices.base.devices.push_back({.name = uuid.str(), .edits = {.env = {"X=" + uuid.str()}}});
  };
  for (const auto& instance : seen_.instances) {
    const auto* profile = find_profile(seen_, instance.profile);
    for (const auto& compute : instance.compute) {
      auto mig = dra::test::make_mig(gpus[kDynamic], 0, profile->name, profile->id, instance.placement.start,
                                     instance.placement.size);
      mig.uuid = compute.uuid;
      gpus[kDynamic].mig_devices.push_back(mig);
    }
  }
  for (const auto& gpu : gpus) {
    add_base(gpu.uuid);
    for (const auto& mig : gpu.mig_devices) add_base(mig.uuid);
  }
  dra::PoolInput input{.snapshot = dra::test::make_snapshot(gpus), .taints = taints_};
  dra::DynamicGpu dynamic{.allowed = {"1g.10gb", "3g.40gb"},
                          .profiles = seen_.profiles,
                          .made = {},
                          .removed = partitions_->removed,
                          .held = {}};
  if (const auto held = controller_->held_partitions(); !held.empty()) dynamic.held = held.begin()->second;
  for (const auto& [uid, record] : controller_->records()) {
    for (const auto& held : record.devices) {
      if (held.partition && held.partition->made) dynamic.made.insert(held.partition->partition);
    }
  }
  input.dynamic.emplace(gpus[kDynamic].uuid, std::move(dynamic));
  const auto& shared = gpus[kShared].uuid;
  if (shares_ && dra::find_holder(controller_->records(), shared, "", true) == nullptr)
    input.shares[shared] = {config::ShareLimit::kMemory};
  devices.pool = dra::make_device_pool(input);

  std::vector<dra::ResourceSlice> shown;
  for (const auto& [name, slice] : shown_) shown.push_back(slice);
  const auto apply_offers = [&] {
    pool_ = {};
    for (const auto& offered : devices.pool.devices) {
      if (partition::offer_of(offers_.offers(), offered.gpu_uuid).stage == partition::OfferStage::kClaims)
        pool_.devices.push_back(offered);
    }
    pool_.counter_sets = dra::used_counter_sets(devices.pool, pool_.devices);
  };
  apply_offers();
  partition::ClaimReading reading{
      .published = std::nullopt,
      .holders = agent::claim_holders(controller_->records(), *dra::test::make_snapshot(gpus))};
  const bool is_settled = synced_ && (!publishes_ || is_shown(shown));
  if (is_settled) reading.published = dra::shown_gpus(shown);
  if (offers_.apply_reading(reading, loop_.now())) apply_offers();
  devices.shown_uuids = dra::shown_uuids(shown);
  devices.withheld = agent::withheld_gpus(devices.pool, offers_.offers());
  devices.gates = {true, true};
  controller_->set_devices(
      partitions_->driver_answers ? std::make_shared<const dra::NodeDevices>(std::move(devices)) : nullptr);
}

bool ClaimWorld::is_shown(const std::vector<dra::ResourceSlice>& shown) const {
  std::vector<dra::Device> wanted;
  for (const auto& offered : pool_.devices) wanted.push_back(offered.device);
  return plan_slices(kPool, wanted, shown, pool_.counter_sets).empty();
}

// Writes some of what differs.
void ClaimWorld::publish() {
  if (!api_up_) return;
  if (!std::exchange(synced_, true)) update_devices();
  shown_ = slices_;
  const bool is_late = loop_.now() - started_ >= kFirstPublished;
  if (!publishes_ && !is_late && offers_.has_stage(partition::OfferStage::kEnteringClaims)) return;
  publishes_ = true;
  std::vector<dra::ResourceSlice> shown;
  std::vector<dra::Device> wanted;
  for (const auto& [name, slice] : shown_) shown.push_back(slice);
  for (const auto& offered : pool_.devices) wanted.push_back(offered.device);
  const auto plan = plan_slices(kPool, wanted, shown, pool_.counter_sets);
  std::size_t left = chance(4) ? any(3) : 1000;
  const auto write = [&](const dra::ResourceSlice& slice, bool deletes) {
    if (left == 0) return;
    --left;
    ++slice_writes_;
    if (deletes) {
      slices_.erase(slice.name);
      return;
    }
    auto& written = slices_.insert_or_assign(slice.name, slice).first->second;
    written.resource_version = std::to_string(slice_writes_);
  };
  for (const auto& slice : plan.deletes) write(slice, true);
  for (const auto& slice : plan.updates) write(slice, false);
  for (const auto& slice : plan.creates) write(slice, false);
  shown_ = slices_;
}

void ClaimWorld::settle() {
  for (int round = 0; round < 3; ++round) {
    read_gpus();
    const partition::PluginReading reading{
        .began = loop_.now(), .holders = plugin_pods_, .allocatable = {}, .node_behind = {}};
    offers_.apply_reading(reading);
    update_devices();
    publish();
    loop_.run_ready();
  }
}

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
  ASSERT_TRUE(write_file_atomic(path, text->substr(0, any(text->size()))));
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
  gpu_.add_holder(kProcess, instance.id, instance.compute[0].id);
  holder_ = kProcess;
}

// Of a GPU that the device plugin offers.
void ClaimWorld::toggle_plugin_pod() {
  const auto& gpu = gpus_[any(gpus_.size())].uuid;
  if (plugin_pods_.erase(gpu) != 0) return;
  if (partition::offer_of(offers_.offers(), gpu).stage != partition::OfferStage::kDevicePlugin) return;
  ++counts["Pods of the device plugin"];
  plugin_pods_[gpu] = "Pod default/p";
}

void ClaimWorld::random_step() {
  // Nothing stays away for long.
  api_up_ |= chance(4);
  if (chance(4)) {
    for (const auto& directory : std::set<std::string>(blocked_)) block(directory, false);
  }
  partitions_->driver_answers |= chance(3);
  switch (any(22)) {
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
    case 11:  // a Pod that is deleted by force
      if (auto* claim = any_claim(); claim != nullptr && api_up_) delete_claim(*claim);
      break;
    case 12: {
      const auto& gpu = gpus_[any(gpus_.size())].uuid;
      ++counts["faults"];
      if (chance(2))
        taints_[gpu] = {
            {std::string(chance(2) ? dra::kLostTaint : dra::kXidTaint), "1", dra::TaintEffect::kNoSchedule}};
      else
        taints_.erase(gpu);
      break;
    }
    case 13: {
      auto& side = sides_[gpus_[any(gpus_.size())].uuid];
      side =
          side == config::OfferSide::kClaims ? config::OfferSide::kDevicePlugin : config::OfferSide::kClaims;
      if (chance(4)) shares_ = !shares_;
      ++counts["moves"];
      offers_.set_wanted(sides_, true, loop_.now());
      break;
    }
    case 14:
      api_up_ = !api_up_;
      break;
    case 15:
      if (!slices_.empty() && api_up_)
        slices_.erase(std::next(slices_.begin(), static_cast<std::ptrdiff_t>(any(slices_.size()))));
      break;
    case 16:
      restart(true);
      break;
    case 17:
      if (chance(2))
        restart_unchanged();
      else
        damage_record();
      break;
    case 18:
      partitions_->fault_at = any(6);
      partitions_->how = static_cast<mig::FailingHardware::How>(any(4));
      break;
    case 19:
      chance(2) ? toggle_foreign() : toggle_holder();
      break;
    case 20:
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
    EXPECT_LE(sum, gpus_[kShared].memory.value);
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
