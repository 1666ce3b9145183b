#include <atomic>

#include <nlohmann/json.hpp>

#include "k8s/object_applier.h"
#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kLine = "PATCH /apis/gpulet.io/v1alpha1/gpunodes/node-1?fieldManager=gpulet&force=true";

class ObjectApplierTest : public ApiTest {
 protected:
  void release_source() override { apply_.reset(); }
  void begin(Duration refresh = std::chrono::hours(1)) {
    start_server([this](const Received& request) { return respond_to(request); });
    call_on_loop([&] {
      apply_ = ObjectApplier::start_applier(
          loop_, client_config(), {"gpulet.io/v1alpha1", "GpuNode", "/apis/gpulet.io/v1alpha1/gpunodes"},
          {.sending = {10s, {1ms, 5ms}}, .refresh = refresh});
    });
  }
  Reply respond_to(const Received& request) {
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
    for (const auto& request : server_->received_requests()) {
      if (request.line() == kLine) bodies.push_back(json::parse(request.body));
    }
    return bodies;
  }
  void set_spec_on_loop(const std::string& spec) {
    call_on_loop([&] { apply_->set_spec(spec); });
  }
  SendStatus status_on_loop() {
    SendStatus delivery;
    call_on_loop([&] { delivery = apply_->applier_status(); });
    return delivery;
  }

  std::unique_ptr<ObjectApplier> apply_;
  std::atomic<int> uid_ = 1, refusals_ = 0;
};

TEST_F(ObjectApplierTest, ObjectHasTheNodesNameAndOwner) {
  begin();
  set_spec_on_loop(R"({"gpus":8})");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted == 1; }));
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
  for (const auto& request : server_->received_requests()) {
    if (request.line() == kLine) {
      EXPECT_NE(request.head.find("Content-Type: application/apply-patch+yaml"), std::string::npos);
    }
  }
}

TEST_F(ObjectApplierTest, ReportsWhatWasThereAndWhatOthersWrote) {
  std::vector<std::string> objects;
  start_server([](const Received& request) {
    if (request.line() == "GET /api/v1/nodes/node-1") return Reply{200, R"({"metadata":{"uid":"uid-1"}})"};
    if (request.line() == kLine) return Reply{200, "written"};
    EXPECT_EQ(request.body, "{}");
    EXPECT_NE(request.head.find("Content-Type: application/merge-patch+json"), std::string::npos);
    return Reply{200, "before"};
  });
  call_on_loop([&] {
    apply_ = ObjectApplier::start_applier(
        loop_, client_config(), {"gpulet.io/v1alpha1", "GpuNode", "/apis/gpulet.io/v1alpha1/gpunodes"},
        {.sending = {10s, {1ms, 5ms}}}, [&](const std::string& object) { objects.push_back(object); });
  });
  ASSERT_TRUE(eventually([&] { return !server_->received_requests().empty(); }));
  EXPECT_EQ(server_->received_requests()[0].line(), "PATCH /apis/gpulet.io/v1alpha1/gpunodes/node-1");
  set_spec_on_loop("{}");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted >= 1 && !status_on_loop().pending; }));
  call_on_loop([&] { EXPECT_EQ(objects, (std::vector<std::string>{"before", "written"})); });
}

TEST_F(ObjectApplierTest, WritesWhereNothingCanBeRead) {
  std::vector<std::string> objects;
  start_server([](const Received& request) {
    if (request.line() == "GET /api/v1/nodes/node-1") return Reply{200, R"({"metadata":{"uid":"uid-1"}})"};
    return request.line() == kLine ? Reply{201, "written"} : Reply{404, "{}"};
  });
  call_on_loop([&] {
    apply_ = ObjectApplier::start_applier(
        loop_, client_config(), {"gpulet.io/v1alpha1", "GpuNode", "/apis/gpulet.io/v1alpha1/gpunodes"},
        {.sending = {10s, {1ms, 5ms}}}, [&](const std::string& object) { objects.push_back(object); });
  });
  set_spec_on_loop("{}");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted >= 1 && !status_on_loop().pending; }));
  call_on_loop([&] { EXPECT_EQ(objects, (std::vector<std::string>{"", "written"})); });
}

TEST_F(ObjectApplierTest, UnchangedObjectIsNotSentAndTheNodeIsReadOnce) {
  begin();
  set_spec_on_loop("{}");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted == 1; }));
  set_spec_on_loop("{}");
  set_spec_on_loop(R"({"a":1})");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted == 2; }));
  EXPECT_FALSE(status_on_loop().pending);
  EXPECT_EQ(applied().size(), 2U);
  EXPECT_EQ(server_->received_requests().size(), 3U);
}

TEST_F(ObjectApplierTest, RetriesUntilTheKindIsInstalled) {
  refusals_ = 3;
  begin();
  set_spec_on_loop("{}");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted == 1; }));
  EXPECT_EQ(applied().size(), 4U);
  EXPECT_EQ(status_on_loop().warnings, 1U);
}

