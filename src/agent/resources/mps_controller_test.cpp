#include "agent/resources/mps_controller.h"

#include <gtest/gtest.h>
#include <linux/capability.h>

#include <filesystem>
#include <string>
#include <vector>

#include "agent/node/test_reporter.h"
#include "base/file.h"
#include "base/process.h"
#include "mps/plan.h"
#include "mps/shared_memory.h"
#include "nvml/test_sim_root.h"
#include "sim/mps/daemon.h"

namespace gpulet::agent {
namespace {

using mps::DaemonSpec;

class MpsControllerTest : public testing::Test {
 protected:
  MpsControllerTest() {
    std::filesystem::create_directories(root_.sim_root() + "/usr/bin");
    std::filesystem::copy_file(GPULET_SIM_MPS_CONTROL, root_.sim_root() + "/usr/bin/nvidia-cuda-mps-control");
    config_.flags.container_driver_root = root_.sim_root();
    config_.flags.mps_root = mps_root();
    config_.gpulet.mps.manage = true;
    driver_.open_driver([this](const Status& opened) {
      EXPECT_TRUE(opened);
      driver_.read_snapshot([this](Result<inventory::Snapshot> read) {
        for (const auto& gpu : read->gpus) gpus_.push_back(gpu.uuid);
      });
    });
    EXPECT_TRUE(wait_until([this] { return gpus_.size() == 4; }));
  }
  ~MpsControllerTest() override {
    for (const auto& directory : {mps::shm_directory(mps_root()), mps::claim_shm_directory(mps_root())})
      EXPECT_TRUE(mps::unmount_shm(directory));
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(mps_root(), error)) {
      const auto pid = sim::mps::daemon_pid(entry.path());
      if (entry.path().filename() == "pipe" && pid) ::kill(*pid, SIGKILL);
    }
  }

  bool wait_until(const std::function<bool()>& condition) {
    const Time end = loop_.now() + std::chrono::seconds(30);
    while (!condition()) {
      if (loop_.now() > end) return false;
      const Subscription timer = loop_.after(std::chrono::milliseconds(2), [this] { loop_.stop_loop(); });
      loop_.run_loop();
    }
    return true;
  }
  std::string mps_root() const { return root_.sim_root() + "/mps"; }
  pid_t pid_of(const std::string& daemon) const {
    return sim::mps::daemon_pid(mps::pipe_directory(mps_root(), daemon)).value_or(0);
  }
  DaemonSpec spec_of(const std::string& name, std::size_t gpu) const {
    DaemonSpec spec;
    spec.name = name;
    spec.resources = {ResourceName(name)};
    spec.devices = {{gpus_[gpu], static_cast<unsigned>(gpu), false, {}}};
    spec.visible_devices = {gpus_[gpu]};
    return spec;
  }
  bool serves(const std::string& claim) {
    return wait_until([&] { return controller_.check_claim_daemon(claim).has_value(); });
  }
  bool is_free(std::size_t gpu) {
    return wait_until([&] { return controller_.find_holder(gpus_[gpu]).empty(); });
  }
  unsigned mode(std::size_t gpu) { return root_.edit_machine()->gpus[gpu].compute_mode; }
  void set_claim_daemons(std::vector<DaemonSpec> specs) {
    controller_.set_claim_daemons(std::move(specs));
    controller_.apply_claim_daemons(config_);
  }

