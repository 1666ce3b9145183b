// The driver goes, comes back, comes late or not at all; the agent is killed and started again.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;
namespace fs = std::filesystem;

class SimDriver : public NodeTest {
 protected:
  static cli::AgentOptions patient() { return {.arguments = {"--fail-on-init-error=false"}}; }
  // Every libnvidia-ml below the driver root, out of its place and back.
  void hide_library(bool hidden) {
    const fs::path hidden_away = node().folder() + "/hidden";
    fs::create_directories(hidden_away);
    if (hidden) {
      for (const auto& entry : fs::recursive_directory_iterator(node().root())) {
        if (entry.path().filename().string().starts_with("libnvidia-ml.so")) moved_.push_back(entry.path());
      }
      ASSERT_FALSE(moved_.empty());
    }
    for (const auto& path : moved_) {
      const auto away = hidden_away / path.filename();
      hidden ? fs::rename(path, away) : fs::rename(away, path);
    }
  }
  std::set<std::string> given_out() {
    std::set<std::string> all;
    std::size_t count = 0;
    const auto state = kubelet().state();
    for (const auto& [uid, grant] : state.grants) {
      for (const auto& id : ids_of(grant)) {
        all.insert(id);
        ++count;
      }
    }
    EXPECT_EQ(all.size(), count) << "a device was given twice";
    return all;
  }

 private:
  std::vector<fs::path> moved_;
};

TEST_F(SimDriver, AReloadedDriverIsTakenUpAgain) {
  serve();
  const auto grant = admit("trainer", 2);
  ASSERT_TRUE(control::unload_driver(machine()));
  ASSERT_TRUE(wait_for([](const auto& state) { return find(state, kGpu)->allocatable() == 0; }));
  EXPECT_NE(said("DriverUnavailable"), "");
  ASSERT_TRUE(control::load_driver(machine(), "575.57.08"));
  ASSERT_TRUE(offered(8));
  // Nothing was registered anew: the devices are the same, and the Pod has its own.
  EXPECT_EQ(registrations(), 1u);
  EXPECT_EQ(ids_of(kubelet().state().grants.at("trainer")), ids_of(grant));
  // Its events are followed too.
  ASSERT_TRUE(control::xid(machine(), 7, kFallenOffTheBus));
  EXPECT_TRUE(unhealthy({uuid(7)}));
}

TEST_F(SimDriver, IsWaitedForWhenItIsLoadedLater) {
  up();
  ASSERT_TRUE(control::unload_driver(machine()));
  start_agent(patient());
  EXPECT_NE(said("DriverUnavailable"), "");
  EXPECT_EQ(registrations(), 0u);
  ASSERT_TRUE(control::load_driver(machine()));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimDriver, IsWaitedForWhenItIsInstalledLater) {
  up();
  hide_library(true);
  start_agent(patient());
  EXPECT_NE(said("DriverUnavailable"), "");
  hide_library(false);
  EXPECT_TRUE(offered(8));
}

TEST_F(SimDriver, EndsTheAgentWhenItIsMissingAndFailOnInitErrorIsTrue) {
  for (const bool installed : {true, false}) {
    up();
    if (installed) {
      ASSERT_TRUE(control::unload_driver(machine()));
    } else {
      hide_library(true);
    }
    start_agent();
    agent_may_end();
    const auto exit = node().wait_agent(kPatience);
    ASSERT_TRUE(exit) << exit.error().text();
    EXPECT_EQ(exit->code, 1);
    std::vector<std::string> lines;
    for (const auto& line : text::split(log(), '\n')) {
      if (line.find("driver") != std::string::npos) lines.push_back(line);
    }
    ASSERT_EQ(lines.size(), 1u) << log();
    EXPECT_NE(lines[0].find("failOnInitError"), std::string::npos) << lines[0];
  }
}

TEST_F(SimDriver, AHangingInitialisationIsGivenUpOnAndTriedAgain) {
  up();
  ASSERT_TRUE(control::hang(machine(), std::nullopt));
  start_agent(
      {.arguments = {"--fail-on-init-error=false"}, .environment = {"GPULET_DRIVER_CALL_TIMEOUT=300ms"}});
  EXPECT_NE(said("DriverUnavailable"), "");
  ASSERT_TRUE(control::heal(machine(), std::nullopt));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimDriver, AKilledAgentResumesAndNothingIsGivenTwice) {
  serve();
  std::map<std::string, std::vector<std::string>> before;
  for (const auto& [pod, count] : {std::pair{"pair", 2u}, {"single", 1u}})
    before[pod] = ids_of(admit(pod, count));
  for (int round = 0; round < 3; ++round) {
    const auto registered = registrations();
    node().signal_agent(SIGKILL);
    ASSERT_TRUE(node().wait_agent(kPatience));
    start_agent();
    ASSERT_TRUE(wait_for([&](const auto& state) {
      const auto* resource = find(state, kGpu);
      return resource->registrations > registered && resource->connected && resource->allocatable() == 8;
    })) << "round "
        << round;
    admit("more-" + std::to_string(round), 1);
    EXPECT_EQ(given_out().size(), 4u + round);
  }
  for (const auto& [pod, ids] : before) EXPECT_EQ(ids_of(kubelet().state().grants.at(pod)), ids);
  admit("last", 2);
  EXPECT_EQ(given_out().size(), 8u);
  const auto ninth =
      kubelet().admit({.name = "ninth", .uid = "ninth", .containers = {{"main", {{kGpu, 1}}}}});
  EXPECT_FALSE(ninth);
}

TEST_F(SimDriver, AGpuThatBrokeWhileTheAgentWasAwayIsSeenAtItsStart) {
  serve();
  node().signal_agent(SIGKILL);
  ASSERT_TRUE(node().wait_agent(kPatience));
  ASSERT_TRUE(control::lost(machine(), 4));
  start_agent();
  EXPECT_TRUE(offered(7));
  admit("others", 7);
}

}  // namespace
}  // namespace gpulet::tests
