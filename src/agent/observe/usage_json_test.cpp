#include "agent/observe/usage_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

TEST(UsageJson, IsReadBack) {
  const PodName train{"team", "train"}, ended{"prod", "ended"};
  metrics::UsageAccounting accounts;
  const auto add = [&](const char* device, const PodName& pod, double gpu_part) {
    metrics::PodShares shares;
    shares.pods = {{{pod, {"main"}, {}}, {}, 40}};
    accounts.add_usage(DeviceUuid(device), {1500, 4s}, shares, {10s, true, gpu_part, {{pod, 0.5}}});
  };
  add("GPU-0", ended, 1);
  add("GPU-0", train, 1);
  add("MIG-1", train, 0.25);
  const auto text = usage_json(accounts, WallTime(1'760'000'000'123ms));
  EXPECT_EQ(
      text,
      R"({"since":1760000000123,"pods":[)"
      R"({"namespace":"team","pod":"train","gpus":0.625,"held":6.25,"busy":5.0,"idle":1.25,"joules":3.0}],)"
      R"("namespaces":[{"namespace":"prod","held":5.0,"busy":4.0,"idle":1.0,"joules":1.5},)"
      R"({"namespace":"team","held":6.25,"busy":5.0,"idle":1.25,"joules":3.0}]})"
      "\n");
  const auto read = parse_usage(json::parse(text));
  EXPECT_EQ(read.since, WallTime(1'760'000'000'123ms));
  ASSERT_EQ(read.pods.size(), 1u);
  EXPECT_EQ(read.pods[0].pod, "train");
  EXPECT_EQ(read.pods[0].gpus, 0.625);
  EXPECT_EQ(read.pods[0].idle, 1.25);
  ASSERT_EQ(read.namespaces.size(), 2u);
  EXPECT_EQ(read.namespaces[0].name_space, "prod");
  EXPECT_EQ(read.namespaces[0].joules, 1.5);
}

TEST(UsageJson, OddDocumentsShowNothing) {
  for (const char* text : {"{}", "[]", "3", R"({"since":-1,"pods":3,"namespaces":{}})",
                           R"({"since":"x","pods":[1,{"pod":""}],"namespaces":[{},"x",{"namespace":7}]})"}) {
    const auto read = parse_usage(json::parse(text));
    EXPECT_TRUE(read.pods.empty() && read.namespaces.empty()) << text;
    EXPECT_EQ(read.since, WallTime{}) << text;
  }
  const auto odd = parse_usage(json::parse(
      R"({"since":18446744073709551615,"namespaces":[{"namespace":"a","held":-5,"busy":"x","idle":null}]})"));
  EXPECT_EQ(odd.namespaces.at(0).held, 0);
}

TEST(UsageJson, WithoutAnAgentThereIsNone) {
  const auto fetched = fetch_usage("/nonexistent/agent.sock", 1s);
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gpulet::agent
