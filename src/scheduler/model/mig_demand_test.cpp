#include "scheduler/model/mig_demand.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "scheduler/model/gpu_node.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

const ResourceName kThird("nvidia.com/mig-3g.40gb");

TEST(MigDemand, SurvivesTheWayThere) {
  const MigDemand demand{
      "2026-01-31T12:00:00Z",
      {{kThird, 2, {"team/a", "team/b"}}, {ResourceName("nvidia.com/mig-1g.10gb.me"), 1, {}}}};
  EXPECT_EQ(decode_mig_demand(encode_mig_demand(demand)), demand);
  const MigOffer offer{
      {{kThird, 3, "GPU 0: 7 × 1g.10gb in use"}, {ResourceName("nvidia.com/mig-7g.80gb"), 0, ""}}};
  EXPECT_EQ(decode_mig_offer(encode_mig_offer(offer)), offer);
  EXPECT_EQ(offer.find(kThird)->count, 3u);
  EXPECT_EQ(offer.find(ResourceName("nvidia.com/gpu")), nullptr);
}

TEST(MigDemand, GoesThroughTheGpuNode) {
  GpuNode node;
  node.mig_offer = {{{kThird, 1, ""}}};
  const json object = {{"metadata", {{"name", "n1"}}},
                       {"spec", json::parse(encode_spec(node))},
                       {"status", {{"migDemand", encode_mig_demand({"1", {{kThird, 1, {"team/a"}}}})}}}};
  const auto read = decode_gpu_node(object.dump());
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(read->node.mig_offer, node.mig_offer);
  EXPECT_EQ(read->mig_demand.requests.at(0).pods, std::vector<std::string>{"team/a"});
  EXPECT_FALSE(json::parse(encode_spec(GpuNode{})).contains("migOnDemand")) << "most nodes cut nothing";
}

TEST(MigDemand, ALongReasonIsCutBetweenCharacters) {
  // The limit of 512 bytes is inside a character of two bytes.
  std::string why(511, 'x');
  why += "×";
  const MigOffer offer{{{kThird, 3, why}}};
  const auto encoded = encode_mig_offer(offer);
  EXPECT_EQ(decode_mig_offer(json::parse(encoded.dump())).find(kThird)->why, std::string(511, 'x'));
  auto longer = encoded;
  longer["resources"][0]["why"] = std::string(513, 'x');
  const auto read = decode_mig_offer(longer);
  ASSERT_NE(read.find(kThird), nullptr) << "the offer counts without its reason";
  EXPECT_EQ(read.find(kThird)->count, 3u);
  EXPECT_EQ(read.find(kThird)->why, "");
}

// Whoever may write the status may write anything.
TEST(MigDemand, MalformedIsNone) {
  json good = encode_mig_demand({"1", {{kThird, 1, {"team/a"}}}});
  ASSERT_EQ(decode_mig_demand(good).requests.size(), 1u);
  const auto with = [&](const char* field, json value) {
    json changed = good;
    changed["requests"][0][field] = std::move(value);
    return decode_mig_demand(changed).requests.size();
  };
  EXPECT_EQ(with("resource", "mig-3g.40gb"), 0u);
  EXPECT_EQ(with("resource", "nvidia.com/mig 3g"), 0u);
  EXPECT_EQ(with("resource", 3), 0u);
  EXPECT_EQ(with("count", 0), 0u);
  EXPECT_EQ(with("count", -1), 0u);
  EXPECT_EQ(with("count", kMaxDemandedDevices + 1), 0u);
  EXPECT_EQ(with("pods", "team/a"), 0u);
  json twice = good;
  twice["requests"].push_back(good["requests"][0]);
  EXPECT_TRUE(decode_mig_demand(twice).requests.empty());
  EXPECT_EQ(with("pods", json::array({"team/a\n"})), 0u);
  EXPECT_EQ(with("pods", json(std::vector<std::string>(kMaxDemandPods + 1, "team/a"))), 0u);
  EXPECT_EQ(with("more", 1), 1u) << "a later version's";
  for (const auto& value : {json(), json(1), json::array(), json{{"requests", 1}}})
    EXPECT_TRUE(decode_mig_demand(value).requests.empty());
  good["renewed"] = std::string(1000, 'x');
  EXPECT_TRUE(decode_mig_demand(good).requests.empty());
  EXPECT_TRUE(decode_mig_offer({{"resources", {{{"name", "x"}, {"count", 1}}}}}).resources.empty());
}

}  // namespace
}  // namespace gpulet::scheduler
