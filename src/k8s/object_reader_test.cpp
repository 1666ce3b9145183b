#include <atomic>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "k8s/object_reader.h"
#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class ObjectReaderTest : public ApiTest {
 protected:
  void release_source() override { reader_.reset(); }
  void begin(TestApiServer::Handler handler, Duration limit = 10s) {
    start_server(std::move(handler));
    call_on_loop([&] { reader_ = ObjectReader::start_reader(loop_, client_config(), limit); });
  }
  template <class Value>
  Result<Value> read_on_loop(const std::function<void(std::function<void(Result<Value>)>)>& how) {
    auto answer = std::make_shared<std::promise<Result<Value>>>();
    auto told = answer->get_future();
    call_on_loop([&] { how([answer](Result<Value> value) { answer->set_value(std::move(value)); }); });
    return told.get();
  }
  Result<std::optional<PodMetadata>> read_pod_on_loop(const std::string& name) {
    return read_on_loop<std::optional<PodMetadata>>(
        [&](auto done) { reader_->read_pod("team-a", name, std::move(done)); });
  }
  Result<Annotations> annotations(const std::string& name) {
    return read_on_loop<Annotations>(
        [&](auto done) { reader_->read_namespace_annotations(name, std::move(done)); });
  }
  Result<std::size_t> count_on_loop(const std::string& selector) {
    return read_on_loop<std::size_t>([&](auto done) { reader_->count_nodes(selector, std::move(done)); });
  }
  static json pod_object(json metadata, const std::string& node = "node-1") {
    metadata["namespace"] = "team-a";
    metadata["name"] = "train";
    metadata["uid"] = "u-1";
    return {{"kind", "Pod"}, {"metadata", metadata}, {"spec", {{"nodeName", node}}}};
  }

  std::unique_ptr<ObjectReader> reader_;
};

TEST_F(ObjectReaderTest, ReadsAPod) {
  const json metadata = {
      {"ownerReferences", {{{"kind", "Other"}}, {{"kind", "ReplicaSet"}, {"controller", true}}}},
      {"annotations", {{"a", "b"}, {"odd", 3}}},
      {"labels", {{"app", "bert"}}},
      {"creationTimestamp", "2026-01-05T00:00:01Z"}};
  begin([&](const Received& request) {
    EXPECT_EQ(request.line(), "GET /api/v1/namespaces/team-a/pods/train");
    auto pod = pod_object(metadata);
    pod["spec"]["priority"] = -7;
    return Reply{200, pod.dump()};
  });
  const auto facts = read_pod_on_loop("train");
  ASSERT_TRUE(facts && *facts) << (facts ? "" : facts.error().full_message());
  EXPECT_EQ((*facts)->pod, (PodRef{"team-a", "train", "u-1"}));
  EXPECT_EQ((*facts)->owner, "ReplicaSet");
  EXPECT_FALSE((*facts)->mirror);
  EXPECT_FALSE((*facts)->terminating);
  EXPECT_EQ((*facts)->annotations, (Annotations{{"a", "b"}, {"odd", ""}}));
  EXPECT_EQ((*facts)->labels, (std::map<std::string, std::string>{{"app", "bert"}}));
  EXPECT_EQ((*facts)->priority, -7);
  EXPECT_EQ((*facts)->created, 1'767'571'201);
}

TEST_F(ObjectReaderTest, ReadsContainersWithTheirLimitsAndIds) {
  begin([&](const Received&) {
    auto pod = pod_object({});
    pod["spec"]["initContainers"] = json::array({{{"name", "fetch"}}});
    pod["spec"]["initContainers"].push_back({{"name", "proxy"}, {"restartPolicy", "Always"}});
    pod["spec"]["containers"] =
        json::array({{{"name", "main"}, {"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}},
                     {{"name", "side"}, {"resources", 7}, {"securityContext", {{"privileged", true}}}},
                     "odd"});
    pod["status"]["containerStatuses"] =
        json::array({{{"name", "main"}, {"containerID", "containerd://4f1c"}}, {{"name", "side"}}});
    return Reply{200, pod.dump()};
  });
  const auto facts = read_pod_on_loop("train");
  ASSERT_TRUE(facts && *facts);
  const auto& containers = (*facts)->containers;
  ASSERT_EQ(containers.size(), 5u);
  EXPECT_EQ(containers[0].name, "fetch");
  EXPECT_TRUE(containers[0].is_init);
  EXPECT_FALSE(containers[0].is_sidecar);
  EXPECT_TRUE(containers[1].is_sidecar);
  EXPECT_FALSE(containers[2].is_sidecar);
  EXPECT_EQ(containers[2].name, "main");
  EXPECT_FALSE(containers[2].is_init);
  EXPECT_EQ(containers[2].limits, (std::map<std::string, std::string>{{"nvidia.com/gpu", "1"}}));
  EXPECT_EQ(containers[2].id, "containerd://4f1c");
  EXPECT_EQ(containers[3].id, "");
  EXPECT_TRUE(containers[3].limits.empty());
  EXPECT_EQ((*facts)->access.at(2).name, "main");
  EXPECT_FALSE((*facts)->access.at(2).is_privileged);
  EXPECT_TRUE((*facts)->access.at(3).is_privileged);
}

TEST_F(ObjectReaderTest, ReadsTheClaimsOfContainers) {
  begin([&](const Received&) {
    auto pod = pod_object({});
    pod["spec"]["resourceClaims"] = nlohmann::json::parse(
        R"([{"name":"own","resourceClaimName":"shared"},{"name":"made","resourceClaimTemplateName":"t"},
            {"name":"late","resourceClaimTemplateName":"t"}])");
    pod["spec"]["containers"] = nlohmann::json::parse(
        R"([{"name":"main","resources":{"claims":[{"name":"own","request":"gpus"},{"name":"made"},
             {"name":"late"},{"name":"other"},3]}},{"name":"side"},{"name":"odd","resources":{"claims":3}}])");
    pod["status"]["resourceClaimStatuses"] =
        nlohmann::json::parse(R"([{"name":"made","resourceClaimName":"train-made-x7"},{"name":"late"}])");
    pod["status"]["extendedResourceClaimStatus"] = nlohmann::json::parse(
        R"({"resourceClaimName":"train-ext","requestMappings":[
             {"containerName":"side","resourceName":"nvidia.com/gpu","requestName":"r-0"}]})");
    return Reply{200, pod.dump()};
  });
  const auto facts = read_pod_on_loop("train");
  ASSERT_TRUE(facts && *facts);
  const auto& containers = (*facts)->containers;
  ASSERT_EQ(containers.size(), 3u);
  using Claims = std::vector<ContainerClaim>;
  EXPECT_EQ(containers[0].claims, (Claims{{"shared", "gpus", true}, {"train-made-x7", ""}}));
  EXPECT_EQ(containers[1].claims, (Claims{{"train-ext", "r-0"}}));
  EXPECT_TRUE(containers[2].claims.empty());
}

TEST_F(ObjectReaderTest, AtMostSoManyContainersAreRead) {
  begin([&](const Received&) {
    auto pod = pod_object({});
    for (std::size_t i = 0; i <= kMaxPodContainers; ++i)
      pod["spec"]["containers"].push_back({{"name", "c" + std::to_string(i)}});
    return Reply{200, pod.dump()};
  });
  const auto facts = read_pod_on_loop("train");
  ASSERT_TRUE(facts && *facts);
  EXPECT_EQ((*facts)->containers.size(), kMaxPodContainers);
}

TEST_F(ObjectReaderTest, ReadsStaticAndTerminatingPods) {
  begin([&](const Received&) {
    return Reply{200, pod_object({{"annotations", {{"kubernetes.io/config.mirror", "x"}}},
                                  {"deletionTimestamp", "2026-01-01T00:00:00Z"}})
                          .dump()};
  });
  const auto facts = read_pod_on_loop("train");
  ASSERT_TRUE(facts && *facts);
  EXPECT_TRUE((*facts)->mirror);
  EXPECT_TRUE((*facts)->terminating);
  EXPECT_EQ((*facts)->priority, 0);
  EXPECT_EQ((*facts)->created, 0) << "unknown";
  EXPECT_EQ((*facts)->owner, "");
}

