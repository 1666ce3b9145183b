#include "agent/observe/claim_status.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/observe/page_json.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const WallTime kSince{std::chrono::duration_cast<WallTime::duration>(1'760'000'000s)};

ClaimStatus whole_status() {
  return {
      .offered = 8,
      .moves = {{DeviceUuid("GPU-0"), true, kSince, "is offered by claims when Pod team/a ends"},
                {DeviceUuid("GPU-1"), false, kSince, "is offered by the device plugin when claim b ends"}},
      .waiting = {{"team", "a", "u1", kSince, "the MPS control daemon is starting"}}};
}

TEST(ClaimStatus, IsReadBack) {
  const json written = json::parse(claim_status_json(whole_status()).dump());
  EXPECT_EQ(written["moves"][0], json::parse(R"({"gpu":"GPU-0","to":"claims","since":1760000000000,
                            "reason":"is offered by claims when Pod team/a ends"})"));
  EXPECT_EQ(written["waiting"][0],
            json::parse(R"({"namespace":"team","name":"a","uid":"u1","since":1760000000000,
                            "reason":"the MPS control daemon is starting"})"));
  EXPECT_EQ(parse_claim_status({{"claims", written}}), whole_status());
}

TEST(ClaimStatus, OddDocumentsShowNothing) {
  for (const char* text :
       {"{}", "[]", "3", R"({"claims":null})", R"({"claims":{"moves":3,"waiting":{}}})",
        R"({"claims":{"moves":[1,{"gpu":"","to":"claims"},{"gpu":"GPU-0","to":"x"}],"waiting":[{},"x"]}})"}) {
    EXPECT_TRUE(parse_claim_status(json::parse(text)).is_empty()) << text;
  }
  const auto late = parse_claim_status(json::parse(
      R"({"claims":{"waiting":[{"name":"a","since":18446744073709551615},{"name":"b","since":-1}]}})"));
  ASSERT_EQ(late.waiting.size(), 2u);
  for (const auto& claim : late.waiting) EXPECT_EQ(claim.since, kFirstWallTime);
}

TEST(ClaimStatus, IsPartOfTheNodePage) {
  NodePageInput input;
  EXPECT_FALSE(json::parse(node_json(input)).contains("claims"));
  input.claims = whole_status();
  EXPECT_EQ(parse_claim_status(json::parse(node_json(input))), input.claims);
}

TEST(ClaimStatus, WithoutAnAgentThereIsNone) {
  const auto fetched = fetch_claim_status("/nonexistent/agent.sock", 1s);
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gpulet::agent
