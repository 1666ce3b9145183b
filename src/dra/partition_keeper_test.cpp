// Claims of MIG devices that are made for them, on a simulated GPU: made, adopted, removed, and interrupted
// at every step.
#include "dra/partition_keeper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "dra/claim_controller.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"
#include "mig/fixed_instance.h"
#include "mig/test_hardware.h"

namespace gpulet::dra {
namespace {

using namespace std::chrono_literals;
using namespace test;
using mig::FailingHardware;
using mig::SimHardware;
using nlohmann::json;

class StoredClaims final : public ClaimSource {
 public:
  explicit StoredClaims(Loop& loop) : loop_(loop) {}
  void read_claim(const ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    loop_.post([this, name = claim.name, done = std::move(done)] {
      const auto found = claims.find(name);
      done(found == claims.end() ? std::nullopt : std::optional(found->second.dump()));
    });
  }
  void read_pod(const PodRef&, std::function<void(Result<std::optional<std::string>>)>) override {
    ADD_FAILURE();
  }
  std::map<std::string, json> claims;

 private:
  Loop& loop_;
};

class NoDaemons final : public ClaimDaemons {
 public:
  void set_daemons(std::vector<mps::DaemonSpec>) override {}
  Status check_daemon(const std::string&) const override { return {}; }
  std::string find_holder(const DeviceUuid&) const override { return ""; }
  std::string mps_root() const override { return "/run/nvidia/mps"; }
};

// Calls the simulated driver from the loop. `fault_at` is the changing call, counted over all of them, at
// which the process dies or the driver fails.
class SimPartitions final : public ClaimPartitions {
 public:
  SimPartitions(Loop& loop, SimHardware& sim_gpu) : loop_(loop), sim_gpu_(sim_gpu) {}

  void find_partition(const DeviceUuid&, const Partition& partition,
                      std::function<void(Result<DeviceUuid>)> done) override {
    run<Result<DeviceUuid>>(
        [=](mig::Hardware& hardware) { return mig::find_fixed_instance(hardware, place(partition)); },
        std::move(done));
  }
  void make_partition(const DeviceUuid&, const Partition& partition, bool resumes,
                      std::function<void(Result<DeviceUuid>)> done) override {
    run<Result<DeviceUuid>>(
        [=](mig::Hardware& hardware) {
          return mig::make_fixed_instance(hardware, place(partition), resumes);
        },
        std::move(done));
  }
  void remove_partition(const DeviceUuid&, const Partition& partition, const DeviceUuid& uuid,
                        std::function<void(Status)> done) override {
    run<Status>(
        [=](mig::Hardware& hardware) { return mig::remove_fixed_instance(hardware, place(partition), uuid); },
        std::move(done));
  }

  std::size_t fault_at = mig::kNever;
  FailingHardware::How how = FailingHardware::How::kDieBefore;
  // The process is killed with the answer of that call under way, counted over all of them.
  std::size_t lost_answer = mig::kNever;
  bool is_dead = false;
  std::size_t calls = 0, changes = 0;

 private:
  static mig::FixedPlace place(const Partition& partition) {
    return {partition.profile_id, partition.placement};
  }
  template <class Answer>
  void run(std::function<Answer(mig::Hardware&)> work, std::function<void(Answer)> done) {
    loop_.post([this, work = std::move(work), done = std::move(done)] {
      if (is_dead) return;
      FailingHardware hardware(sim_gpu_.hardware(), fault_at - changes, how, Code::kUnavailable);
      try {
        const Answer answer = work(hardware);
        changes += hardware.change_calls();
        is_dead |= calls++ == lost_answer;
        if (!is_dead) done(answer);
      } catch (const FailingHardware::Killed&) {
        is_dead = true;
      }
    });
  }

