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

constexpr Duration kFirstPublished = 5s;

const dra::PoolName kPool{"gpu.nvidia.com", "node-1", "node-1"};

mig::FixedPlace place_of(const dra::Partition& partition) {
  return {partition.profile_id, partition.placement};
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
  // No Pod of this world demands anything.
  void read_pod(const PodRef&, std::function<void(Result<std::optional<std::string>>)> done) override {
    world.loop_.post([done = std::move(done), alive = world.process_->watch()] {
      if (alive) done(std::nullopt);
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
    sim::remove_process(one, kHoldingProcess);
    for (auto& instance : one.mig.instances) instance = {};
  });
  read_gpus();
  for (unsigned i = 0; i < 5; ++i) {
    gpus_.push_back(i == kStaticGpu ? dra::test::make_partitioned_gpu(i, 3) : dra::test::make_gpu(i));
    if (i == kDynamicGpu) {
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
      auto mig = dra::test::make_mig(gpus[kDynamicGpu], 0, profile->name, profile->id,
                                     instance.placement.start, instance.placement.size);
      mig.uuid = compute.uuid;
      gpus[kDynamicGpu].mig_devices.push_back(mig);
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
  input.dynamic.emplace(gpus[kDynamicGpu].uuid, std::move(dynamic));
  const auto& shared = gpus[kSharedGpu].uuid;
  if (shares_ && dra::find_holder(controller_->records(), shared, "", true) == nullptr)
    input.shares[shared] = {config::ShareLimit::kMemory};
  devices.pool = dra::make_device_pool(input);

  std::vector<dra::ResourceSlice> shown;
  for (const auto& [name, slice] : shown_) shown.push_back(slice);
  const auto apply_offers = [&] {
    pool_ = dra::select_devices(devices.pool, [&](const DeviceUuid& gpu) {
      return partition::offer_of(offers_.offers(), gpu).stage == partition::OfferStage::kClaims;
    });
  };
  apply_offers();
  partition::ClaimReading reading{
      .published = std::nullopt,
      .holders = agent::claim_holders(controller_->records(), *dra::test::make_snapshot(gpus)),
      .seen = dra::shown_gpus(shown)};
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

}  // namespace gpulet::seeded
