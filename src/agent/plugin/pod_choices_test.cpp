#include "agent/plugin/pod_choices.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "agent/plugin/offers.h"
#include "agent/publish/gpu_node_publisher.h"
#include "k8s/test_api.h"
#include "partition/test_node.h"

namespace gpulet::agent {
namespace {

using k8s::Received;
using nlohmann::json;
using partition::test::gpu;

// Three GPUs, GPU-0 to GPU-2.
class ChoiceNode {
 public:
  explicit ChoiceNode(config::Config config = {}) : config_(std::move(config)) {
    offers_ = builder_.build_offers(snapshot_, config_, {}).offers;
  }
  scheduler::GpuNode node() const {
    return build_gpu_node({.snapshot = snapshot_,
                           .offers = offers_,
                           .config = config_,
                           .holders = {},
                           .curves = curves_,
                           .loads = loads_,
                           .controllers = {}});
  }
  const std::vector<device_plugin::OfferPtr>& offers() const { return offers_; }

 private:
  inventory::Snapshot snapshot_ = partition::test::node({gpu(0), gpu(1), gpu(2)});
  config::Config config_;
  std::map<DeviceUuid, std::string> curves_;
  placement::LoadsByGpu loads_;
  OfferBuilder builder_;
  std::vector<device_plugin::OfferPtr> offers_;
};

scheduler::PodRequest make_request(const std::string& key, const std::string& value, unsigned count = 1) {
  scheduler::PodRequest pod;
  pod.name_space = "default";
  pod.name = "p";
  pod.uid = "uid-p";
  pod.containers.push_back({.name = "main", .devices = {{ResourceName("nvidia.com/gpu"), count}}});
  if (!key.empty()) scheduler::apply_annotation(key, value, pod);
  EXPECT_EQ(pod.request_error, "");
  return pod;
}

TEST(PodDemands, AcceptWhatTheAnnotationsSay) {
  const ChoiceNode machine;
  const auto accepted = [&](const std::string& key, const std::string& value) {
    const auto demands = make_pod_demands(make_request(key, value), machine.node(), machine.offers());
    EXPECT_EQ(demands.size(), 1U);
    std::string text;
    if (!demands.at(0).accepted) return std::string("any");
    for (const auto& id : *demands[0].accepted) text += id.str() + " ";
    return text + "/ " + demands[0].requirement;
  };
  EXPECT_EQ(accepted("", ""), "any");
  EXPECT_EQ(accepted("gpulet.io/gpu-index", "1"), "GPU-1 / index 1 required");
  EXPECT_EQ(accepted("nvidia.com/use-gpuuuid", "GPU-0,GPU-2"), "GPU-0 GPU-2 / UUID GPU-0, GPU-2 required");
  EXPECT_EQ(accepted("nvidia.com/nouse-gpuuuid", "GPU-0"), "GPU-1 GPU-2 / another UUID than GPU-0 required");
  EXPECT_EQ(accepted("gpulet.io/gpu-compute", "99.0"), "/ compute capability 99.0 required");
  EXPECT_EQ(accepted("gpulet.io/gpu-numa", "9").substr(0, 13), "/ NUMA node 9");
}

TEST(PodDemands, AMalformedChoiceAcceptsNothing) {
  const ChoiceNode machine;
  auto pod = make_request("", "");
  scheduler::apply_annotation("gpulet.io/gpu-index", "first", pod);
  const auto demands = make_pod_demands(pod, machine.node(), machine.offers());
  ASSERT_EQ(demands.size(), 1U);
  EXPECT_EQ(demands[0].accepted, (std::set<DeviceId>{}));
  EXPECT_EQ(demands[0].requirement, pod.request_error);
}

TEST(PodDemands, UnknownResourcesAreNotDemanded) {
  const ChoiceNode machine;
  auto pod = make_request("gpulet.io/gpu-index", "1");
  pod.containers[0].devices.push_back({ResourceName("example.com/nic"), 1});
  EXPECT_EQ(make_pod_demands(pod, machine.node(), machine.offers()).size(), 1U);
  // The node does not have the resource yet: no device is known to satisfy the Pod.
  const auto demands = make_pod_demands(pod, {}, machine.offers());
  ASSERT_EQ(demands.size(), 1U);
  EXPECT_EQ(demands[0].accepted, (std::set<DeviceId>{}));
}

json waiting_pod(const std::string& name, const std::string& index) {
  json pod = {
      {"metadata",
       {{"namespace", "default"},
        {"name", name},
        {"uid", "uid-" + name},
        {"resourceVersion", "1"},
        {"annotations", json::object()}}},
      {"spec",
       {{"nodeName", "node-1"},
        {"containers", {{{"name", "main"}, {"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}}}}}},
      {"status", {{"phase", "Pending"}}}};
  if (!index.empty()) pod["metadata"]["annotations"]["gpulet.io/gpu-index"] = index;
  return pod;
}

// An API server that lists waiting Pods, and a kubelet that lists the Pods with devices.
class PodChoicesTest : public k8s::ApiTest {
 protected:
  void release_source() override { choices_.reset(); }
  void begin() {
    start_server([this](const Received& request) {
      EXPECT_NE(request.line().find("fieldSelector=spec.nodeName%3Dnode-1%2Cstatus.phase%3DPending"),
                std::string::npos)
          << request.line();
      if (request.line().find("watch=") == std::string::npos)
        return Reply{200, json{{"metadata", {{"resourceVersion", "5"}}}, {"items", pods_}}.dump()};
      return Reply{200, "", Act::kRespond, [](Stream& stream) {
                     while (stream.wait_open(20)) {
                     }
                     return false;
                   }};
    });
    call_on_loop([&] {
      choices_.emplace(
          PodChoicePorts{.loop = loop_,
                         .access = client_config(),
                         .node = [this] { return std::optional(machine_.node()); },
                         .offers = [this] { return machine_.offers(); },
                         .holders = [this](auto done) { loop_.post([this, done] { done(holders()); }); },
                         .board = board_,
                         .ready_changed =
                             [this](bool is_ready) {
                               const std::lock_guard lock(mutex_);
                               is_ready_ = is_ready;
                             },
                         .violated =
                             [this](const PodRef& pod, const std::string& message) {
                               const std::lock_guard lock(mutex_);
                               violations_.push_back(pod.name + " " + message);
                             }},
          PodChoiceTiming{.watch = {}, .admission = std::chrono::milliseconds(1)});
    });
    EXPECT_TRUE(k8s::eventually([&] {
      const std::lock_guard lock(mutex_);
      return is_ready_;
    }));
  }
  std::vector<ContainerDevices> holders() {
    const std::lock_guard lock(mutex_);
    return holders_;
  }
  void hold(const std::string& pod, const std::string& device) {
    const std::lock_guard lock(mutex_);
    holders_.push_back({{"default", pod}, "main", {{kResource, {DeviceId(device)}}}});
  }

  const ResourceName kResource{"nvidia.com/gpu"};
  const ChoiceNode machine_;
  const std::shared_ptr<device_plugin::DemandBoard> board_ = std::make_shared<device_plugin::DemandBoard>();
  json pods_ = json::array();
  std::mutex mutex_;
  bool is_ready_ = false;
  std::vector<ContainerDevices> holders_;
  std::vector<std::string> violations_;
  std::optional<PodChoices> choices_;
};

TEST_F(PodChoicesTest, WaitingPodsAreDemandsUntilTheyHoldDevices) {
  pods_ = {waiting_pod("a", "2"), waiting_pod("b", "1"), waiting_pod("c", "")};
  hold("a", "GPU-2");  // admitted before the agent started
  begin();
  EXPECT_EQ(board_->accepted_devices(kResource, 1), std::set{DeviceId("GPU-1")});
  EXPECT_TRUE(violations_.empty());
  // The kubelet gives it another device, which a Pod without a choice would accept.
  EXPECT_TRUE(board_->meet_demand(kResource, std::vector{DeviceId("GPU-0")}));
  hold("b", "GPU-0");
  call_on_loop([&] { choices_->schedule_comparison(); });
  EXPECT_TRUE(k8s::eventually([&] {
    const std::lock_guard lock(mutex_);
    return !violations_.empty();
  }));
  EXPECT_EQ(violations_[0], "b container main was allocated GPU-0: index 1 required; create the Pod again");
  call_on_loop([&] { choices_.reset(); });
  EXPECT_TRUE(board_->meet_demand(kResource, std::vector{DeviceId("GPU-0")})) << "nothing is demanded";
}

}  // namespace
}  // namespace gpulet::agent
