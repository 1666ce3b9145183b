#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands/commands.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

agent::NodeUsage node_usage() {
  return {.since = WallTime(1'760'000'000s),
          .pods = {{"team-a", "busy", 2, 7200, 7200, 0, 3'600'000},
                   {"team-b", "notebook", 0.25, 3600, 360, 3240, 180'000},
                   {"team-c", "mig", 0.125, 1800, 0, 0, 0}},
          .namespaces = {{"team-a", "", 0, 36'000, 34'200, 1800, 18'000'000},
                         {"team-b", "", 0, 3600, 360, 3240, 180'000},
                         {"team-c", "", 0, 1800, 0, 0, 0}}};
}

TEST(Usage, TheIdleAreFirst) {
  EXPECT_EQ(usage_report(node_usage(), {}),
            "GPU hours of Pods that hold GPUs:\n"
            "\n"
            "NAMESPACE  POD       GPUS  HELD H  USED H  IDLE H  IDLE  KWH\n"
            "team-b     notebook  0.25  1.00    0.10    0.90    90%   0.05\n"
            "team-a     busy      2.00  2.00    2.00    0.00    0%    1.00\n"
            "team-c     mig       0.12  0.50    0.00    0.00    0%    0.00\n"
            "\n"
            "GPU hours of namespaces since 2025-10-09T08:53:20Z, with Pods that have ended:\n"
            "\n"
            "NAMESPACE  POD  GPUS  HELD H  USED H  IDLE H  IDLE  KWH\n"
            "team-b     -    -     1.00    0.10    0.90    90%   0.05\n"
            "team-a     -    -     10.00   9.50    0.50    5%    5.00\n"
            "team-c     -    -     0.50    0.00    0.00    0%    0.00\n");
}

TEST(Usage, OfOneNamespace) {
  const auto rows = usage_report(node_usage(), {.name_space = "team-c", .output = "wide"});
  EXPECT_EQ(rows.find("team-a"), std::string::npos) << rows;
  EXPECT_NE(rows.find("UNKNOWN H"), std::string::npos) << rows;
  EXPECT_NE(rows.find("0.00  0.50\n"), std::string::npos) << "nothing measures its use:\n" << rows;
  UsageOptions scripts{.name_space = "team-b"};
  scripts.output.headers = false;
  EXPECT_EQ(usage_report(node_usage(), scripts),
            "team-b  notebook  0.25  1.00  0.10  0.90  90%  0.05\n"
            "team-b  -  -  1.00  0.10  0.90  90%  0.05\n");
}

TEST(Usage, OfNobody) {
  EXPECT_EQ(usage_report({}, {}), "no Pod has held a GPU\n");
  EXPECT_EQ(usage_report(node_usage(), {.name_space = "other"}),
            "no Pod has held a GPU since 2025-10-09T08:53:20Z\n");
  UsageOptions scripts;
  scripts.output.headers = false;
  EXPECT_EQ(usage_report({}, scripts), "");
}

TEST(Usage, AsADocument) {
  const auto document = nlohmann::json::parse(usage_report(node_usage(), {.output = "json"}));
  EXPECT_EQ(document["since"], "2025-10-09T08:53:20.000Z");
  EXPECT_EQ(document["pods"][0], nlohmann::json::parse(R"({"namespace":"team-b","pod":"notebook","gpus":0.25,
      "heldSeconds":3600.0,"usedSeconds":360.0,"idleSeconds":3240.0,"joules":180000.0})"));
  EXPECT_EQ(document["namespaces"][1], nlohmann::json::parse(R"({"namespace":"team-a","heldSeconds":36000.0,
      "usedSeconds":34200.0,"idleSeconds":1800.0,"joules":18000000.0})"));
  EXPECT_EQ(nlohmann::json::parse(usage_report({}, {.output = "json"}))["since"], nullptr);
}

}  // namespace
}  // namespace gpulet::cli
