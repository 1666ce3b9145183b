#include "scheduler/core/preemption_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

constexpr const char* kWaiting =
    R"({"metadata":{"namespace":"a","name":"b","uid":"u"},"spec":{"priority":1000}})";

TEST(PreemptionJson, ReadsBothFormsInAnyCase) {
  const auto meta = parse_preemption_args(std::string(R"({"Pod":)") + kWaiting +
                                          R"(,"NodeNameToVictims":null,"NodeNameToMetaVictims":
         {"n1":{"Pods":[{"UID":"1"},{"UID":"2"}],"NumPDBViolations":3},"n2":null}})");
  ASSERT_TRUE(meta) << meta.error().full_message();
  EXPECT_EQ(meta->pod.pod_key(), "a/b");
  EXPECT_EQ(meta->proposed, (std::vector<NodeVictims>{{"n1", {"1", "2"}, 3}}));
  const auto whole = parse_preemption_args(
      R"({"nodenametovictims":{"n1":{"numPDBViolations":0,"pods":[
         {"spec":{"uid":"no"},"metadata":{"ownerReferences":[{"uid":"no"}],"uid":"\u0031"}}]}},"pod":)" +
      std::string(kWaiting) + "}");
  ASSERT_TRUE(whole) << whole.error().full_message();
  EXPECT_EQ(whole->proposed, (std::vector<NodeVictims>{{"n1", {"1"}, 0}}));
}

TEST(PreemptionJson, RefusesWhatIsNoCall) {
  const std::string pod = std::string(R"("pod":)") + kWaiting;
  for (const auto& [body, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "not valid JSON"},
           {"[]", "has no Pod"},
           {"{" + pod + "}", "neither NodeNameToMetaVictims nor NodeNameToVictims"},
           {"{" + pod + R"(,"nodenametovictims":[]})", "not an object by node"},
           {"{" + pod + R"(,"nodenametovictims":{"n":[]}})", "not an object of at most 100000 nodes"},
           {"{" + pod + R"(,"nodenametovictims":{"n":{"pods":{}}}})", "Pods of n is not a list"},
           {R"({"nodenametovictims":{}})", "has no Pod"},
           {R"({"pod":{},"nodenametovictims":{}})", "metadata.name is missing"},
           {"{" + pod + R"(,"nodenametovictims":{}} x)", "not valid JSON"},
           {"{" + pod + R"(,"nodenametovictims":)" + std::string(100, '[') + "}", "not an object by node"},
           {"{" + pod + R"(,"x":)" + std::string(100, '[') + "}", "nested deeper than 64"},
       }) {
    const auto args = parse_preemption_args(body);
    ASSERT_FALSE(args) << body;
    EXPECT_NE(args.error().full_message().find(reason), std::string::npos) << args.error().full_message();
  }
}

TEST(PreemptionJson, WritesTheResult) {
  const std::vector<NodeVictims> chosen = {{"n1", {"1", "2"}, 3}, {"n2", {"4"}, 0}};
  EXPECT_EQ(json::parse(preemption_result_json(chosen)), json::parse(R"({"NodeNameToMetaVictims":{
    "n1":{"Pods":[{"UID":"1"},{"UID":"2"}],"NumPDBViolations":3},
    "n2":{"Pods":[{"UID":"4"}],"NumPDBViolations":0}}})"));
  EXPECT_EQ(preemption_result_json({}), R"({"NodeNameToMetaVictims":{}})");
}

}  // namespace
}  // namespace gpulet::scheduler
