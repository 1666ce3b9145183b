// What a Pod requests of a shared GPU's compute, from its limit nvidia.com/gpucores to a client of MPS. The
// agent, the hook and the control daemon run as processes, on the simulated driver of branch 615. Needs root
// and cgroup v2.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/sim/limit_fixture.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

constexpr const char* kCores = "nvidia.com/gpu.cores";
constexpr std::size_t kCoreShares = 4;
constexpr const char* kFirstUid = "0b1d4c8e-1111-4222-8333-444455550001";
constexpr const char* kSecondUid = "0b1d4c8e-1111-4222-8333-444455550002";

class ComputeLimitTest : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (IsSkipped()) return;
    write_rule_config(kCores);
    start_limiting_agent(kCores, kCoreShares);
  }
  // Admits a Pod with a share. The namespace's directory on the host, which is all that its container gets.
  std::string add_pod(const std::string& name, const std::string& uid, unsigned percent) {
    auto pod = LimitedPods::make_pod(name, uid, 0);
    if (percent != 0)
      pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = std::to_string(percent);
    pods_->put_pod(pod);
    const auto grant = admit_to_team(name, uid, {{"main", {{kCores, 1}}}});
    if (grant.containers.empty() || grant.containers[0].mounts.empty()) return "no mount";
    const auto& container = grant.containers[0];
    EXPECT_EQ(container.envs.at("CUDA_MPS_PIPE_DIRECTORY"), container.mounts[0].container_path);
    EXPECT_FALSE(container.envs.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    return container.mounts[0].host_path;
  }
  std::string start(const std::string& uid) { return run_hook(make_container(uid), uid); }
  // "30.00" of the namespace with that directory.
  std::string percentage_of(const std::string& directory) {
    const auto name = directory.substr(directory.rfind('/') + 1);
    return ask_mps(kCores, {"namespace", "get", name, "gpulet", "active-thread-percentage"});
  }
};

TEST_F(ComputeLimitTest, AClientHasWhatItsPodRequests) {
  const auto directory = add_pod("first", kFirstUid, 30);
  EXPECT_THAT(directory, HasSubstr(std::string(kCores) + "/pipe3/gpulet/"));
  EXPECT_EQ(percentage_of(directory), "25.00\n") << "the share's own";
  ASSERT_EQ(start(kFirstUid), "") << agent_log();
  EXPECT_EQ(percentage_of(directory), "30.00\n");
  EXPECT_THAT(client_limits(directory, "100"), HasSubstr("threads 30.0 "));
  EXPECT_THAT(client_limits(directory.substr(0, directory.rfind('/')), "100"), HasSubstr("threads 1.0 "));
  // Another agent adopts the daemon.
  sim_node().kill_agent();
  start_limiting_agent(kCores, kCoreShares);
  EXPECT_EQ(percentage_of(directory), "30.00\n");
  ASSERT_EQ(start(kFirstUid), "") << "the container starts again" << agent_log();
  EXPECT_EQ(percentage_of(directory), "30.00\n");
  // The next holder of the share requests nothing.
  ASSERT_TRUE(sim_kubelet().remove_pod(kFirstUid));
  std::string again;
  for (unsigned i = 0; i < kCoreShares && again != directory; ++i) {
    const std::string uid = std::string(kSecondUid).substr(0, 35) + std::to_string(i);
    again = add_pod("next" + std::to_string(i), uid, 0);
    ASSERT_EQ(start(uid), "") << agent_log();
  }
  ASSERT_EQ(again, directory);
  EXPECT_EQ(percentage_of(directory), "25.00\n");
}

TEST_F(ComputeLimitTest, AContainerDoesNotStartWithoutIt) {
  const auto directory = add_pod("first", kFirstUid, 30);
  const auto name = directory.substr(directory.rfind('/') + 1);
  EXPECT_EQ(ask_mps(kCores, {"namespace", "delete", name, "--server=gpulet"}), "");
  EXPECT_THAT(start(kFirstUid), HasSubstr("MPS namespace " + name));
  EXPECT_TRUE(becomes_true([&] {
    return testing::Matches(Contains(
        HasSubstr("GpuComputeLimitFailed: container main does not start without its compute limit")))(
        pods_->events_about("first"));
  })) << testing::PrintToString(pods_->events_about("first"));
}

TEST_F(ComputeLimitTest, AnOlderDriverIsSaidToHoldNone) {
  const auto no_limit = [&] {
    const auto node = json::parse(http_get(sim_node().socket(), "/api/node").body, nullptr, false);
    return node.is_object() && node.contains("memory_limit")
               ? node["memory_limit"].value("no_compute_limit", "held")
               : std::string("none");
  };
  EXPECT_TRUE(becomes_true([&] { return no_limit() == "held"; })) << no_limit();
  allow_agent_exit();
  ASSERT_TRUE(sim_node().stop_agent()) << agent_log();
  ASSERT_TRUE(sim::mps::crash_daemon(sim_node().mps_root() + "/" + kCores + "/pipe3"));
  ASSERT_TRUE(sim_node().run_gpulet_sim({"driver-reload", "--version", "595.91.07"}));
  start_limiting_agent(kCores, kCoreShares);
  EXPECT_TRUE(becomes_true([&] { return no_limit().find("the driver is 595.91.07") == 0; })) << no_limit();
  const auto directory = add_pod("first", kFirstUid, 30);
  EXPECT_TRUE(directory.ends_with("/pipe")) << directory;
  EXPECT_THAT(client_limits(directory, "100"), HasSubstr("threads 25.0 "));
}

}  // namespace
}  // namespace gpulet::tests
