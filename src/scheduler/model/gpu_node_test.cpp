#include "scheduler/model/gpu_node.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

std::string object_of(const std::string& spec, const std::string& name = "n1") {
  return R"({"apiVersion":"gpulet.io/v1alpha1","kind":"GpuNode","metadata":{"name":")" + name +
         R"(","resourceVersion":"7"},"spec":)" + spec + "}";
}

topology::Pair any_pair() {
  return {.pcie = *rc::gen::element(inventory::PcieDistance::kSystem, inventory::PcieDistance::kNode,
                                    inventory::PcieDistance::kSingle),
          .direct_nvlinks = *rc::gen::inRange(0U, 3U),
          .switched_nvlinks = *rc::gen::inRange(0U, 2U) * 18};
}

GpuNode any_node() {
  const auto size = *rc::gen::inRange<std::size_t>(0, 17);
  GpuNode node = test_node(size, 4, *rc::gen::inRange(1U, 5U));
  node.cuda_version = *rc::gen::inRange(11U, 14U) * 1000 + *rc::gen::inRange(0U, 9U) * 10;
  node.rules.policy = *rc::gen::element(placement::Policy::kBestEffort, placement::Policy::kTightest);
  node.rules.shared =
      *rc::gen::element(placement::SharedPolicy::kDistributed, placement::SharedPolicy::kPacked);
  node.rules.load = *rc::gen::element(placement::LoadPolicy::kIgnore, placement::LoadPolicy::kPrefer,
                                      placement::LoadPolicy::kStrict);
  if (*rc::gen::inRange(0, 2) == 0) node.no_compute_limit = "gpulet.mps.manage is false";
  node.resources[0].shares_on = *rc::gen::element(placement::SharesOn::kAnyGpu, placement::SharesOn::kOneGpu,
                                                  placement::SharesOn::kDifferentGpus);
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = 0; b < a; ++b) node.pairs[a * size + b] = node.pairs[b * size + a] = any_pair();
    auto& gpu = node.gpus[a];
    if (*rc::gen::inRange(0, 4) == 0) gpu.numa.reset();
    if (*rc::gen::inRange(0, 4) == 0) quarantine_gpu(node, a, "XID 79: GPU has fallen off the bus");
    if (*rc::gen::inRange(0, 4) == 0) gpu.load = "00ff00ff00ff00ff00";
    gpu.now = placement::make_gpu_load(*rc::gen::inRange(0, 101), *rc::gen::inRange(0, 101),
                                       *rc::gen::inRange(0, 4) == 0);
    auto& unit = node.resources[0].units[a];
    if (*rc::gen::inRange(0, 3) == 0) unit.profile = "1g.10gb", unit.memory_mib = 9856, unit.slice = 3;
    if (*rc::gen::inRange(0, 3) == 0) unit.share_mib = 20480;
    if (*rc::gen::inRange(0, 2) == 0) hold_units(node, "team/pod-" + std::to_string(a), {a});
    if (*rc::gen::inRange(0, 2) == 0) {
      node.controllers.push_back({.controller = "team/service-" + std::to_string(a),
                                  .curve = flat_curve(*rc::gen::inRange(0U, 256U), 20),
                                  .hours = *rc::gen::inRange(24U, 999U),
                                  .last_hour = *rc::gen::inRange(490'000, 500'000)});
    }
  }
  return node;
}

RC_GTEST_PROP(GpuNode, RoundTrips, ()) {
  const GpuNode node = any_node();
  const auto decoded = decode_gpu_node(object_of(encode_spec(node)));
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(decoded->node == node);
  RC_ASSERT(decoded->name == "n1");
  RC_ASSERT(decoded->resource_version == "7");
  RC_ASSERT(encode_spec(decoded->node) == encode_spec(node));
}

TEST(GpuNode, HgxTakesAboutAKilobyte) {
  const auto spec = encode_spec(test_node(8, 8));
  EXPECT_LT(spec.size(), 1200U) << spec;
}

TEST(GpuNode, SummaryCountsStates) {
  GpuNode node = test_node(8, 4);
  quarantine_gpu(node, 2, "XID 79: GPU has fallen off the bus");
  hold_units(node, "a/b", {0, 1});
  EXPECT_EQ(gpu_node_summary(node), "8 GPUs, 1 quarantined, 2 held");
}

TEST(GpuNode, IgnoresUnknownFieldsAndQuarantinesUnknownStates) {
  auto spec = json::parse(encode_spec(test_node(2, 2)));
  spec["later"] = {{"a", 1}};
  spec["gpus"][0]["state"] = "resting";
  const auto decoded = decode_gpu_node(object_of(spec.dump()));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().full_message();
  EXPECT_FALSE(health::is_allocatable(decoded->node.gpus[0].state));
  EXPECT_TRUE(health::is_allocatable(decoded->node.gpus[1].state));
}

struct Bad {
  const char* pointer;
  json value;
  const char* error;
};

class BadGpuNode : public testing::TestWithParam<Bad> {};