TEST_F(ObjectReaderTest, MissingOrForeignPodIsNone) {
  begin([&](const Received& request) {
    if (request.line().ends_with("/gone")) return Reply{404, "{}"};
    return Reply{200, pod_object({}, "node-2").dump()};
  });
  for (const auto* name : {"gone", "train"}) {
    const auto facts = read_pod_on_loop(name);
    ASSERT_TRUE(facts);
    EXPECT_FALSE(*facts);
  }
}

TEST_F(ObjectReaderTest, MissingPermissionIsNamed) {
  begin([&](const Received& request) {
    if (request.line().find("/pods/") != std::string::npos) return Reply{200, "[]"};
    return Reply{403, R"({"message": "no"})"};
  });
  const auto refused = annotations("team-a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.error().full_message(),
            "get on namespaces: permission denied: the API server answered 403: no");
  EXPECT_EQ(count_on_loop("a").error().code(), Code::kPermissionDenied);
  EXPECT_EQ(read_pod_on_loop("train").error().code(), Code::kIo);  // not a Pod
}

TEST_F(ObjectReaderTest, ReadsNamespaceAnnotations) {
  begin([&](const Received& request) {
    if (request.line() == "GET /api/v1/namespaces/gone") return Reply{404, "{}"};
    EXPECT_NE(request.head.find("as=PartialObjectMetadata"), std::string::npos);
    return Reply{200, R"({"metadata": {"annotations": {"gpulet.io/on-gpu-fault": "stay"}}})"};
  });
  EXPECT_EQ(*annotations("team-a"), (Annotations{{"gpulet.io/on-gpu-fault", "stay"}}));
  EXPECT_EQ(*annotations("gone"), Annotations());
}

TEST_F(ObjectReaderTest, CountsNodesByPages) {
  begin([&](const Received& request) {
    EXPECT_NE(request.head.find("Accept: application/json;as=Table"), std::string::npos);
    EXPECT_NE(
        request.line().find("includeObject=None&labelSelector=gpulet.io%2Fgpu-health%20in%20%28lost%29"),
        std::string::npos)
        << request.line();
    const bool second = request.line().ends_with("&continue=a%3D");
    return Reply{200, second ? R"({"kind": "Table", "metadata": {}, "rows": [{}]})"
                             : R"({"kind": "Table", "metadata": {"continue": "a="}, "rows": [{}, {}]})"};
  });
  EXPECT_EQ(*count_on_loop("gpulet.io/gpu-health in (lost)"), 3u);
  EXPECT_EQ(server_->received_requests().size(), 2u);
}

TEST_F(ObjectReaderTest, ServerWithoutTablesIsNotCounted) {
  begin([](const Received&) { return Reply{200, R"({"kind": "NodeList", "items": []})"}; });
  EXPECT_EQ(count_on_loop("a").error().code(), Code::kIo);
}

