// The agent lets go of the driver: by the node labels of NVIDIA's GPU operator and by `gpulet driver
// release`.
#include <filesystem>

#include "tests/sim/release_fixture.h"

namespace gpulet::tests {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr std::chrono::seconds kMaxReturn{5};
#else
constexpr std::chrono::seconds kMaxReturn{1};
#endif

TEST_F(SimReleaseByLabel, ADriverUpgradeWithPodsThatKeepTheirDevices) {
  const auto grant = admit_pod("trainer", 2);
  EXPECT_NE(sim_error({"driver-unload"}).find("in use by: "), std::string::npos);
  EXPECT_TRUE(is_driver_held());

  set_deploy_label(kUpgrade);
  ASSERT_TRUE(lists_unhealthy_devices(8)) << agent_log();
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_EQ(reported_release()->reason, kUpgradeReason);
  const auto report = health::read_report(sim_node().health_file());
  ASSERT_TRUE(report);
  for (const auto& device : report->devices) {
    EXPECT_NE(device.status.reason.find(std::string("the driver is released: ") + kUpgradeReason),
              std::string::npos)
        << device.status.reason;
  }
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(sim_error({"driver-unload"}), "");
  EXPECT_EQ(sim_error({"driver-load", "--version", "580.95.05"}), "");
  EXPECT_FALSE(is_driver_held()) << "it stays released";
  EXPECT_TRUE(lists_unhealthy_devices(8));

  const auto took = print_time("devices back after the label", [this] {
    set_deploy_label("true");
    ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  });
  EXPECT_LT(took, kMaxReturn);
  EXPECT_TRUE(becomes_true([this] { return !reported_release(); }));
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(grant));
  EXPECT_TRUE(request_bodies("/eviction").empty());
  EXPECT_TRUE(becomes_true([this] {
    const auto bodies = request_bodies("/nodes/node-1/status");
    return std::ranges::any_of(
        bodies, [](const auto& body) { return body.find("DriverReleased") != std::string::npos; });
  }));
  for (const auto& body : request_bodies("/nodes/node-1/status"))
    EXPECT_EQ(body.find(R"("status":"False")"), std::string::npos) << body;
  // Its events are received too.
  ASSERT_TRUE(control::post_xid(machine_state(), 7, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(7)}));
}

TEST_F(SimReleaseByLabel, AcquireIsRefusedWhileALabelPauses) {
  set_deploy_label(kUpgrade);
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find(kUpgradeReason), std::string::npos);
  EXPECT_EQ(run_gpulet(0, {"driver", "release", "--reason", "riser"}),
            std::string("released: riser; ") + kUpgradeReason + "\n");
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find(kUpgradeReason), std::string::npos);
  set_deploy_label("true");
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimRelease, AResetBetweenReleaseAndAcquire) {
  start_node();
  const auto grant = admit_pod("trainer", 2);
  EXPECT_EQ(run_gpulet(0, {"driver", "status"}), "acquired\n");
  EXPECT_NE(smi_error({"-r", "-i", "3"}).find("in use by: "), std::string::npos);
  print_time("gpulet driver release", [this] {
    EXPECT_EQ(run_gpulet(0, {"driver", "release", "--reason", "firmware update"}),
              "released: firmware update\n");
  });
  EXPECT_FALSE(is_driver_held());
  EXPECT_TRUE(lists_unhealthy_devices(8));
  EXPECT_EQ(smi_error({"-r", "-i", "3"}), "");
  EXPECT_EQ(run_gpulet(3, {"driver", "status"}), "released: firmware update\n");
  print_time("gpulet driver acquire",
             [this] { EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n"); });
  print_time("devices back after it", [this] { EXPECT_TRUE(becomes_allocatable(8)); });
  EXPECT_TRUE(is_driver_held());
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(grant));
}

TEST_F(SimRelease, OutlastsARestartOfTheAgent) {
  start_node();
  run_gpulet(0, {"driver", "release"});
  sim_node().kill_agent();
  EXPECT_EQ(run_gpulet(3, {"driver", "status"}),
            "no agent is running on this node; it will start released: gpulet driver release\n");
  std::filesystem::remove(sim_node().health_file());
  start_agent();
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8));

  sim_node().kill_agent();
  EXPECT_NE(run_gpulet(0, {"driver", "release"}).find("no agent is running"), std::string::npos);
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "saved; no agent is running on this node\n");
  start_agent();
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRelease, AMissingDriverIsReportedOnAcquire) {
  start_node();
  run_gpulet(0, {"driver", "release"});
  ASSERT_TRUE(control::unload_driver(machine_state(), control::Clients::kRefuse));
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find("the driver is acquired, but the GPUs cannot be read"),
            std::string::npos);
  EXPECT_NE(run_gpulet(3, {"driver", "status"}).find("acquired, but"), std::string::npos);
  ASSERT_TRUE(control::load_driver(machine_state(), "575.57.08"));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRelease, AHangingCallDelaysTheRelease) {
  start_node("hgx-h100", {.environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s"}});
  ASSERT_TRUE(control::hang_calls(machine_state(), 2));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)})) << agent_log();
  EXPECT_NE(run_gpulet(1, {"driver", "release", "--timeout", "2s"}).find("within 2s"), std::string::npos);
  EXPECT_NE(wait_for_log("DriverNotReleased"), "");
  EXPECT_TRUE(is_driver_held());
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8));
}

// Devices are allocatable while nobody holds the driver, and others may reset a GPU at any time.
TEST_F(SimRelease, OnDemandTheDriverIsHeldOnlyWhileItIsRead) {
  start_node("hgx-h100",
             {.environment = {"GPULET_DRIVER_HOLD=on-demand", "GPULET_METRICS_INTERVAL=1h",
                              "GPULET_HEALTH_LIVENESS_INTERVAL=10m", "GPULET_HEALTH_POLL_INTERVAL=10m"}});
  ASSERT_TRUE(becomes_true([this] { return !is_driver_held(); })) << agent_log();
  admit_pod("trainer", 8);
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(run_gpulet(0, {"driver", "status"}), "acquired\n");
  EXPECT_TRUE(becomes_true([this] {
    const auto page = http_get(sim_node().socket(), "/metrics").body;
    return page.find("DCGM_FI_DEV_GPU_TEMP{") != std::string::npos;
  })) << "the last sample";
  EXPECT_EQ(smi_error({"-r", "-i", "3"}), "");
  EXPECT_EQ(run_gpulet(0, {"driver", "release"}), "released: gpulet driver release\n");
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(becomes_true([this] { return !is_driver_held(); })) << agent_log();
}

TEST_F(SimRelease, StopsUnusedMpsDaemons) {
  bring_up_node();
  constexpr const char* kShared = "nvidia.com/gpu.shared";
  write_config("version: v1\nflags: {mpsRoot: " + sim_node().mps_root() +
               "}\nsharing: {mps: {resources: [{name: gpu, devices: [0, 1], rename: gpu.shared, replicas: "
               "2}]}}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const auto daemons = [this] {
    std::size_t count = 0;
    for (const auto child : agent_children()) {
      const auto name = read_file("/proc/" + std::to_string(child) + "/comm");
      count += name && name->starts_with("nvidia-cuda-mps") ? 1 : 0;
    }
    return count;
  };
  const auto compute_mode = [this] { return machine_state().lock_for_read()->gpus[0].compute_mode; };
  EXPECT_EQ(compute_mode(), 3u);
  run_gpulet(0, {"driver", "release"});
  EXPECT_EQ(compute_mode(), 0u) << "restored before the driver was closed";
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(daemons(), 0u);
  run_gpulet(0, {"driver", "acquire"});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();

  admit_pod("client", 1, kShared);
  run_gpulet(0, {"driver", "release"});
  EXPECT_NE(wait_for_log("MpsDaemonsInUse", "client"), "");
  EXPECT_EQ(compute_mode(), 3u) << "the daemon of a Pod goes on";
  run_gpulet(0, {"driver", "acquire"});
  EXPECT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests
