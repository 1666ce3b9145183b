#include "cluster/node_cleanup.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"

namespace gpulet::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kNode = "/api/v1/nodes/node-1";
constexpr const char* kGpuNode = "/apis/gpulet.io/v1alpha1/gpunodes/node-1";

class NodeCleanupTest : public ApiTest {
 protected:
  void let_go() override { cleanup_.reset(); }
  void begin(TestApiServer::Handler handler) {
    serve(std::move(handler));
    call([&] {
      LeftOnNode left{.field_manager = "gpulet-labels",
                      .labels = {"gpulet.io/gpu-health"},
                      .taints = {"gpulet.io/gpu-fault"},
                      .conditions = {"GpuHealthy"},
                      .objects = {kGpuNode}};
      cleanup_ = NodeCleanup::start(loop_, access(), std::move(left), [this] { ++done_; },
                                    {.request_limit = 10s, .backoff = {1ms, 5ms}});
    });
  }
  bool done() {
    return eventually([&] { return done_ > 0; });
  }
  // Method and path of all requests, without queries.
  std::vector<std::string> all_asked() {
    std::vector<std::string> lines;
    for (const auto& one : server_->received()) lines.push_back(one.line().substr(0, one.line().find('?')));
    return lines;
  }
  static Reply node() { return {200, json{{"metadata", {{"uid", "u-1"}}}}.dump()}; }

  std::atomic<int> done_ = 0;
  std::unique_ptr<NodeCleanup> cleanup_;
};

TEST_F(NodeCleanupTest, TakesWhatIsOurs) {
  begin([](const Received& request) { return request.line().starts_with("GET") ? node() : Reply{200}; });
  ASSERT_TRUE(done());
  const auto all = server_->received();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all_asked(),
            (std::vector<std::string>{
                std::string("GET ") + kNode, std::string("PATCH ") + kNode, std::string("PATCH ") + kNode,
                std::string("PATCH ") + kNode + "/status", std::string("DELETE ") + kGpuNode}));
  EXPECT_NE(all[1].line().find("fieldManager=gpulet-labels&force=true"), std::string::npos);
  EXPECT_EQ(json::parse(all[1].body)["metadata"], (json{{"name", "node-1"}, {"uid", "u-1"}}))
      << "no label is wanted, of this very Node";
  EXPECT_EQ(json::parse(all[2].body),
            (json{{"metadata", {{"labels", {{"gpulet.io/gpu-health", nullptr}}}}},
                  {"spec", {{"taints", {{{"$patch", "delete"}, {"key", "gpulet.io/gpu-fault"}}}}}}}));
  EXPECT_EQ(json::parse(all[3].body),
            (json{{"status", {{"conditions", {{{"$patch", "delete"}, {"type", "GpuHealthy"}}}}}}}));
  call([&] { EXPECT_FALSE(cleanup_->delivery().waiting); });
  EXPECT_EQ(done_, 1);
}

TEST_F(NodeCleanupTest, ANodeThatHasGoneLeavesItsObject) {
  begin([](const Received& request) { return request.line().starts_with("GET") ? Reply{404} : Reply{200}; });
  ASSERT_TRUE(done());
  EXPECT_EQ(all_asked(),
            (std::vector<std::string>{std::string("GET ") + kNode, std::string("DELETE ") + kGpuNode}));
}

TEST_F(NodeCleanupTest, AKindThatIsNotInstalledIsNoTrouble) {
  begin([](const Received& request) {
    if (request.line().starts_with("DELETE")) return Reply{404};
    return request.line().starts_with("GET") ? node() : Reply{200};
  });
  ASSERT_TRUE(done());
}

TEST_F(NodeCleanupTest, ARefusalIsSaidAndTriedAgain) {
  std::atomic<int> refused = 0;
  begin([&](const Received& request) {
    if (request.line().starts_with("GET")) return node();
    if (request.line().find("/status") != std::string::npos && refused++ < 3) return Reply{403};
    return Reply{200};
  });
  ASSERT_TRUE(done());
  EXPECT_EQ(refused, 4);
}

TEST_F(NodeCleanupTest, ANodeMadeAnewIsReadAgain) {
  std::atomic<int> conflicts = 0;
  begin([&](const Received& request) {
    if (request.line().starts_with("GET")) return node();
    if (request.line().find("fieldManager") != std::string::npos && conflicts++ == 0) return Reply{409};
    return Reply{200};
  });
  ASSERT_TRUE(done());
  EXPECT_EQ(asked("GET /api/v1/nodes/node-1"), 2);
}

}  // namespace
}  // namespace gpulet::cluster