  Loop& loop_;
  SimHardware& sim_gpu_;
};

class PartitionKeeperTest : public ::testing::Test {
 protected:
  PartitionKeeperTest() {
    std::string name = (std::filesystem::temp_directory_path() / "partition_keeper.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    begin_node();
  }
  ~PartitionKeeperTest() override {
    controller_.reset();
    std::filesystem::remove_all(directory_);
  }

  void begin_node() {
    controller_.reset();
    std::filesystem::remove_all(directory_ + "/claims");
    std::filesystem::remove_all(directory_ + "/cdi");
    sim_gpu_ = std::make_unique<SimHardware>("hgx-h100");
    partitions_ = std::make_unique<SimPartitions>(loop_, *sim_gpu_);
    source_.claims.clear();
    add_claim("a", "gpu-0-mig-1g10gb-19-0");
    add_claim("b", "gpu-0-mig-3g40gb-9-4");
    add_claim("over", "gpu-0-mig-3g40gb-9-0");
    start();
  }
  // A new process.
  void start() {
    controller_.reset();
    partitions_ = std::make_unique<SimPartitions>(loop_, *sim_gpu_);
    auto started = ClaimController::start_controller(loop_, source_, daemons_, *partitions_,
                                                     {.pool_name = "node-1",
                                                      .record_directory = directory_ + "/claims",
                                                      .cdi_directory = directory_ + "/cdi"});
    ASSERT_TRUE(started) << started.error().full_message();
    controller_ = std::move(*started);
    settle();
  }
  void add_claim(const std::string& name, const std::string& device) {
    source_.claims[name] = claim_json({result_json(device)}, {}, "uid-" + name, name);
  }

  // As the next snapshot has it.
  std::shared_ptr<const NodeDevices> devices() const {
    const auto state = sim_gpu_->current_state();
    auto made = std::make_shared<NodeDevices>();
    auto gpu = make_gpu(0);
    gpu.uuid = state.uuid;
    gpu.mig_capable = gpu.mig_enabled = true;
    DynamicGpu dynamic{.profiles = state.profiles};
    for (const auto& profile : state.profiles) dynamic.allowed.push_back(profile.name);
    for (const auto& instance : state.instances) {
      const auto* profile = find_profile(state, instance.profile);
      for (const auto& compute : instance.compute) {
        auto device =
            make_mig(gpu, 0, profile->name, profile->id, instance.placement.start, instance.placement.size);
        device.uuid = compute.uuid;
        gpu.mig_devices.push_back(device);
        made->base.devices.push_back(
            {.name = compute.uuid.str(), .edits = {.env = {"X=" + compute.uuid.str()}}});
      }
    }
    for (const auto& [uid, record] : controller_->records()) {
      for (const auto& held : record.devices) {
        if (held.partition && held.partition->made) dynamic.made.insert(held.partition->partition);
      }
    }
    PoolInput input{.snapshot = make_snapshot({gpu})};
    input.dynamic.emplace(gpu.uuid, dynamic);
    made->pool = make_device_pool(input);
    return made;
  }
  // Runs what is ready, with snapshots in between.
  void settle() {
    for (int round = 0; round < 6 && !partitions_->is_dead; ++round) {
      controller_->set_devices(devices());
      loop_.run_ready();
    }
  }
  void wait(Duration time) {
    for (Duration waited{}; waited < time && !partitions_->is_dead; waited += 1s) {
      loop_.advance(1s);
      settle();
    }
  }

  using Answer = std::shared_ptr<std::optional<Result<PreparedClaim>>>;
  Answer prepare(const std::string& name) {
    auto answer = std::make_shared<std::optional<Result<PreparedClaim>>>();
    controller_->prepare_claims({{"team", name, "uid-" + name}},
                                [answer](auto results) { *answer = std::move(results.begin()->second); });
    settle();
    return answer;
  }
  static std::string text_of(const Answer& answer) {
    if (!*answer) return "waits";
    return **answer ? "prepared" : (**answer).error().full_message();
  }
  void unprepare(const std::string& name) {
    const auto ended = controller_->unprepare_claims({{"team", name, "uid-" + name}});
    EXPECT_TRUE(ended.begin()->second) << ended.begin()->second.error().full_message();
    settle();
  }
  // "1g.10gb at 0; 3g.40gb at 4-7", each with its device.
  std::string instances() const {
    const auto state = sim_gpu_->current_state();
    std::string text;
    for (const auto& instance : state.instances) {
      text += (text.empty() ? "" : "; ") + find_profile(state, instance.profile)->name + " " +
              placement_text(instance.placement);
      if (instance.compute.size() != 1) text += " without a device";
    }
    return text;
  }
  void add_foreign(const std::string& profile, unsigned start) {
    sim_gpu_->on_gpu(
        [&](sim::Gpu& gpu) { ASSERT_NE(mig::states::add_instance(gpu, profile, start), nullptr); });
    settle();
  }
  bool has_files(const std::string& name) const {
    return std::filesystem::exists(directory_ + "/claims/uid-" + name + ".json") ||
           std::filesystem::exists(spec_path(name));
  }
  std::string spec_path(const std::string& name) const {
    return directory_ + "/cdi/k8s.gpu.nvidia.com-claim_uid-" + name + ".json";
  }

  ManualLoop loop_;
  StoredClaims source_{loop_};
  NoDaemons daemons_;
  std::string directory_;
  std::unique_ptr<SimHardware> sim_gpu_;
  std::unique_ptr<SimPartitions> partitions_;
  std::unique_ptr<ClaimController> controller_;
};

TEST_F(PartitionKeeperTest, IsMadeForTheClaimAndRemovedAfterIt) {
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  EXPECT_EQ(instances(), "1g.10gb at 0");
  const auto uuid = sim_gpu_->current_state().instances[0].compute[0].uuid.str();
  const auto spec = read_file(spec_path("a"));
  ASSERT_TRUE(spec);
  EXPECT_NE(spec->find("X=" + uuid), std::string::npos) << *spec;
  EXPECT_EQ(text_of(prepare("b")), "prepared") << "beside it";
  EXPECT_EQ(instances(), "1g.10gb at 0; 3g.40gb at 4-7");
  EXPECT_EQ(text_of(prepare("a")), "prepared") << "again";
  EXPECT_EQ(sim_gpu_->current_state().instances[0].compute[0].uuid.str(), uuid);
  unprepare("a");
  EXPECT_EQ(instances(), "3g.40gb at 4-7");
  EXPECT_FALSE(has_files("a"));
  unprepare("a");
  unprepare("b");
  EXPECT_EQ(instances(), "");
  EXPECT_TRUE(controller_->records().empty());
}

TEST_F(PartitionKeeperTest, NothingIsWrittenAgainByTheNextProcess) {
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  const auto written = [&](const std::string& path) {
    struct stat status{};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_ino;
  };
  const std::string record = directory_ + "/claims/uid-a.json";
  const auto before = std::pair(written(record), written(spec_path("a")));
  start();
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  EXPECT_EQ(std::pair(written(record), written(spec_path("a"))), before);
}

TEST_F(PartitionKeeperTest, OneThatOverlapsWaitsAndNamesTheHolder) {
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  auto over = prepare("over");
  EXPECT_EQ(text_of(over), "waits");
  wait(41s);
  EXPECT_EQ(text_of(over),
            "claim team/over: device \"gpu-0-mig-3g40gb-9-0\" is still held by the claim team/a (uid uid-a)");
  over = prepare("over");
  unprepare("a");
  EXPECT_EQ(text_of(over), "prepared");
  EXPECT_EQ(instances(), "3g.40gb at 0-3");
}

TEST_F(PartitionKeeperTest, WhatAnotherProgramMadeIsUsedAndStays) {
  add_foreign("1g.10gb", 0);
  add_foreign("2g.20gb", 4);
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  unprepare("a");
  EXPECT_FALSE(has_files("a"));
  const auto refused = prepare("b");
  wait(41s);
  EXPECT_EQ(text_of(refused),
            "claim team/b: device \"gpu-0-mig-3g40gb-9-4\" is not available on this node now: the MIG device "
            "2g.20gb at 4-5 of another program is in its place");
  EXPECT_EQ(instances(), "1g.10gb at 0; 2g.20gb at 4-5");
  EXPECT_FALSE(has_files("b"));
}

TEST_F(PartitionKeeperTest, WhatIsHeldIsRemovedLater) {
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  const auto state = sim_gpu_->current_state();
  sim_gpu_->add_holder(4711, state.instances[0].id, state.instances[0].compute[0].id);
  EXPECT_TRUE(controller_->held_partitions().empty());
  unprepare("a");
  EXPECT_EQ(instances(), "1g.10gb at 0");
  const std::map<DeviceUuid, std::set<Partition>> held = {{state.uuid, {{"1g.10gb", 19, {0, 1}}}}};
  EXPECT_EQ(controller_->held_partitions(), held);
  const auto over = prepare("over");
  EXPECT_EQ(text_of(over), "waits");
  start();  // a restart knows it too
  EXPECT_EQ(instances(), "1g.10gb at 0");
  EXPECT_EQ(controller_->held_partitions(), held);
  sim_gpu_->on_gpu([](sim::Gpu& gpu) { sim::remove_process(gpu, 4711); });
  wait(6s);
  EXPECT_EQ(instances(), "");
  EXPECT_FALSE(has_files("a"));
  EXPECT_TRUE(controller_->held_partitions().empty());
}

TEST_F(PartitionKeeperTest, AClaimThatIsGoneLeavesNothing) {
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  EXPECT_EQ(text_of(prepare("b")), "prepared");
  source_.claims.erase("a");
  start();
  controller_->end_orphans();
  settle();
  EXPECT_EQ(instances(), "3g.40gb at 4-7");
  EXPECT_FALSE(has_files("a"));
}

TEST_F(PartitionKeeperTest, AFailureThatPassesIsWaitedFor) {
  partitions_->fault_at = 0;
  partitions_->how = FailingHardware::How::kFail;
  const auto answer = prepare("a");
  EXPECT_EQ(text_of(answer), "waits");
  partitions_->fault_at = mig::kNever;
  wait(2s);
  EXPECT_EQ(text_of(answer), "prepared");
  // A reset while the agent was away has removed it: it is made again.
  sim_gpu_->on_gpu([](sim::Gpu& gpu) {
    for (auto& instance : gpu.mig.instances) instance = {};
  });
  start();
  EXPECT_EQ(text_of(prepare("a")), "prepared");
  EXPECT_EQ(instances(), "1g.10gb at 0");
}

TEST_F(PartitionKeeperTest, ARefusalIsAnsweredAtOnce) {
  sim_gpu_->on_gpu([](sim::Gpu& gpu) { mig::states::set_mig_mode(gpu, false); });
  EXPECT_EQ(text_of(prepare("a")).find("claim team/a: GPU 0 (NVIDIA H100 80GB HBM3): MIG is off"), 0u);
  EXPECT_FALSE(has_files("a"));
}

TEST_F(PartitionKeeperTest, ADriverThatIsReplacedIsAskedAgain) {
  partitions_->is_dead = true;  // its calls are lost
  const auto answer = prepare("a");
  loop_.run_ready();
  partitions_->is_dead = false;
  wait(1s);
  EXPECT_EQ(text_of(answer), "waits");
  controller_->restart_partitions();
  wait(1s);
  EXPECT_EQ(text_of(answer), "prepared");
}

// Killed at every changing call of the driver, before and after it, and at every answer: a new process comes
// to the same end, whether the claim is prepared again or gone, and the other claim and the other program
// keep theirs.
TEST_F(PartitionKeeperTest, ConvergesFromEveryStep) {
  using How = FailingHardware::How;
  struct Death {
    std::size_t fault_at, lost_answer;
    How how;
  };
  std::vector<Death> deaths;
  for (std::size_t i = 0; i < 4; ++i) {
    deaths.push_back({i, mig::kNever, How::kDieBefore});
    deaths.push_back({i, mig::kNever, How::kDieAfter});
    deaths.push_back({mig::kNever, i, How::kDieAfter});
  }
  std::size_t died = 0;
  for (const auto& death : deaths) {
    for (const bool is_gone : {false, true}) {
      begin_node();
      add_foreign("1g.10gb", 2);
      ASSERT_EQ(text_of(prepare("b")), "prepared");
      start();
      partitions_->fault_at = death.fault_at;
      partitions_->lost_answer = death.lost_answer;
      partitions_->how = death.how;
      prepare("a");
      if (!partitions_->is_dead) unprepare("a");
      died += partitions_->is_dead ? 1 : 0;
      if (is_gone) source_.claims.erase("a");
      start();
      if (is_gone) {
        controller_->end_orphans();
        settle();
      } else {
        ASSERT_EQ(text_of(prepare("a")), "prepared");
        ASSERT_EQ(instances(), "1g.10gb at 0; 1g.10gb at 2; 3g.40gb at 4-7");
        unprepare("a");
      }
      ASSERT_EQ(instances(), "1g.10gb at 2; 3g.40gb at 4-7")
          << death.fault_at << " " << death.lost_answer << " " << is_gone;
      ASSERT_FALSE(has_files("a"));
      unprepare("b");
      ASSERT_EQ(instances(), "1g.10gb at 2");
    }
  }
  EXPECT_EQ(died, 2 * (4 + 4 + 3));  // two changes to make it, two to remove it; find, make, remove
}

}  // namespace
}  // namespace gpulet::dra
