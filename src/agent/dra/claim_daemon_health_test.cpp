#include "agent/dra/claim_daemon_health.h"

#include <gtest/gtest.h>

#include <set>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

using Unserved = std::map<DeviceUuid, std::string>;

const std::string kStopped =
    "the MPS control daemon of claim team/a does not serve (it has ended): if it ended, running containers "
    "have lost their CUDA contexts";

class ClaimDaemonHealthTest : public testing::Test {
 protected:
  ClaimDaemonHealthTest() {
    records_["u1"] = {.uid = "u1",
                      .name_space = "team",
                      .name = "a",
                      .devices = {{"gpu", "node-1", "gpu-0", DeviceUuid("GPU-0")},
                                  {"gpu", "node-1", "gpu-1", DeviceUuid("GPU-1")}},
                      .daemons = {{.devices = {DeviceUuid("GPU-0"), DeviceUuid("GPU-1")}}}};
    records_["u2"] = {.uid = "u2",
                      .name_space = "team",
                      .name = "plain",
                      .devices = {{"gpu", "node-1", "gpu-2", DeviceUuid("GPU-2")}}};
  }
  std::vector<DaemonNotice> check(Duration after = 0s) {
    return health_.check_claims(records_, now_ += after);
  }

  Time now_{1h};
  std::map<std::string, dra::ClaimRecord> records_;
  std::set<std::string> serving_ = {"claims/u1"}, preparing_;
  ClaimDaemonHealth health_{
      {.check_daemon = [this](const std::string& name) -> Status {
         if (serving_.contains(name)) return {};
         return fail(Code::kUnavailable, "it has ended");
       },
       .is_being_prepared = [this](const std::string& uid) { return preparing_.contains(uid); }}};
};

TEST_F(ClaimDaemonHealthTest, NoticesAStopAndTheReturnOnce) {
  EXPECT_TRUE(check().empty());
  EXPECT_TRUE(health_.unserved_devices().empty());
  serving_.clear();
  EXPECT_EQ(check(), (std::vector<DaemonNotice>{{"team", "a", "u1", true, kStopped}}));
  EXPECT_EQ(health_.unserved_devices(),
            (Unserved{{DeviceUuid("GPU-0"), kStopped}, {DeviceUuid("GPU-1"), kStopped}}));
  EXPECT_TRUE(check(1min).empty());
  EXPECT_EQ(health_.unserved_devices().size(), 2u);
  serving_ = {"claims/u1"};
  EXPECT_EQ(check(),
            (std::vector<DaemonNotice>{{"team", "a", "u1", false,
                                        "the MPS control daemon of claim team/a serves again: restart "
                                        "containers that ran before"}}));
  EXPECT_TRUE(health_.unserved_devices().empty());
}

TEST_F(ClaimDaemonHealthTest, AClaimThatIsBeingPreparedWaitsForItsDaemon) {
  serving_.clear();
  preparing_ = {"u1"};
  EXPECT_TRUE(check().empty());
  EXPECT_TRUE(check(1min).empty());
  EXPECT_TRUE(health_.unserved_devices().empty());
}

// What an earlier agent has started is adopted within milliseconds, or started again.
TEST_F(ClaimDaemonHealthTest, ADaemonHasTimeToStart) {
  serving_.clear();
  EXPECT_TRUE(check().empty());
  EXPECT_TRUE(check(kDaemonStartLimit - 1s).empty());
  EXPECT_TRUE(health_.unserved_devices().empty());
  EXPECT_EQ(check(1s).size(), 1u);
  EXPECT_EQ(health_.unserved_devices().size(), 2u);
}

TEST_F(ClaimDaemonHealthTest, AClaimThatEndsTakesItsDaemonAlong) {
  check();
  serving_.clear();
  check();
  records_.erase("u1");
  EXPECT_TRUE(check().empty());
  EXPECT_TRUE(health_.unserved_devices().empty());
}

TEST(ReservedPods, AreThePodsOfThatClaim) {
  const std::string claim =
      R"({"metadata":{"namespace":"team","name":"a","uid":"u1"},"status":{"reservedFor":[
    {"resource":"pods","name":"p","uid":"pu"},{"apiGroup":"x","resource":"jobs","name":"j","uid":"ju"},7]}})";
  EXPECT_EQ(reserved_pods(claim, "u1"), (std::vector<PodRef>{{"team", "p", "pu"}}));
  EXPECT_TRUE(reserved_pods(claim, "u2").empty()) << "another claim of the same name";
  for (const char* text :
       {"", "[]", R"({"metadata":{"uid":"u1"}})", R"({"metadata":{"uid":"u1"},"status":{"reservedFor":3}})"})
    EXPECT_TRUE(reserved_pods(text, "u1").empty()) << text;
}

}  // namespace
}  // namespace gpulet::agent
