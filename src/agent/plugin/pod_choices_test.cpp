#include "agent/plugin/pod_choices.h"

#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "agent/plugin/offers.h"
#include "agent/publish/gpu_node_publisher.h"
#include "k8s/test_api.h"
#include "partition/test_node.h"

namespace gpulet::agent {
namespace {

using device_plugin::PodDemand;
using nlohmann::json;
using partition::test::gpu;

// Three GPUs, GPU-0 to GPU-2.
class ChoiceNode {
 public:
  explicit ChoiceNode(config::Config config = {}) : config_(std::move(config)) {
    for (auto& gpu : snapshot_.gpus) gpu.memory = mebibytes(40'000);
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

json waiting_pod(const std::string& name, const json& annotations,
                 const json& limits = {{"nvidia.com/gpu", "1"}}) {
  return {
      {"metadata",
       {{"namespace", "default"}, {"name", name}, {"uid", "uid-" + name}, {"annotations", annotations}}},
      {"spec",
       {{"nodeName", "node-1"}, {"containers", {{{"name", "main"}, {"resources", {{"limits", limits}}}}}}}},
      {"status", {{"phase", "Pending"}}}};
}

std::vector<PodDemand> demands_of(const json& annotations, const json& limits = {{"nvidia.com/gpu", "1"}}) {
  const ChoiceNode machine;
  const auto pod = parse_waiting_pod(waiting_pod("p", annotations, limits).dump());
  EXPECT_TRUE(pod);
  return pod ? make_pod_demands(*pod, machine.node(), machine.offers()) : std::vector<PodDemand>();
}

TEST(PodChoiceDemands, RefuseWhatTheAnnotationsDoNotAccept) {
  struct Case {
    const char *annotation, *value, *refused, *reason;
  };
  for (const auto& [annotation, value, refused, reason] : {
           Case{"example.com/any", "x", "", ""},
           Case{"gpulet.io/gpu-index", "1", "GPU-0 GPU-2 ",
                "annotation gpulet.io/gpu-index: expected index 1, found GPU 0 ("},
           Case{"nvidia.com/use-gpuuuid", "GPU-0,GPU-2", "GPU-1 ",
                "annotation nvidia.com/use-gpuuuid: expected UUID GPU-0, GPU-2, found GPU 1 ("},
           Case{"nvidia.com/nouse-gpuuuid", "GPU-0", "GPU-0 ",
                "annotation nvidia.com/nouse-gpuuuid: expected another UUID than GPU-0, found GPU 0 ("},
           Case{"gpulet.io/gpu-compute", "99.0", "GPU-0 GPU-1 GPU-2 ",
                "annotation gpulet.io/gpu-compute: expected compute capability 99.0, found GPU 0 ("},
           Case{"gpulet.io/gpu-model", "T4", "GPU-0 GPU-1 GPU-2 ",
                "annotation gpulet.io/gpu-model: expected T4, found GPU 0 ("},
           Case{"gpulet.io/gpu-index", "first", "GPU-0 GPU-1 GPU-2 ",
                "annotation gpulet.io/gpu-index is \"first\": expected indices"},
       }) {
    const auto demands = demands_of({{annotation, value}});
    ASSERT_EQ(demands.size(), 1U);
    EXPECT_EQ(demands[0].pod, "default/p");
    EXPECT_EQ(demands[0].count, 1U);
    std::string ids;
    for (const auto& [id, why] : demands[0].refused) ids += id.str() + " ";
    EXPECT_EQ(ids, refused) << annotation;
    if (!demands[0].refused.empty()) {
      const auto& why = demands[0].refused.begin()->second;
      EXPECT_TRUE(why.starts_with(reason)) << why;
      EXPECT_EQ(why.find('\n'), std::string::npos);
    }
  }
  EXPECT_EQ(demands_of({{"gpulet.io/gpu-shares-on", "oneGPU"}}).at(0).shares_on,
            placement::SharesOn::kOneGpu);
  EXPECT_TRUE(demands_of({{"nvidia.com/numa-bind", "true"}}).at(0).one_numa_node);
  const auto without = demands_of({{"gpulet.io/gpu-index", "1"}}, {{"example.com/nic", "1"}});
  EXPECT_TRUE(without.empty()) << "not offered";
}

TEST(PodChoiceDemands, RefuseSharesWhoseMemoryIsNotLimitedAsThePodDemands) {
  const json annotations = {{"gpulet.io/min-limit-grade", "audited"}, {"gpulet.io/gpu-memory", "8Gi"}};
  auto config = partition::test::sharing({partition::test::replicated("gpu", 2)});
  const auto refused_of = [&] {
    const ChoiceNode machine(config);
    const auto pod = parse_waiting_pod(waiting_pod("p", annotations).dump());
    return make_pod_demands(pod.value(), machine.node(), machine.offers()).at(0).refused;
  };
  const auto refused = refused_of();
  ASSERT_EQ(refused.size(), 6U);
  EXPECT_EQ(refused.begin()->second,
            "annotation gpulet.io/min-limit-grade: GPU 0 does not limit GPU memory; the Pod demands audited");
  config.gpulet.fraction.on_exceeded = config::ExceededAction::kEvict;
  EXPECT_TRUE(refused_of().empty());
}

TEST(PodChoiceDemands, AreOfPodsThatWait) {
  auto pod = waiting_pod("p", json::object());
  EXPECT_TRUE(parse_waiting_pod(pod.dump()));
  pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  EXPECT_TRUE(parse_waiting_pod(pod.dump())) << "the kubelet may be admitting it";
  pod["status"]["startTime"] = "2026-01-01T00:00:00Z";
  EXPECT_FALSE(parse_waiting_pod(pod.dump())) << "admitted";
  pod["status"] = {{"phase", "Failed"}};
  EXPECT_FALSE(parse_waiting_pod(pod.dump()));
  EXPECT_FALSE(parse_waiting_pod(waiting_pod("q", json::object(), {{"cpu", "1"}}).dump()));
}

class PodChoicesTest : public k8s::ApiTest {
 protected:
  void release_source() override { choices_.reset(); }
  Result<std::vector<PodDemand>> list() {
    std::promise<Result<std::vector<PodDemand>>> answer;
    call_on_loop([&] {
      if (!choices_) {
        choices_.emplace(PodChoicePorts{.loop = loop_,
                                        .access = client_config(),
                                        .node = [this] { return std::optional(machine_.node()); },
                                        .offers = [this] { return machine_.offers(); }});
      }
      choices_->list_demands([&](auto demands) { answer.set_value(std::move(demands)); });
    });
    return answer.get_future().get();
  }
  const ChoiceNode machine_;
  std::optional<PodChoices> choices_;
};

TEST_F(PodChoicesTest, ListsTheWaitingPodsOfTheNode) {
  std::atomic<int> status = 200;
  start_server([&](const k8s::Received&) -> Reply {
    auto admitted = waiting_pod("old", {{"gpulet.io/gpu-index", "0"}});
    admitted["status"]["startTime"] = "2026-01-01T00:00:00Z";
    const json list = {{"items", {waiting_pod("a", {{"gpulet.io/gpu-index", "2"}}), admitted}}};
    return {.status = status, .body = list.dump()};
  });
  const auto demands = list();
  ASSERT_TRUE(demands) << demands.error().full_message();
  ASSERT_EQ(demands->size(), 1U);
  EXPECT_EQ(demands->at(0).pod_uid, "uid-a");
  EXPECT_EQ(demands->at(0).refused.size(), 2U);
  status = 403;
  const auto refused = list();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("list on pods"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent
