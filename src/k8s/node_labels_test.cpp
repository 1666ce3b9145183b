#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "k8s/node_labels.h"
#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kReadLabels = "GET /api/v1/nodes/node-1";
constexpr const char* kWriteLabels = "PATCH /api/v1/nodes/node-1?fieldManager=gpulet-labels&force=true";

// An API server that stores a Node's labels and their field managers, as server-side apply does.
class NodeLabelsTest : public ApiTest {
 protected:
  using Labels = std::map<std::string, std::string>;

  void release_source() override { labels_.reset(); }
  void begin(std::function<std::optional<Reply>(const Received&)> first = {}) {
    start_server([this, first = std::move(first)](const Received& request) {
      std::lock_guard lock(mutex_);
      if (auto reply = first ? first(request) : std::nullopt) return *reply;
      if (request.line() == kReadLabels) {
        if (uid_.empty()) return Reply{404};
        EXPECT_NE(request.head.find("PartialObjectMetadata"), std::string::npos);
        return Reply{200, json{{"metadata", {{"uid", uid_}, {"labels", there_}}}}.dump()};
      }
      EXPECT_EQ(request.line(), kWriteLabels);
      EXPECT_NE(request.head.find("Content-Type: application/apply-patch+yaml\r\n"), std::string::npos);
      return apply_patch(json::parse(request.body));
    });
    call_on_loop([&] {
      labels_ = NodeLabels::start_labels(loop_, client_config(), [this] { ++settled_; },
                                         {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  Reply apply_patch(const json& set) {
    EXPECT_EQ(set["kind"], "Node");
    EXPECT_EQ(set["metadata"]["name"], "node-1");
    EXPECT_EQ(set["metadata"].size(), 3u) << set << ": nothing but labels is ours";
    if (set["metadata"]["uid"] != uid_) return Reply{409};
    const Labels wanted = set["metadata"]["labels"];
    for (const auto& key : ours_) {
      if (!wanted.contains(key)) there_.erase(key);
    }
    ours_.clear();
    for (const auto& [key, value] : wanted) {
      there_[key] = value;
      ours_.insert(key);
    }
    return Reply{200};
  }
  void set_and_wait(Labels labels) {
    call_on_loop([&] { labels_->set_labels(std::move(labels)); });
  }
  SendStatus status_now() {
    SendStatus delivery;
    call_on_loop([&] { delivery = labels_->label_status(); });
    return delivery;
  }
  bool wait_settled() {
    return eventually([&] { return !status_now().pending; });
  }
  Labels stored_labels() {
    std::lock_guard lock(mutex_);
    return there_;
  }

  std::mutex mutex_;
  std::string uid_ = "uid-1";
  Labels there_ = {{"kubernetes.io/hostname", "node-1"}, {"nvidia.com/gpu.present", "true"}};
  const Labels others_ = there_;
  std::set<std::string> ours_;
  std::atomic<int> settled_ = 0;
  std::unique_ptr<NodeLabels> labels_;
};

TEST_F(NodeLabelsTest, SetsAndRemovesOnlyItsOwnLabels) {
  begin();
  set_and_wait({{"nvidia.com/gpu.count", "8"}, {"nvidia.com/gpu.family", "hopper"}});
  ASSERT_TRUE(wait_settled());
  auto wanted = others_;
  wanted["nvidia.com/gpu.count"] = "8";
  wanted["nvidia.com/gpu.family"] = "hopper";
  EXPECT_EQ(stored_labels(), wanted);
  set_and_wait({{"nvidia.com/gpu.count", "7"}});
  ASSERT_TRUE(wait_settled());
  wanted.erase("nvidia.com/gpu.family");
  wanted["nvidia.com/gpu.count"] = "7";
  EXPECT_EQ(stored_labels(), wanted);
  set_and_wait({});
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels(), others_);
  EXPECT_TRUE(eventually([&] { return settled_ == 3; }));
}

TEST_F(NodeLabelsTest, RemovesObsoleteLabelsOfAnEarlierRun) {
  there_["nvidia.com/mig-1g.10gb.count"] = "7";
  ours_ = {"nvidia.com/mig-1g.10gb.count"};
  begin();
  set_and_wait({{"nvidia.com/gpu.count", "8"}});
  ASSERT_TRUE(wait_settled());
  auto wanted = others_;
  wanted["nvidia.com/gpu.count"] = "8";
  EXPECT_EQ(stored_labels(), wanted);
}

TEST_F(NodeLabelsTest, WritesNothingBeforeTheFirstCallOrTwice) {
  begin();
  EXPECT_FALSE(status_now().pending);
  EXPECT_TRUE(server_->received_requests().empty());
  for (int i = 0; i < 10; ++i) set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  for (int i = 0; i < 10; ++i) set_and_wait({{"a", "1"}});
  EXPECT_FALSE(status_now().pending);
  EXPECT_EQ(request_count(kWriteLabels), 1);
}

TEST_F(NodeLabelsTest, MissingNodeIsNotCreated) {
  uid_.clear();
  begin();
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(eventually([&] { return request_count(kReadLabels) >= 3; }));
  EXPECT_EQ(request_count(kWriteLabels), 0);
  EXPECT_TRUE(status_now().pending);
  EXPECT_EQ(status_now().warnings, 1u);
  {
    std::lock_guard lock(mutex_);
    uid_ = "uid-2";
  }
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels().at("a"), "1");
}

TEST_F(NodeLabelsTest, RecreatedNodeIsLabelledAgain) {
  begin();
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  call_on_loop([&] { labels_->recheck_labels(); });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(request_count(kWriteLabels), 1) << "it is still there";
  {
    std::lock_guard lock(mutex_);
    uid_ = "uid-2";
    there_ = others_;
    ours_.clear();
  }
  call_on_loop([&] { labels_->recheck_labels(); });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels().at("a"), "1");
  EXPECT_EQ(request_count(kWriteLabels), 2);
}

TEST_F(NodeLabelsTest, NodeReplacedMeanwhileIsReadAgain) {
  std::atomic<int> races = 2;
  begin([&](const Received& request) -> std::optional<Reply> {
    if (request.line() == kWriteLabels && races-- > 0) uid_ += "x";  // changed since it was read
    return std::nullopt;
  });
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels().at("a"), "1");
  EXPECT_EQ(status_now().warnings, 0u) << "no trouble";
}

TEST_F(NodeLabelsTest, ServerFailureIsLoggedOnce) {
  std::atomic<int> failures = 4;
  begin([&](const Received&) -> std::optional<Reply> {
    const int left = failures--;
    if (left <= 0) return std::nullopt;
    return left % 2 == 0 ? Reply{403, R"({"message": "nodes \"node-1\" is forbidden"})"}
                         : Reply{.act = Act::kClose};
  });
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(status_now().error, "");
  EXPECT_LE(status_now().warnings, 2u) << "one line for each kind of trouble";
}

