// GPUs that go from the device plugin to claims and back, in the agent's loop in memory: what the kubelet
// sees at each step of a reload.
#include <gtest/gtest.h>

#include "agent/node/agent.h"
#include "config/load.h"
#include "device_plugin/allocation.h"
#include "partition/offer_switch.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;

config::Config moving_config(bool claims, const std::string& rules) {
  config::Sources sources;
  sources.file_path = "x.yaml";
  sources.file_content =
      "flags: {failOnInitError: false}\ngpulet: {dra: {enabled: " + std::string(claims ? "true" : "false") +
      "}, partition: [" + rules + "]}\n";
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config : config::Config{};
}

class OfferMoves : public testing::Test {
 protected:
  void start_agent(bool claims, const std::string& rules) {
    serves_claims_ = claims;
    agent_.emplace(
        agent::AgentPorts{.loop = loop_,
                          .driver = driver_,
                          .host = kubelet_,
                          .reporter = reporter_,
                          .gpu_offers =
                              [this](const auto& snapshot, const auto& config, const auto& labels) {
                                switch_.set_wanted(partition::wanted_sides(snapshot, config, labels),
                                                   serves_claims_, loop_.now());
                                return switch_.offers();
                              },
                          .list_pods = nullptr,
                          .read_files = [](const config::Config&) { return agent::DriverFiles{}; },
                          .mps_health = nullptr,
                          .cdi_names = nullptr,
                          .changed = nullptr,
                          .allocated = nullptr,
                          .prepare_close = nullptr},
        moving_config(claims, rules), 1, [](const Error& error) { ADD_FAILURE() << error.full_message(); });
    agent_->start_agent();
    loop_.advance(1s);
  }
  void reload(bool claims, const std::string& rules) {
    serves_claims_ |= claims;
    agent_->reconfigure(moving_config(claims, rules));
    loop_.advance(1s);
  }
  void read_plugin(partition::PluginReading reading = {}) {
    reading.began = loop_.now();
    if (switch_.apply_reading(reading)) agent_->replan();
    loop_.advance(1s);
  }
  void read_claims(partition::ClaimReading reading) {
    if (switch_.apply_reading(reading, loop_.now())) agent_->replan();
    loop_.advance(1s);
  }
  // "GPU-0 GPU-1!": what the kubelet's stream has, with a mark for an unhealthy device.
  std::string offered() const {
    std::string text;
    for (const auto& [name, endpoint] : kubelet_.endpoints()) {
      if (!endpoint.offer) continue;
      for (const auto& device : endpoint.offer->resource.devices)
        text += (text.empty() ? "" : " ") + device.id.str() + (device.health.healthy ? "" : "!");
    }
    return text;
  }
  std::string refusal(const char* id) const {
    const auto answer =
        device_plugin::allocate(*kubelet_.endpoints().begin()->second.offer, std::vector{DeviceId(id)});
    return answer ? "" : answer.error().message();
  }

  static constexpr const char* kLastToClaims = "{devices: [1], whole: {}, offer: claims}";
  static constexpr const char* kRestToPlugin = "{devices: all, whole: {}, offer: devicePlugin}";
  const std::string prefix_ = "invalid allocation request for \"nvidia.com/gpu\": ";
  ManualLoop loop_;
  Random random_{1};
  FakeDriver driver_{loop_, 2};
  FakeKubelet kubelet_{loop_, random_};
  FakeReporter reporter_;
  partition::OfferSwitch switch_;
  bool serves_claims_ = false;
  std::optional<agent::Agent> agent_;
  const DeviceUuid second_ = driver_.gpus[1].uuid;
};

TEST_F(OfferMoves, OneGpuGoesToClaimsAndBackWhileAPodHoldsIt) {
  start_agent(false, "");
  ASSERT_EQ(offered(), "GPU-0 GPU-1");
  const std::string mixed = std::string(kLastToClaims) + ", " + kRestToPlugin;
  reload(true, mixed);
  EXPECT_EQ(offered(), "GPU-0 GPU-1!") << "the Pod keeps it, and no other gets it";
  read_plugin({.holders = {{second_, "Pod team/a"}}, .allocatable = {}});
  EXPECT_EQ(offered(), "GPU-0 GPU-1!");
  EXPECT_EQ(refusal("GPU-1"),
            prefix_ + "device is unhealthy: GPU-1 (is offered by claims when Pod team/a ends)");
  loop_.advance(partition::kPluginSettle);
  read_plugin();
  EXPECT_EQ(offered(), "GPU-0");
  EXPECT_EQ(partition::offer_of(switch_.offers(), second_).stage, partition::OfferStage::kClaims);
  EXPECT_EQ(refusal("GPU-1"), prefix_ + "GPU-1 is offered by claims");
  EXPECT_EQ(reporter_.counts["NotOffered"], 0u) << "nothing is wrong";
  EXPECT_TRUE(agent_->status().problems().empty());

  reload(true, kRestToPlugin);
  EXPECT_EQ(offered(), "GPU-0");
  read_claims({.published = std::set{second_}, .holders = {}});
  EXPECT_EQ(offered(), "GPU-0");
  read_claims({.published = std::set<DeviceUuid>{}, .holders = {{second_, "claim team/b"}}});
  loop_.advance(partition::kClaimSettle);
  EXPECT_EQ(offered(), "GPU-0");
  EXPECT_EQ(refusal("GPU-1"), prefix_ + "GPU-1 is offered by the device plugin when claim team/b ends");
  read_claims({.published = std::set<DeviceUuid>{}, .holders = {}});
  EXPECT_EQ(offered(), "GPU-0 GPU-1");
}

TEST_F(OfferMoves, TheWholeNodeGoesOver) {
  start_agent(false, "");
  reload(true, "");
  EXPECT_EQ(offered(), "GPU-0! GPU-1!");
  loop_.advance(partition::kPluginSettle);
  read_plugin();
  EXPECT_EQ(offered(), "");
  EXPECT_TRUE(agent_->status().resources.empty());
  reload(false, "");
  EXPECT_EQ(offered(), "");
  read_claims({.published = std::set<DeviceUuid>{}, .holders = {}});
  loop_.advance(partition::kClaimSettle);
  read_claims({.published = std::set<DeviceUuid>{}, .holders = {}});
  EXPECT_EQ(offered(), "GPU-0 GPU-1");
}

TEST_F(OfferMoves, ANodeOfClaimsOffersNothingToTheKubelet) {
  start_agent(true, "");
  EXPECT_EQ(offered(), "");
  read_plugin();
  EXPECT_TRUE(switch_.has_stage(partition::OfferStage::kClaims));
  EXPECT_EQ(offered(), "");
  // Its Pods by the device plugin are found after a restart of the agent.
  agent_.reset();
  switch_ = {};
  start_agent(true, "");
  read_plugin({.holders = {{second_, "Pod team/a"}}, .allocatable = {}});
  EXPECT_EQ(offered(), "GPU-1!") << "registered, so that its containers start again";
}

}  // namespace
}  // namespace gpulet::seeded