TEST_F(ObjectApplierTest, RecreatedNodeGetsTheObjectAgain) {
  begin(20ms);
  set_spec_on_loop("{}");
  ASSERT_TRUE(eventually([&] { return status_on_loop().accepted >= 1; }));
  uid_ = 2;
  EXPECT_TRUE(eventually([&] {
    const auto bodies = applied();
    return bodies.back()["metadata"]["ownerReferences"][0]["uid"] == "uid-2";
  }));
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kNode = "/api/v1/nodes/node-1";
constexpr const char* kGpuNode = "/apis/gpulet.io/v1alpha1/gpunodes/node-1";

class NodeCleanupTest : public ApiTest {
 protected:
  void release_source() override { cleanup_.reset(); }
  void begin(TestApiServer::Handler handler) {
    start_server(std::move(handler));
    call_on_loop([&] {
      NodeLeftovers left{.field_manager = "gpulet-labels",
                         .labels = {"gpulet.io/gpu-health"},
                         .taints = {"gpulet.io/gpu-fault"},
                         .conditions = {"GpuHealthy"},
                         .objects = {kGpuNode},
                         .annotations = {"gpulet.io/reboot-required"}};
      cleanup_ = NodeCleanup::start_cleanup(loop_, client_config(), std::move(left), [this] { ++done_; },
                                            {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  bool is_finished() {
    return eventually([&] { return done_ > 0; });
  }
  // Method and path of all requests, without query strings.
  std::vector<std::string> all_asked() {
    std::vector<std::string> lines;
    for (const auto& one : server_->received_requests())
      lines.push_back(one.line().substr(0, one.line().find('?')));
    return lines;
  }
  static Reply node_json() { return {200, json{{"metadata", {{"uid", "u-1"}}}}.dump()}; }

  std::atomic<int> done_ = 0;
  std::unique_ptr<NodeCleanup> cleanup_;
};

TEST_F(NodeCleanupTest, RemovesTheAgentsLabelsTaintsAndConditions) {
  begin([](const Received& request) { return request.line().starts_with("GET") ? node_json() : Reply{200}; });
  ASSERT_TRUE(is_finished());
  const auto all = server_->received_requests();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all_asked(),
            (std::vector<std::string>{
                std::string("GET ") + kNode, std::string("PATCH ") + kNode, std::string("PATCH ") + kNode,
                std::string("PATCH ") + kNode + "/status", std::string("DELETE ") + kGpuNode}));
  EXPECT_NE(all[1].line().find("fieldManager=gpulet-labels&force=true"), std::string::npos);
  EXPECT_EQ(json::parse(all[1].body)["metadata"], (json{{"name", "node-1"}, {"uid", "u-1"}}))
      << "no label is wanted, of this very Node";
  EXPECT_EQ(json::parse(all[2].body),
            (json{{"metadata",
                   {{"labels", {{"gpulet.io/gpu-health", nullptr}}},
                    {"annotations", {{"gpulet.io/reboot-required", nullptr}}}}},
                  {"spec", {{"taints", {{{"$patch", "delete"}, {"key", "gpulet.io/gpu-fault"}}}}}}}));
  EXPECT_EQ(json::parse(all[3].body),
            (json{{"status", {{"conditions", {{{"$patch", "delete"}, {"type", "GpuHealthy"}}}}}}}));
  call_on_loop([&] { EXPECT_FALSE(cleanup_->cleanup_status().pending); });
  EXPECT_EQ(done_, 1);
}

TEST_F(NodeCleanupTest, MissingNodeStillDeletesTheGpuNode) {
  begin([](const Received& request) { return request.line().starts_with("GET") ? Reply{404} : Reply{200}; });
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(all_asked(),
            (std::vector<std::string>{std::string("GET ") + kNode, std::string("DELETE ") + kGpuNode}));
}

TEST_F(NodeCleanupTest, MissingKindIsNoError) {
  begin([](const Received& request) {
    if (request.line().starts_with("DELETE")) return Reply{404};
    return request.line().starts_with("GET") ? node_json() : Reply{200};
  });
  ASSERT_TRUE(is_finished());
}

TEST_F(NodeCleanupTest, RefusalIsLoggedAndRetried) {
  std::atomic<int> refused = 0;
  begin([&](const Received& request) {
    if (request.line().starts_with("GET")) return node_json();
    if (request.line().find("/status") != std::string::npos && refused++ < 3) return Reply{403};
    return Reply{200};
  });
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(refused, 4);
}

TEST_F(NodeCleanupTest, RecreatedNodeIsReadAgain) {
  std::atomic<int> conflicts = 0;
  begin([&](const Received& request) {
    if (request.line().starts_with("GET")) return node_json();
    if (request.line().find("fieldManager") != std::string::npos && conflicts++ == 0) return Reply{409};
    return Reply{200};
  });
  ASSERT_TRUE(is_finished());
  EXPECT_EQ(request_count("GET /api/v1/nodes/node-1"), 2);
}

}  // namespace
}  // namespace gpulet::k8s