TEST_F(NodeLabelsTest, TheNewestWins) {
  begin();
  call_on_loop([&] {
    for (int i = 0; i < 100; ++i) labels_->set_labels({{"a", std::to_string(i)}});
  });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels().at("a"), "99");
  EXPECT_EQ(request_count(kWriteLabels), 1);
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const std::string kList = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpu/nodefeatures";
const std::string kObject = kList + "/nvidia-features-for-node-1";

// An API server that stores the object and has the agent's Pod.
class NodeFeatureTest : public ApiTest {
 protected:
  void release_source() override { feature_.reset(); }
  void begin(const std::string& pod = "gpulet-abc") {
    start_server([this](const Received& request) {
      std::lock_guard lock(mutex_);
      return respond(request);
    });
    call_on_loop([&] {
      feature_ = NodeFeature::start_node_feature(loop_, client_config(), {"gpu", pod}, [this] { ++settled_; },
                                                 {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  Reply respond(const Received& request) {
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
  void set_and_wait(std::map<std::string, std::string> labels) {
    call_on_loop([&] { feature_->set_feature_labels(std::move(labels)); });
  }
  SendStatus status_now() {
    SendStatus delivery;
    call_on_loop([&] { delivery = feature_->feature_status(); });
    return delivery;
  }
  bool wait_settled() {
    return eventually([&] { return !status_now().pending; });
  }
  std::ptrdiff_t writes() {
    const auto all = server_->received_requests();
    return std::ranges::count_if(all, [](const auto& one) { return !one.line().starts_with("GET "); });
  }
  json stored_labels() {
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

TEST_F(NodeFeatureTest, MatchesTheObjectOfNvidiasProgram) {
  begin();
  set_and_wait({{"nvidia.com/gpu.count", "8"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels(), json::parse(R"({
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
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  call_on_loop([&] { feature_->recheck_feature(); });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(writes(), 1);
  set_and_wait({{"a", "2"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels()["spec"]["labels"], json({{"a", "2"}}));
  EXPECT_EQ(writes(), 2);
  // Another client changed it.
  {
    std::lock_guard lock(mutex_);
    auto other = there_;
    other["spec"]["labels"] = {{"b", "1"}};
    store(other);
  }
  call_on_loop([&] { feature_->recheck_feature(); });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels()["spec"]["labels"], json({{"a", "2"}}));
}

TEST_F(NodeFeatureTest, UnchangedObjectOfAnEarlierRunIsNotWritten) {
  begin();
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  call_on_loop([&] {
    feature_ = NodeFeature::start_node_feature(loop_, client_config(), {"gpu", "gpulet-abc"}, {},
                                               {.request_limit = 10s, .backoff = {1ms, 5ms}});
    feature_->set_feature_labels({{"a", "1"}});
  });
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(writes(), 1);
}

TEST_F(NodeFeatureTest, WithoutLabelsItIsEmptyOrNotCreated) {
  begin("");
  set_and_wait({});
  ASSERT_TRUE(wait_settled());
  EXPECT_TRUE(stored_labels().is_null());
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_FALSE(stored_labels()["metadata"].contains("ownerReferences")) << "there is no Pod to own it";
  set_and_wait({});
  ASSERT_TRUE(wait_settled());
  EXPECT_FALSE(stored_labels()["spec"].contains("labels"));
  EXPECT_EQ(writes(), 2);
}

TEST_F(NodeFeatureTest, WithoutPermissionToReadPodsItHasNoOwner) {
  may_read_pods_ = false;
  begin();
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(wait_settled());
  EXPECT_FALSE(stored_labels()["metadata"].contains("ownerReferences"));
}

TEST_F(NodeFeatureTest, WaitsForNfdToBeInstalled) {
  installed_ = false;
  begin();
  set_and_wait({{"a", "1"}});
  ASSERT_TRUE(eventually([&] { return writes() >= 2; }));
  EXPECT_TRUE(status_now().pending);
  EXPECT_EQ(status_now().warnings, 1u);
  {
    std::lock_guard lock(mutex_);
    installed_ = true;
  }
  ASSERT_TRUE(wait_settled());
  EXPECT_EQ(stored_labels()["spec"]["labels"], json({{"a", "1"}}));
}

}  // namespace
}  // namespace gpulet::k8s
