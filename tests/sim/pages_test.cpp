// What the node's pages say, who serves them, and how the agent ends.
#include <signal.h>

#include <filesystem>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimPages : public NodeTest {
 protected:
  bool answers(const std::string& path, int status, const std::string& part = {}) {
    return eventually([&] {
      const auto answer = http_get(port(), path);
      return answer.status == status && answer.body.find(part) != std::string::npos;
    });
  }
};

TEST_F(SimPages, SayThatAllIsWell) {
  serve();
  EXPECT_TRUE(answers("/healthz", 200));
  EXPECT_TRUE(answers("/readyz", 200));
  EXPECT_TRUE(answers("/metrics", 200, "gpulet_devices{resource=\"nvidia.com/gpu\",health=\"Healthy\"} 8\n"));
  const auto metrics = http_get(port(), "/metrics").body;
  EXPECT_NE(metrics.find("gpulet_driver_up 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("gpulet_registrations_total 1\n"), std::string::npos) << metrics;
}

TEST_F(SimPages, SayWhatIsWrongWhileTheKubeletIsAway) {
  serve();
  ASSERT_TRUE(answers("/readyz", 200));
  kubelet().stop();
  std::filesystem::remove(kubelet().kubelet_socket());
  EXPECT_TRUE(answers("/readyz", 503, "nvidia.com/gpu: "));
  EXPECT_TRUE(answers("/healthz", 200));  // nothing that a restart of the agent would mend
  ASSERT_TRUE(kubelet().start_again());
  ASSERT_TRUE(offered(8));
  EXPECT_TRUE(answers("/readyz", 200));
}

TEST_F(SimPages, SayWhatIsWrongWhileTheDriverIsAway) {
  serve();
  ASSERT_TRUE(answers("/readyz", 200));
  ASSERT_TRUE(sim::control::unload_driver(machine()));
  EXPECT_TRUE(answers("/readyz", 503, "driver: "));
  EXPECT_TRUE(answers("/metrics", 200, "gpulet_driver_up 0\n"));
  ASSERT_TRUE(sim::control::load_driver(machine()));
  EXPECT_TRUE(answers("/readyz", 200));
}

TEST_F(SimPages, CountTheUnhealthy) {
  serve();
  ASSERT_TRUE(sim::control::xid(machine(), 0, kFallenOffTheBus));
  EXPECT_TRUE(
      answers("/metrics", 200, "gpulet_devices{resource=\"nvidia.com/gpu\",health=\"Unhealthy\"} 1\n"));
  EXPECT_TRUE(answers("/metrics", 200, "gpulet_events_total{reason=\"GPUUnhealthy\"} 1\n"));
}

TEST_F(SimPages, AreOnTheNodesOwnSocketToo) {
  serve();
  EXPECT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status == 200; }));
  EXPECT_NE(http_get(node().socket(), "/api/node").body.find(uuid(7)), std::string::npos);
  // Killed, it leaves its socket; the next one takes the place.
  agent_may_end();
  node().kill_agent();
  EXPECT_TRUE(std::filesystem::is_socket(node().socket()));
  EXPECT_EQ(http_get(node().socket(), "/readyz").status, 0);
  start_agent();
  EXPECT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status == 200; }));
}

TEST_F(SimPages, AConfigMovesTheSocketWithoutARestart) {
  up();
  const auto config = [&](const std::string& rest) { write_config("version: v1\ngpulet:\n" + rest); };
  const std::string first = node().folder() + "/first.sock", second = node().folder() + "/second/agent.sock";
  config("  socket: " + first + "\n");
  start_agent({.environment = {"CONFIG_FILE=" + config_path()}, .socket = false});
  ASSERT_TRUE(eventually([&] { return http_get(first, "/readyz").status == 200; }));
  const auto agent = node().agent_id();
  const auto mode = [](const std::string& path) { return std::filesystem::status(path).permissions(); };
  EXPECT_EQ(mode(first), std::filesystem::perms(0660));

  config("  socket: " + second + "\n  socketMode: \"0666\"\n");
  ASSERT_TRUE(eventually([&] { return http_get(second, "/readyz").status == 200; }));
  EXPECT_EQ(mode(second), std::filesystem::perms(0666));
  EXPECT_FALSE(std::filesystem::exists(first));

  // What cannot be had is told, and all else goes on.
  std::filesystem::permissions(node().folder() + "/second", std::filesystem::perms(0777));
  config("  socket: " + node().folder() + "/second/other.sock\n");
  EXPECT_NE(said("ListenFailed", "others may write in this folder").find("(gpulet.socket)"),
            std::string::npos);
  EXPECT_TRUE(answers("/readyz", 200));

  config("  socket: \"\"\n");
  EXPECT_TRUE(answers("/readyz", 200));
  config("  socket: " + first + "\n");
  EXPECT_TRUE(eventually([&] { return http_get(first, "/readyz").status == 200; }));
  EXPECT_EQ(node().agent_id(), agent);
  EXPECT_TRUE(offered(8));
}

TEST_F(SimPages, AListenerThatIsKilledComesBackAndNothingElseNotices) {
  serve();
  ASSERT_TRUE(answers("/healthz", 200));
  for (int round = 0; round < 2; ++round) {
    std::set<pid_t> children;
    ASSERT_TRUE(eventually([&] { return !(children = agent_children()).empty(); }));
    for (const pid_t child : children) ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_TRUE(eventually([&] {
      const auto now = agent_children();
      return !now.empty() && now != children;
    }));
    EXPECT_TRUE(answers("/healthz", 200));
    EXPECT_TRUE(answers("/readyz", 200));
  }
  EXPECT_EQ(registrations(), 1u);
  admit("all", 8);
}

TEST_F(SimPages, SigtermEndsItAndTakesItsSocketsAway) {
  serve();
  ASSERT_NE(port(), 0);
  const std::string socket = kubelet().plugin_dir() + "/nvidia-gpu.sock";
  ASSERT_TRUE(std::filesystem::is_socket(socket));
  ASSERT_TRUE(std::filesystem::is_socket(node().socket()));
  agent_may_end();
  const auto took = node().stop_agent();
  ASSERT_TRUE(took) << took.error().text();
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(node().socket()));
  EXPECT_TRUE(wait_for([](const auto& state) { return !find(state, kGpu)->connected; }));
  EXPECT_EQ(http_get(port(), "/healthz").status, 0);
}

TEST_F(SimPages, SigtermEndsItWhileADriverCallHangs) {
  serve("hgx-h100", {.environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}});
  ASSERT_TRUE(sim::control::hang(machine(), 2));
  ASSERT_TRUE(unhealthy({uuid(2)}));
  agent_may_end();
  const auto took = node().stop_agent();
  EXPECT_TRUE(took) << took.error().text();
}

}  // namespace
}  // namespace gpulet::tests
