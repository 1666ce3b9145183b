#include "cluster/rights.h"

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const Right kEvents{.verb = "create", .resource = "events"};
const Right kStatus{.verb = "patch", .resource = "nodes/status", .name = "node-1"};
const Right kMap{.verb = "get", .resource = "configmaps", .name_space = "monitoring", .name = "counters"};
const Right kNodes{.verb = "create", .resource = "gpunodes", .group = "gpulet.io", .name = "node-1"};

// An API server that lets everything but what a test names.
class RightsTest : public ApiTest {
 protected:
  void let_go() override { review_.reset(); }
  void begin() {
    serve([this](const Received& request) {
      EXPECT_EQ(request.line(), "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
      if (away_ > 0) return --away_, Reply{503, R"({"message":"later"})"};
      const auto review = json::parse(request.body);
      EXPECT_EQ(review["kind"], "SelfSubjectAccessReview");
      const auto& wanted = review["spec"]["resourceAttributes"];
      std::lock_guard lock(mutex_);
      const bool allowed = !refused_.contains(wanted.dump());
      return Reply{201, json{{"status", {{"allowed", allowed}}}}.dump()};
    });
    call([&] {
      review_ = RightsReview::start(loop_, access(),
                                    [this](std::vector<Right> refused) {
                                      std::lock_guard lock(mutex_);
                                      answers_.push_back(std::move(refused));
                                    },
                                    {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  void refuse(const json& attributes) {
    std::lock_guard lock(mutex_);
    refused_.insert(attributes.dump());
  }
  std::vector<std::vector<Right>> answers(std::size_t count) {
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex_);
      return answers_.size() >= count;
    }));
    std::lock_guard lock(mutex_);
    return answers_;
  }

  std::mutex mutex_;
  std::set<std::string> refused_;
  std::atomic<int> away_ = 0;
  std::vector<std::vector<Right>> answers_;
  std::unique_ptr<RightsReview> review_;
};

TEST_F(RightsTest, WhatIsRefusedIsNamedInTheOrderAsked) {
  refuse({{"verb", "patch"}, {"resource", "nodes"}, {"subresource", "status"}, {"name", "node-1"}});
  refuse({{"verb", "get"}, {"resource", "configmaps"}, {"namespace", "monitoring"}, {"name", "counters"}});
  begin();
  call([&] { review_->ask({kMap, kEvents, kStatus, kNodes}); });
  EXPECT_EQ(answers(1), (std::vector<std::vector<Right>>{{kMap, kStatus}}));
  EXPECT_EQ(kMap.text(), "get on configmaps in monitoring");
  EXPECT_EQ(kStatus.text(), "patch on nodes/status");
  EXPECT_EQ(kNodes.text(), "create on gpunodes.gpulet.io");
}

TEST_F(RightsTest, AnApiServerThatIsAwayIsAskedAgain) {
  away_ = 3;
  begin();
  call([&] { review_->ask({kEvents}); });
  EXPECT_EQ(answers(1), (std::vector<std::vector<Right>>{{}}));
  EXPECT_EQ(server_->received().size(), 4U);
}

TEST_F(RightsTest, TheNewestQuestionIsTheOneThatIsAnswered) {
  refuse({{"verb", "create"}, {"resource", "events"}});
  begin();
  call([&] {
    review_->ask({kStatus, kMap, kEvents});
    review_->ask({kEvents, kStatus});
  });
  EXPECT_EQ(answers(1), (std::vector<std::vector<Right>>{{kEvents}}));
  call([&] { review_->ask({}); });
  EXPECT_EQ(answers(2).back(), std::vector<Right>{});
}

}  // namespace
}  // namespace gpulet::cluster