  nvml::SimRoot root_;
  EpollLoop loop_;
  RecordingReporter reporter_;
  NvmlDriver driver_{loop_, {.driver_root = root_.sim_root()}};
  std::vector<DeviceUuid> gpus_;
  config::Config config_;
  MpsController controller_{loop_, reporter_, [this] { return &driver_; }, [] {}};
  const std::string claim_ = mps::claim_daemon_name("uid-1", 0);
};

TEST_F(MpsControllerTest, DaemonsOfClaimsRunBesideThoseOfResources) {
  controller_.set_claim_daemons({spec_of(claim_, 1)});
  EXPECT_EQ(controller_.check_claim_daemon(claim_).error().code(), Code::kUnavailable);
  controller_.apply_daemons({spec_of("nvidia.com/gpu", 0)}, config_);
  ASSERT_TRUE(serves(claim_));
  EXPECT_EQ(controller_.find_holder(gpus_[0]), "nvidia.com/gpu");
  EXPECT_EQ(controller_.find_holder(gpus_[1]), claim_);
  EXPECT_TRUE(is_free(2));
  EXPECT_NE(mode(1), 0u);
  const auto pid = pid_of(claim_);
  // The plan of resources leaves it alone, and says nothing about it.
  const auto healths = controller_.apply_daemons({}, config_);
  EXPECT_TRUE(healths.empty());
  EXPECT_TRUE(controller_.problem().empty());
  ASSERT_TRUE(is_free(0));
  EXPECT_EQ(pid_of(claim_), pid);

  set_claim_daemons({});
  ASSERT_TRUE(is_free(1));
  EXPECT_EQ(mode(1), 0u);
  EXPECT_FALSE(std::filesystem::exists(mps_root() + "/" + claim_));
}

TEST_F(MpsControllerTest, ClaimsShareNoMemory) {
  namespace fs = std::filesystem;
  const auto shm = [this](const std::string& name) { return mps::client_shm_directory(mps_root(), name); };
  const auto is_mounted = [this] { return mps::shm_is_mounted(mps::claim_shm_directory(mps_root())); };
  const std::string other = mps::claim_daemon_name("uid-2", 0);
  set_claim_daemons({spec_of(claim_, 1), spec_of(other, 2)});
  for (const auto& name : {claim_, other}) {
    ASSERT_TRUE(serves(name));
    EXPECT_EQ(fs::status(shm(name)).permissions(), fs::perms::all | fs::perms::sticky_bit) << name;
    ASSERT_TRUE(write_file_atomic(shm(name) + "/segment", name));
  }
  EXPECT_EQ(is_mounted(), has_capability(CAP_SYS_ADMIN));
  EXPECT_FALSE(mps::shm_is_mounted(mps::shm_directory(mps_root()))) << "no resource is shared";
  set_claim_daemons({spec_of(other, 2)});
  ASSERT_TRUE(is_free(1));
  EXPECT_FALSE(fs::exists(shm(claim_)));
  EXPECT_EQ(read_file(shm(other) + "/segment").value_or(""), other);
  set_claim_daemons({});
  ASSERT_TRUE(is_free(2));
  controller_.apply_daemons({}, config_);
  EXPECT_FALSE(is_mounted());
}

TEST_F(MpsControllerTest, AnotherControllerTakesOverTheDaemonsOfClaims) {
  set_claim_daemons({spec_of(claim_, 1)});
  ASSERT_TRUE(serves(claim_));
  const auto pid = pid_of(claim_);
  MpsController next(loop_, reporter_, [this] { return &driver_; }, [] {});
  next.set_claim_daemons({spec_of(claim_, 1)});
  next.apply_daemons({spec_of("nvidia.com/gpu", 0)}, config_);
  ASSERT_TRUE(wait_until([&] { return next.check_claim_daemon(claim_).has_value(); }));
  EXPECT_EQ(pid_of(claim_), pid);
}

TEST_F(MpsControllerTest, ADeviceOfAClaimGetsNoDaemonOfAResource) {
  set_claim_daemons({spec_of(claim_, 0)});
  const auto healths = controller_.apply_daemons({spec_of("nvidia.com/gpu", 0)}, config_);
  EXPECT_EQ(healths.at("nvidia.com/gpu").reason,
            "a claim shares one of its devices by its own MPS control daemon");
  ASSERT_TRUE(serves(claim_));
  EXPECT_EQ(pid_of("nvidia.com/gpu"), 0);
  // It starts once the claim has ended.
  set_claim_daemons({});
  EXPECT_TRUE(wait_until([&] {
    return controller_.apply_daemons({spec_of("nvidia.com/gpu", 0)}, config_).at("nvidia.com/gpu").healthy;
  }));
}

TEST_F(MpsControllerTest, SaysWhyNoDaemonServesAClaim) {
  config_.gpulet.mps.manage = false;
  set_claim_daemons({spec_of(claim_, 0)});
  const auto error = [&] { return controller_.check_claim_daemon(claim_).error(); };
  EXPECT_EQ(error().code(), Code::kUnsupported);
  EXPECT_EQ(error().message(), "gpulet.mps.manage is false: no MPS control daemon is started for the claim");
  config_.gpulet.mps.manage = true;
  config_.flags.mps_root.clear();
  set_claim_daemons({spec_of(claim_, 0)});
  EXPECT_EQ(error().message(), "flags.mpsRoot is not set: the claim's MPS control daemon has no directory");
  EXPECT_TRUE(controller_.find_holder(gpus_[0]).empty());
}

// Before the driver is released.
TEST_F(MpsControllerTest, ADaemonThatAClaimsContainerUsesGoesOn) {
  auto spec = spec_of(claim_, 0);
  spec.resources = {ResourceName("gpu.nvidia.com")};
  set_claim_daemons({spec});
  ASSERT_TRUE(serves(claim_));
  ContainerDevices container{{"team", "pod"}, "main", {{spec.resources[0], {DeviceId(gpus_[0].str())}}}};
  bool done = false;
  controller_.pause_daemons({container}, [&] { done = true; });
  EXPECT_TRUE(done);
  EXPECT_TRUE(controller_.check_claim_daemon(claim_));
  container.devices.clear();
  controller_.pause_daemons({container}, [] {});
  ASSERT_TRUE(wait_until([&] { return controller_.find_holder(gpus_[0]).empty(); }));
  EXPECT_FALSE(controller_.check_claim_daemon(claim_));
  set_claim_daemons({spec});
  EXPECT_FALSE(controller_.check_claim_daemon(claim_));
  controller_.resume_daemons();
  set_claim_daemons({spec});
  EXPECT_TRUE(serves(claim_));
}

TEST_F(MpsControllerTest, NoneStartsAfterTheEnd) {
  set_claim_daemons({spec_of(claim_, 0)});
  ASSERT_TRUE(serves(claim_));
  bool ended = false;
  controller_.end_daemons([&] { ended = true; });
  set_claim_daemons({spec_of(claim_, 0)});
  ASSERT_TRUE(wait_until([&] { return ended; }));
  EXPECT_TRUE(controller_.find_holder(gpus_[0]).empty());
}

// An older control program beside a newer driver: the plan gets to know, once for each driver.
TEST_F(MpsControllerTest, SaysThatTheControlProgramHasNoProtocol3) {
  auto spec = spec_of("nvidia.com/gpu", 0);
  spec.visible_devices.clear();
  spec.protocol = mps::kProtocolWithNamespaces;
  spec.namespaces = {{"a_0", gpus_[0], {50, 1024}}};
  EXPECT_EQ(controller_.program_problem("615.71.09"), "");
  controller_.apply_daemons({spec}, config_);
  EXPECT_TRUE(wait_until([&] { return !controller_.program_problem("615.71.09").empty(); }));
  EXPECT_NE(controller_.program_problem("615.71.09").find("no MPS protocol 3"), std::string::npos);
  EXPECT_EQ(controller_.program_problem("615.78.08"), "") << "another driver is asked again";
  controller_.apply_daemons({spec_of("nvidia.com/gpu", 0)}, config_);
  EXPECT_TRUE(wait_until([&] {
    auto* daemon = controller_.find_daemon(gpus_[0]);
    return daemon != nullptr && daemon->spec().protocol == 2 && daemon->daemon_health().healthy;
  }));
  EXPECT_EQ(controller_.resource_specs().size(), 1u);
  bool ended = false;
  controller_.end_daemons([&] { ended = true; });
  EXPECT_TRUE(wait_until([&] { return ended; }));
}

}  // namespace
}  // namespace gpulet::agent
