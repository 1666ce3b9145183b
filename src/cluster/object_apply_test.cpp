#include "cluster/object_apply.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kLine = "PATCH /apis/gpulet.io/v1alpha1/gpunodes/node-1?fieldManager=gpulet&force=true";

class ObjectApplyTest : public ApiTest {
 protected:
  void let_go() override { apply_.reset(); }
  void begin(Duration refresh = std::chrono::hours(1)) {
    serve([this](const Received& request) { return answer(request); });
    call([&] {
      apply_ = ObjectApply::start(loop_, access(),
                                  {"gpulet.io/v1alpha1", "GpuNode", "/apis/gpulet.io/v1alpha1/gpunodes"},
                                  {.sending = {10s, {1ms, 5ms}}, .refresh = refresh});
    });
  }
  Reply answer(const Received& request) {
    if (request.line() == "GET /api/v1/nodes/node-1") {
      return {200, R"({"metadata":{"uid":"uid-)" + std::to_string(uid_.load()) + "\"}}"};
    }
    if (refusals_.load() > 0) {
      --refusals_;
      return {404, R"({"message":"the server could not find the requested resource"})"};
    }
    return {201, "{}"};
  }
  std::vector<json> applied() {
    std::vector<json> bodies;
    for (const auto& request : server_->received()) {
      if (request.line() == kLine) bodies.push_back(json::parse(request.body));
    }
    return bodies;
  }
  void set(const std::string& spec) {
    call([&] { apply_->set(spec); });
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = apply_->delivery(); });
    return delivery;
  }

  std::unique_ptr<ObjectApply> apply_;
  std::atomic<int> uid_ = 1, refusals_ = 0;
};

TEST_F(ObjectApplyTest, TheObjectHasTheNodesNameAndGoesWithIt) {
  begin();
  set(R"({"gpus":8})");
  ASSERT_TRUE(eventually([&] { return delivery().taken == 1; }));
  const auto bodies = applied();
  ASSERT_EQ(bodies.size(), 1U);
  EXPECT_EQ(bodies[0],
            (json{{"apiVersion", "gpulet.io/v1alpha1"},
                  {"kind", "GpuNode"},
                  {"metadata",
                   {{"name", "node-1"},
                    {"ownerReferences",
                     {{{"apiVersion", "v1"}, {"kind", "Node"}, {"name", "node-1"}, {"uid", "uid-1"}}}}}},
                  {"spec", {{"gpus", 8}}}}));
  for (const auto& request : server_->received()) {
    if (request.line() == kLine) {
      EXPECT_NE(request.head.find("Content-Type: application/apply-patch+yaml"), std::string::npos);
    }
  }
}

TEST_F(ObjectApplyTest, WhatTheServerHasIsNotSentAgainAndTheNodeIsReadOnce) {
  begin();
  set("{}");
  ASSERT_TRUE(eventually([&] { return delivery().taken == 1; }));
  set("{}");
  set(R"({"a":1})");
  ASSERT_TRUE(eventually([&] { return delivery().taken == 2; }));
  EXPECT_FALSE(delivery().waiting);
  EXPECT_EQ(applied().size(), 2U);
  EXPECT_EQ(server_->received().size(), 3U);
}

TEST_F(ObjectApplyTest, AKindThatIsNotInstalledYetIsTriedAgain) {
  refusals_ = 3;
  begin();
  set("{}");
  ASSERT_TRUE(eventually([&] { return delivery().taken == 1; }));
  EXPECT_EQ(applied().size(), 4U);
  EXPECT_EQ(delivery().told, 1U);
}

TEST_F(ObjectApplyTest, ItIsWrittenAgainForANodeThatWasMadeAnew) {
  begin(20ms);
  set("{}");
  ASSERT_TRUE(eventually([&] { return delivery().taken >= 1; }));
  uid_ = 2;
  EXPECT_TRUE(eventually([&] {
    const auto bodies = applied();
    return bodies.back()["metadata"]["ownerReferences"][0]["uid"] == "uid-2";
  }));
}

}  // namespace
}  // namespace gpulet::cluster
