#include "agent/observe/limit_status.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/observe/page_json.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;

MemoryLimitStatus audited_status() {
  return {.grade = "audited",
          .reasons = {"gpulet sets no memory limits in the driver"},
          .containers = {{.gpu = DeviceUuid("GPU-0"),
                          .pod = {"team", "a"},
                          .container = "main",
                          .limit = Bytes{8192},
                          .grade = "none",
                          .reasons = {"container main is privileged"}}}};
}

TEST(LimitStatus, IsReadAsWritten) {
  const json written = json::parse(limit_status_json(audited_status()).dump());
  EXPECT_EQ(parse_limit_status({{"memory_limit", written}}), audited_status());
  auto of_claims = audited_status();
  of_claims.grade.clear();
  of_claims.reasons.clear();
  EXPECT_EQ(parse_limit_status({{"memory_limit", json::parse(limit_status_json(of_claims).dump())}}),
            of_claims);
}

TEST(LimitStatus, OddMembersAreLeftOut) {
  for (const auto* const text : {"{}", "[]", R"({"memory_limit": 7})", R"({"memory_limit": {"grade": 1}})"})
    EXPECT_EQ(parse_limit_status(json::parse(text)), std::nullopt) << text;
  const auto status = parse_limit_status(json::parse(
      R"({"memory_limit": {"grade": "later", "reasons": [1, "x"], "containers": [3, {"grade": "mps"}]}})"));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->grade, "later");
  EXPECT_EQ(status->reasons, std::vector<std::string>{"x"});
  ASSERT_EQ(status->containers.size(), 1u);
  EXPECT_EQ(status->containers[0].limit, Bytes{});
}

TEST(LimitStatus, IsInTheNodePageWhereTheNodeWantsLimits) {
  NodePageInput input;
  EXPECT_EQ(node_json(input).find("memory_limit"), std::string::npos);
  input.memory_limit = audited_status();
  EXPECT_EQ(parse_limit_status(json::parse(node_json(input))), audited_status());
}

}  // namespace
}  // namespace gpulet::agent