TEST_F(ObjectReaderTest, UnansweredReadDelaysTheNextOnlyByTheLimit) {
  begin(
      [](const Received& request) {
        if (request.line().ends_with("/hangs")) return Reply{.act = Act::kHang};
        return Reply{404, "{}"};
      },
      100ms);
  EXPECT_EQ(read_pod_on_loop("hangs").error().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(read_pod_on_loop("gone"));
}

TEST_F(ObjectReaderTest, InvalidNamesAndExcessReadsAreRefused) {
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  begin([&](const Received&) {
    held.wait();
    return Reply{404, "{}"};
  });
  EXPECT_EQ(read_pod_on_loop("../secrets").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(annotations("a/b").error().code(), Code::kInvalidArgument);
  std::atomic<std::size_t> refused = 0, answered = 0;
  call_on_loop([&] {
    for (std::size_t i = 0; i < kMaxReads + 10; ++i) {
      reader_->read_pod("team-a", "train", [&](const auto& facts) { ++(facts ? answered : refused); });
    }
  });
  EXPECT_TRUE(eventually([&] { return refused == 10; }));
  EXPECT_EQ(answered, 0u);
  go_on.set_value();
  EXPECT_TRUE(eventually([&] { return answered == kMaxReads; }));
}

TEST_F(ObjectReaderTest, CallbackMayDestroyTheReader) {
  begin([](const Received&) { return Reply{404, "{}"}; });
  std::promise<void> ended;
  call_on_loop([&] {
    reader_->read_pod("team-a", "train", [&](const auto&) {
      reader_.reset();
      ended.set_value();
    });
    reader_->read_pod("team-a", "train", [](const auto&) { ADD_FAILURE() << "answered after its end"; });
  });
  ended.get_future().wait();
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const Permission kEvents{.verb = "create", .resource = "events"};
const Permission kStatus{.verb = "patch", .resource = "nodes/status", .name = "node-1"};
const Permission kMap{
    .verb = "get", .resource = "configmaps", .name_space = "monitoring", .name = "counters"};
const Permission kNodes{.verb = "create", .resource = "gpunodes", .group = "gpulet.io", .name = "node-1"};

// An API server that allows everything except the permissions that a test names.
class AccessReviewTest : public ApiTest {
 protected:
  void release_source() override { review_.reset(); }
  void begin() {
    start_server([this](const Received& request) {
      EXPECT_EQ(request.line(), "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
      if (away_ > 0) return --away_, Reply{503, R"({"message":"later"})"};
      const auto review = json::parse(request.body);
      EXPECT_EQ(review["kind"], "SelfSubjectAccessReview");
      const auto& wanted = review["spec"]["resourceAttributes"];
      std::lock_guard lock(mutex_);
      const bool allowed = !refused_.contains(wanted.dump());
      return Reply{201, json{{"status", {{"allowed", allowed}}}}.dump()};
    });
    call_on_loop([&] {
      review_ = AccessReview::start_review(loop_, client_config(),
                                           [this](std::vector<Permission> refused) {
                                             std::lock_guard lock(mutex_);
                                             answers_.push_back(std::move(refused));
                                           },
                                           {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  void deny_permission(const json& attributes) {
    std::lock_guard lock(mutex_);
    refused_.insert(attributes.dump());
  }
  std::vector<std::vector<Permission>> reviews_done(std::size_t count) {
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
  std::vector<std::vector<Permission>> answers_;
  std::unique_ptr<AccessReview> review_;
};

TEST_F(AccessReviewTest, ReportsMissingPermissionsInRequestOrder) {
  deny_permission({{"verb", "patch"}, {"resource", "nodes"}, {"subresource", "status"}, {"name", "node-1"}});
  deny_permission(
      {{"verb", "get"}, {"resource", "configmaps"}, {"namespace", "monitoring"}, {"name", "counters"}});
  begin();
  call_on_loop([&] { review_->review_permissions({kMap, kEvents, kStatus, kNodes}); });
  EXPECT_EQ(reviews_done(1), (std::vector<std::vector<Permission>>{{kMap, kStatus}}));
  EXPECT_EQ(kMap.permission_text(), "get on configmaps in monitoring");
  EXPECT_EQ(kStatus.permission_text(), "patch on nodes/status");
  EXPECT_EQ(kNodes.permission_text(), "create on gpunodes.gpulet.io");
}

TEST_F(AccessReviewTest, RetriesWhileTheApiServerIsUnavailable) {
  away_ = 3;
  begin();
  call_on_loop([&] { review_->review_permissions({kEvents}); });
  EXPECT_EQ(reviews_done(1), (std::vector<std::vector<Permission>>{{}}));
  EXPECT_EQ(server_->received_requests().size(), 4U);
}

TEST_F(AccessReviewTest, OnlyTheNewestReviewIsReported) {
  deny_permission({{"verb", "create"}, {"resource", "events"}});
  begin();
  call_on_loop([&] {
    review_->review_permissions({kStatus, kMap, kEvents});
    review_->review_permissions({kEvents, kStatus});
  });
  EXPECT_EQ(reviews_done(1), (std::vector<std::vector<Permission>>{{kEvents}}));
  call_on_loop([&] { review_->review_permissions({}); });
  EXPECT_EQ(reviews_done(2).back(), std::vector<Permission>{});
}

}  // namespace
}  // namespace gpulet::k8s