TEST_P(BadGpuNode, IsRejectedWithTheField) {
  GpuNode node = test_node(2, 2);
  hold_units(node, "a/b", {0});
  auto spec = json::parse(encode_spec(node));
  spec[json::json_pointer(GetParam().pointer)] = GetParam().value;
  const auto decoded = decode_gpu_node(object_of(spec.dump()));
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().full_message(), std::string("gpunode/n1: ") + GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadGpuNode,
    testing::Values(
        Bad{"/version", 9, "spec.version is 9, expected 1"},
        Bad{"/cuda", "twelve", "spec.cuda is not a version such as 12.8"},
        Bad{"/placement", "best", "spec.placement is not a value that this version supports"},
        Bad{"/gpus/0/model", 3, "spec.gpus[0].model is not the index of a model"},
        Bad{"/gpus/1/numa", -2, "spec.gpus[1].numa is not a whole number up to 1048576"},
        Bad{"/links/pairs", "AA", "spec.links has 2 pairs, expected 1 of 2 GPUs"},
        Bad{"/links/pairs", "B", "spec.links refers to a link class that is not in the list"},
        Bad{"/links/classes/0", "FAST", "spec.links 'FAST' is not a link class such as SYS or PIX+NV4"},
        Bad{"/resources/0/name", "", "spec.resources[0].name is missing"},
        Bad{"/resources/0/units/0/gpu", 2, "spec.resources[0].units[0].gpu is not the index of a GPU"},
        Bad{"/resources/0/units/0/shares", 0, "spec.resources[0].units[0].shares is 0"},
        Bad{"/resources/0/units/0/out", 2, "spec.resources[0].units[0].out exceeds its shares"},
        Bad{"/holders/0/holds/0", json::array({0, 5, 1}),
            "spec.holders[0].holds[0] refers to nothing in spec.resources"},
        Bad{"/controllers", json::array({{{"load", "000000000000000000"}}}),
            "spec.controllers[0].name is missing"},
        Bad{"/controllers", json::array({{{"name", "a/b"}, {"load", "0"}}}),
            "spec.controllers[0].load is not a load curve: a load curve is 18 lower-case hexadecimal digits, "
            "found '0'"},
        Bad{"/controllers", json::array({{{"name", "a/b"}, {"lastHour", -1}}}),
            "spec.controllers[0].lastHour is not a whole number up to 16777216"},
        Bad{"/controllers", json(std::vector<json>(kMaxControllers + 1)),
            "spec.controllers has more than 32 elements"},
        Bad{"/gpus", 4, "spec.gpus is not a list"}));

// The figure of docs/scheduling.md.
TEST(GpuNode, ARememberedControllerTakesUnderAHundredBytes) {
  GpuNode node = test_node(8, 8);
  const auto before = encode_spec(node).size();
  for (std::size_t i = 0; i < kMaxControllers; ++i) {
    node.controllers.push_back({.controller = "production/inference-" + std::to_string(10 + i),
                                .curve = flat_curve(50, 20),
                                .hours = 168,
                                .last_hour = 495'000});
  }
  EXPECT_LT((encode_spec(node).size() - before) / kMaxControllers, 100U);
}

TEST(GpuNode, StatusRoundTrips) {
  const ControllerLoad load{
      .controller = "team/web", .curve = flat_curve(50, 20), .hours = 168, .last_hour = 495'000};
  const auto with_status = [](const std::string& status) {
    return R"({"metadata":{"name":"n1"},"spec":)" + encode_spec(test_node(1, 1)) + R"(,"status":)" + status +
           "}";
  };
  const auto decoded = decode_gpu_node(with_status(encode_status({load})));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().full_message();
  EXPECT_EQ(decoded->known_elsewhere, std::vector{load});
  EXPECT_TRUE(decoded->node.controllers.empty());
  const auto bad = decode_gpu_node(with_status(R"({"controllers":[{"name":"a/b","load":"z"}]})"));
  ASSERT_TRUE(bad.has_value()) << "the node is not to suffer for it";
  EXPECT_TRUE(bad->known_elsewhere.empty());
}

TEST(GpuNode, RejectsOtherObjects) {
  for (const char* text :
       {"", "[]", "{", "7", R"({"metadata":{}})", R"({"metadata":{"name":"n"},"spec":[]})"}) {
    EXPECT_FALSE(decode_gpu_node(text).has_value()) << text;
  }
  EXPECT_FALSE(decode_gpu_node(std::string(kMaxGpuNodeBytes + 1, ' ')).has_value());
  EXPECT_FALSE(decode_gpu_node(std::string(100'000, '[')).has_value());
}

TEST(GpuNode, DropsWhatExceedsTheLimits) {
  GpuNode node = test_node(16, 4, 1000);
  hold_units(node, "a/b", {15}, 900);
  const auto decoded = decode_gpu_node(object_of(encode_spec(node)));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().full_message();
  EXPECT_EQ(decoded->node.gpus.size(), 16U);
  GpuNode crowded = test_node(1, 1);
  for (std::size_t i = 0; i <= kMaxControllers; ++i)
    crowded.controllers.push_back({.controller = "a/" + std::to_string(i), .curve = {}});
  crowded.controllers[1].controller.assign(3 * kMaxTextBytes, 'a');
  const auto fitting = decode_gpu_node(object_of(encode_spec(crowded)));
  ASSERT_TRUE(fitting.has_value()) << fitting.error().full_message();
  EXPECT_EQ(fitting->node.controllers.size(), kMaxControllers);
  EXPECT_TRUE(decode_gpu_node(object_of(encode_spec(test_node(65, 4)))).has_value());
}

}  // namespace
}  // namespace gpulet::scheduler
