#include "agent/publish/gpu_node_access.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

constexpr const char* kDiscovery = "GET /apis/gpulet.io/v1alpha1";
constexpr const char* kReview = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

class GpuNodeAccessTest : public k8s::ApiTest {
 protected:
  void release_source() override { access_.reset(); }
  void start(Duration interval = 2ms) {
    start_server([this](const Received& request) {
      if (request.line() == kReview) {
        const bool gpu_nodes = request.body.find("gpunodes") != std::string::npos;
        return Reply{201, json{{"status", {{"allowed", granted_ || !gpu_nodes}}}}.dump()};
      }
      return Reply{discovery_status_, json{{"resources", {{{"name", resource_}}}}}.dump()};
    });
    call_on_loop([&] {
      access_.emplace(loop_, client_config(),
                      GpuNodeAccessPorts{.is_failing =
                                             [this] {
                                               ++asked_;
                                               return failing_.load();
                                             },
                                         .changed = [this] { ++changes_; }},
                      interval, k8s::SendTiming{10s, {1ms, 2ms}});
    });
  }
  bool can_publish() {
    bool can = false;
    call_on_loop([&] { can = access_->can_publish(); });
    return can;
  }
  bool looks_again(std::ptrdiff_t times) {
    const auto before = request_count(kDiscovery);
    return k8s::eventually([&] { return request_count(kDiscovery) >= before + times; });
  }

  std::atomic<int> discovery_status_ = 200;
  std::string resource_ = "gpunodes";
  std::atomic<bool> granted_ = true, failing_ = false;
  std::atomic<int> asked_ = 0, changes_ = 0;
  std::optional<GpuNodeAccess> access_;
};

TEST_F(GpuNodeAccessTest, WithoutTheCrdItCostsOneGetEachInterval) {
  discovery_status_ = 404;
  start();
  ASSERT_TRUE(looks_again(3));
  EXPECT_FALSE(can_publish());
  EXPECT_EQ(request_count(kReview), 0);
  EXPECT_EQ(changes_, 0);
}

TEST_F(GpuNodeAccessTest, AnotherKindOfTheGroupIsNotTheCrd) {
  resource_ = "gpuclaims";
  start();
  ASSERT_TRUE(looks_again(2));
  EXPECT_FALSE(can_publish());
}

TEST_F(GpuNodeAccessTest, ALaterInstallationTakesEffect) {
  discovery_status_ = 404;
  granted_ = false;
  start();
  ASSERT_TRUE(looks_again(2));
  discovery_status_ = 200;
  ASSERT_TRUE(k8s::eventually([&] { return request_count(kReview) >= 3; }));
  EXPECT_FALSE(can_publish()) << "the CRD alone is not enough";
  granted_ = true;
  ASSERT_TRUE(k8s::eventually([&] { return can_publish(); }));
  EXPECT_EQ(changes_, 1);
}

TEST_F(GpuNodeAccessTest, WhilePublishedNothingIsAskedUnlessWritesFail) {
  start();
  ASSERT_TRUE(k8s::eventually([&] { return can_publish(); }));
  const auto asked = server_->received_requests().size();
  ASSERT_TRUE(k8s::eventually([&] { return asked_ >= 3; }));
  EXPECT_EQ(server_->received_requests().size(), asked);
  discovery_status_ = 404;  // the scheduler is removed, and its CRD
  failing_ = true;
  ASSERT_TRUE(k8s::eventually([&] { return !can_publish(); }));
  EXPECT_EQ(changes_, 2);
}

TEST_F(GpuNodeAccessTest, HiddenDiscoveryLeavesTheDecisionToTheRights) {
  discovery_status_ = 403;
  start();
  ASSERT_TRUE(k8s::eventually([&] { return can_publish(); }));
}

// The interval is an hour: only the backoff of a failed request asks again.
TEST_F(GpuNodeAccessTest, AFailingApiServerIsAskedAgain) {
  discovery_status_ = 503;
  start(1h);
  ASSERT_TRUE(looks_again(3));
  EXPECT_FALSE(can_publish());
  discovery_status_ = 200;
  ASSERT_TRUE(k8s::eventually([&] { return can_publish(); }));
}

}  // namespace
}  // namespace gpulet::agent
