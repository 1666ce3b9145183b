#include "cluster/node_feature.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const std::string kList = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpu/nodefeatures";
const std::string kObject = kList + "/nvidia-features-for-node-1";

// An API server that keeps the object, and knows the Pod that makes it.
class NodeFeatureTest : public ApiTest {
 protected:
  void let_go() override { feature_.reset(); }
  void begin(const std::string& pod = "gpulet-abc") {
    serve([this](const Received& request) {
      std::lock_guard lock(mutex_);
      return answer(request);
    });
    call([&] {
      feature_ = NodeFeature::start(loop_, access(), {"gpu", pod}, [this] { ++settled_; },
                                    {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  Reply answer(const Received& request) {
    const auto line = request.line();
    if (line == "GET /api/v1/namespaces/gpu/pods/gpulet-abc") {
      if (!may_read_pods_) return Reply{403};
      return Reply{200, R"({"metadata": {"name": "gpulet-abc", "uid": "u-pod", "ownerReferences": [
          {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpulet", "uid": "u-set", "controller": true}]}})"};
    }
    if (!installed_) return Reply{404};
    if (line == "GET " + kObject) return there_.is_null() ? Reply{404} : Reply{200, there_.dump()};
    if (line == "POST " + kList) {
      if (!there_.is_null()) return Reply{409};
      store(json::parse(request.body));
      return Reply{201};
    }
    EXPECT_EQ(line, "PUT " + kObject);
    auto object = json::parse(request.body);
    if (object["metadata"]["resourceVersion"] != std::to_string(version_)) return Reply{409};
    store(std::move(object));
    return Reply{200};
  }
  void store(json object) {
    object["metadata"]["resourceVersion"] = std::to_string(++version_);
    if (object["spec"]["labels"].empty()) object["spec"].erase("labels");  // as Go does with empty maps
    there_ = std::move(object);
  }
  void set(std::map<std::string, std::string> labels) {
    call([&] { feature_->set(std::move(labels)); });
  }
  Delivery delivery() {
    Delivery delivery;
    call([&] { delivery = feature_->delivery(); });
    return delivery;
  }
  bool settled() {
    return eventually([&] { return !delivery().waiting; });
  }
  std::ptrdiff_t writes() {
    const auto all = server_->received();
    return std::ranges::count_if(all, [](const auto& one) { return !one.line().starts_with("GET "); });
  }
  json there() {
    std::lock_guard lock(mutex_);
    return there_;
  }

  std::mutex mutex_;
  bool may_read_pods_ = true, installed_ = true;
  int version_ = 6;
  json there_;
  std::atomic<int> settled_ = 0;
  std::unique_ptr<NodeFeature> feature_;
};

TEST_F(NodeFeatureTest, IsMadeAsNvidiasProgramMakesIt) {
  begin();
  set({{"nvidia.com/gpu.count", "8"}});
  ASSERT_TRUE(settled());
  EXPECT_EQ(there(), json::parse(R"({
      "apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
      "metadata": {
        "name": "nvidia-features-for-node-1", "resourceVersion": "7",
        "labels": {"nfd.node.kubernetes.io/node-name": "node-1"},
        "ownerReferences": [
          {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpulet", "uid": "u-set", "controller": true},
          {"apiVersion": "v1", "kind": "Pod", "name": "gpulet-abc", "uid": "u-pod"}]},
      "spec": {"features": {"attributes": {}, "flags": {}, "instances": {}},
               "labels": {"nvidia.com/gpu.count": "8"}}})"));
  EXPECT_TRUE(eventually([&] { return settled_ == 1; }));
}

TEST_F(NodeFeatureTest, IsWrittenOnlyWhereItDiffers) {
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  call([&] { feature_->look_again(); });
  ASSERT_TRUE(settled());
  EXPECT_EQ(writes(), 1);
  set({{"a", "2"}});
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["spec"]["labels"], json({{"a", "2"}}));
  EXPECT_EQ(writes(), 2);
  // Somebody else has been at it.
  {
    std::lock_guard lock(mutex_);
    auto other = there_;
    other["spec"]["labels"] = {{"b", "1"}};
    store(other);
  }
  call([&] { feature_->look_again(); });
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["spec"]["labels"], json({{"a", "2"}}));
}

TEST_F(NodeFeatureTest, AfterARunBeforeThisNothingIsWritten) {
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  call([&] {
    feature_ = NodeFeature::start(loop_, access(), {"gpu", "gpulet-abc"}, {},
                                  {.request_limit = 10s, .backoff = {1ms, 5ms}});
    feature_->set({{"a", "1"}});
  });
  ASSERT_TRUE(settled());
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeFeatureTest, WithoutLabelsItIsEmptyOrNotMade) {
  begin("");
  set({});
  ASSERT_TRUE(settled());
  EXPECT_TRUE(there().is_null());
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  EXPECT_FALSE(there()["metadata"].contains("ownerReferences")) << "there is no Pod to own it";
  set({});
  ASSERT_TRUE(settled());
  EXPECT_FALSE(there()["spec"].contains("labels"));
  EXPECT_EQ(writes(), 2);
}

TEST_F(NodeFeatureTest, WithoutTheRightToReadPodsItHasNoOwner) {
  may_read_pods_ = false;
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(settled());
  EXPECT_FALSE(there()["metadata"].contains("ownerReferences"));
}

TEST_F(NodeFeatureTest, WaitsForNfdToBeInstalled) {
  installed_ = false;
  begin();
  set({{"a", "1"}});
  ASSERT_TRUE(eventually([&] { return writes() >= 2; }));
  EXPECT_TRUE(delivery().waiting);
  EXPECT_EQ(delivery().told, 1u);
  {
    std::lock_guard lock(mutex_);
    installed_ = true;
  }
  ASSERT_TRUE(settled());
  EXPECT_EQ(there()["spec"]["labels"], json({{"a", "1"}}));
}

}  // namespace
}  // namespace gpulet::cluster
