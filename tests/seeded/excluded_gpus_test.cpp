// GPUs that a rule excludes, in the agent's loop in memory: a reload withdraws them from the kubelet and shows
// why, and another one offers them again.
#include <gtest/gtest.h>

#include "agent/node/agent.h"
#include "config/load.h"
#include "device_plugin/allocation.h"
#include "health/report/node_health.h"
#include "partition/rules.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;

config::Config config_with(const std::string& rules) {
  config::Sources sources;
  sources.file_path = "x.yaml";
  sources.file_content = "flags: {failOnInitError: false}\ngpulet: {partition: [" + rules + "]}\n";
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config : config::Config{};
}

class ExcludedGpus : public testing::Test {
 protected:
  void start_agent(const std::string& rules) {
    agent_.emplace(agent::AgentPorts{.loop = loop_,
                                     .driver = driver_,
                                     .host = kubelet_,
                                     .reporter = reporter_,
                                     .list_pods = nullptr,
                                     .read_files = [](const config::Config&) { return agent::DriverFiles{}; },
                                     .mps_health = nullptr,
                                     .cdi_names = nullptr,
                                     .changed = [this] { ++changes_; },
                                     .allocated = nullptr,
                                     .prepare_close = nullptr},
                   config_with(rules), 1, [](const Error& error) { ADD_FAILURE() << error.full_message(); });
    agent_->start_agent();
    loop_.advance(1s);
  }
  void reload(const std::string& rules) {
    agent_->reconfigure(config_with(rules));
    loop_.advance(1s);
  }
  // "nvidia.com/gpu: GPU-0 GPU-1": what the kubelet's streams have.
  std::string offered() const {
    std::string text;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      if (!endpoint.offer) continue;
      text += (text.empty() ? "" : "; ") + name.str() + ":";
      for (const auto& device : endpoint.offer->resource.devices) text += " " + device.id.str();
    }
    return text;
  }
  // Why the GPU is excluded, as health, the pages and claims see it.
  std::string reason(const DeviceUuid& gpu) const {
    const auto& in_snapshot = agent_->status().snapshot->find(gpu)->excluded;
    EXPECT_EQ(agent_->health_view()->find({gpu})->excluded, in_snapshot);
    EXPECT_EQ(agent_->health_view()->find({gpu})->status.state, health::DeviceState::kHealthy);
    return in_snapshot;
  }

  ManualLoop loop_;
  Random random_{1};
  FakeDriver driver_{loop_, 4};
  FakeKubelet kubelet_{loop_, random_};
  FakeReporter reporter_;
  std::size_t changes_ = 0;
  std::optional<agent::Agent> agent_;
  const DeviceUuid second_ = driver_.gpus[1].uuid;
};

TEST_F(ExcludedGpus, AReloadWithdrawsThemAndOffersThemAgain) {
  start_agent("");
  const auto all = offered();
  ASSERT_EQ(all, "nvidia.com/gpu: GPU-0 GPU-1 GPU-2 GPU-3");
  EXPECT_EQ(reason(second_), "");

  const auto changes = changes_;
  reload("{devices: [1, 3], exclude: true}");
  EXPECT_EQ(offered(), "nvidia.com/gpu: GPU-0 GPU-2");
  EXPECT_EQ(reason(second_), "is excluded by the rule at x.yaml:2:22");
  EXPECT_EQ(agent_->status().resources.at(0).devices, 2u);
  EXPECT_GT(changes_, changes) << "claims and labels follow";
  EXPECT_EQ(reporter_.counts["NotOffered"], 0u) << "nothing is wrong";
  EXPECT_TRUE(agent_->status().problems().empty());

  // The device of a running Pod is not in the offer, so the kubelet gives it to no other, and Allocate
  // refuses it.
  const auto& offer = *kubelet_.endpoints().begin()->second.offer;
  EXPECT_TRUE(device_plugin::allocate(offer, std::vector{DeviceId("GPU-0")}));
  EXPECT_FALSE(device_plugin::allocate(offer, std::vector{DeviceId("GPU-1")}));

  reload("");
  EXPECT_EQ(offered(), all);
  EXPECT_EQ(reason(second_), "");
}

TEST_F(ExcludedGpus, ALabelOfTheNodeAppliesTheRule) {
  start_agent("{nodeLabel: desktop, devices: [1], exclude: true}");
  EXPECT_EQ(offered(), "nvidia.com/gpu: GPU-0 GPU-1 GPU-2 GPU-3");
  agent_->set_facts({.labels = {{"desktop", ""}}, .withdrawn = {}});
  loop_.advance(1s);
  EXPECT_EQ(offered(), "nvidia.com/gpu: GPU-0 GPU-2 GPU-3");
  EXPECT_EQ(reason(second_), "is excluded by the rule at x.yaml:2:22");
}

TEST_F(ExcludedGpus, ReadsTheDriverAgainForADisplay) {
  start_agent("");
  driver_.gpus[1].display = true;
  reload("{display: true, exclude: true}");
  EXPECT_EQ(offered(), "nvidia.com/gpu: GPU-0 GPU-2 GPU-3");
  EXPECT_EQ(reason(second_), "is excluded by the rule at x.yaml:2:22");
}

TEST_F(ExcludedGpus, FaultsOfAnExcludedGpuChangeNoOffer) {
  start_agent("{devices: [1], exclude: true}");
  const auto before = kubelet_.endpoints().begin()->second.offer;
  driver_.raise_xid(1, 79);
  loop_.advance(1s);
  EXPECT_EQ(kubelet_.endpoints().begin()->second.offer, before);
  EXPECT_NE(agent_->health_view()->find({second_})->status.state, health::DeviceState::kHealthy);
}

}  // namespace
}  // namespace gpulet::seeded
