#include "agent/remediation/repair_outputs.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

class RebootRequesterTest : public k8s::ApiTest {
 protected:
  void release_source() override { requester_.reset(); }
  void start_requester(bool was_requested) {
    policy_.enabled = true;
    policy_.condition = false;
    policy_.sentinel_file = directory_ + "/reboot-required";
    start_server([](const auto&) { return Reply{200, "{}"}; });
    call_on_loop([&] { requester_.emplace(loop_, client_config(), was_requested); });
  }
  void set_request(const std::optional<std::string>& text) {
    call_on_loop([&] { requester_->set_request(policy_, text); });
  }
  bool was_sent(const std::string& part) {
    return k8s::eventually([&] {
      const auto all = server_->received_requests();
      return std::ranges::any_of(all,
                                 [&](const auto& one) { return one.body.find(part) != std::string::npos; });
    });
  }
  std::string sentinel() const { return read_file(policy_.sentinel_file).value_or(""); }

  repair::RebootRequestPolicy policy_;
  std::optional<RebootRequester> requester_;
};

TEST_F(RebootRequesterTest, ARequestIsSetAndTakenBack) {
  start_requester(false);
  set_request("GPU 3: XID 79");
  EXPECT_TRUE(was_sent(R"("gpulet.io/reboot-required":"true")"));
  EXPECT_EQ(sentinel(), std::string(kSentinelHead) + "\nGPU 3: XID 79\n");
  set_request(std::nullopt);
  EXPECT_TRUE(was_sent(R"("gpulet.io/reboot-required":null)"));
  EXPECT_EQ(sentinel(), "");
}

// An earlier agent may have ended before the annotation was sent.
TEST_F(RebootRequesterTest, AStandingRequestIsSentAgainByTheNextAgent) {
  start_requester(true);
  set_request("GPU 3: XID 79");
  EXPECT_TRUE(was_sent(R"("gpulet.io/reboot-required":"true")"));
  EXPECT_NE(sentinel(), "");
}

TEST_F(RebootRequesterTest, WhatAnEarlierAgentLeftIsTakenBack) {
  start_requester(true);
  ASSERT_TRUE(write_file_atomic(policy_.sentinel_file, std::string(kSentinelHead) + "\nGPU 3\n"));
  policy_.enabled = false;
  set_request(std::nullopt);
  EXPECT_TRUE(was_sent(R"("gpulet.io/reboot-required":null)"));
  EXPECT_EQ(sentinel(), "");
}

TEST_F(RebootRequesterTest, AFileOfOthersStays) {
  start_requester(true);
  ASSERT_TRUE(write_file_atomic(policy_.sentinel_file, "kernel\n"));
  set_request("GPU 3: XID 79");
  EXPECT_EQ(sentinel(), "kernel\n");
  set_request(std::nullopt);
  EXPECT_EQ(sentinel(), "kernel\n");
}

}  // namespace
}  // namespace gpulet::agent
