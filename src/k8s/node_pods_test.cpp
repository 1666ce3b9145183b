#include "k8s/node_pods.h"

#include <gtest/gtest.h>

#include <future>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

class NodePodsTest : public ApiTest {
 protected:
  void start_pods(TestApiServer::Handler handler) {
    start_server(std::move(handler));
    call_on_loop([this] { pods_ = NodePods::start_node_pods(loop_, client_config()); });
  }
  void release_source() override { pods_.reset(); }
  Result<std::vector<PodRef>> list(const PodSelection& selection) {
    std::promise<Result<std::vector<PodRef>>> answer;
    call_on_loop([&] { pods_->list_pods(selection, [&](auto pods) { answer.set_value(std::move(pods)); }); });
    return answer.get_future().get();
  }
  Status remove(std::vector<PodRef> pods) {
    std::promise<Status> answer;
    call_on_loop(
        [&] { pods_->delete_pods(std::move(pods), [&](Status status) { answer.set_value(status); }); });
    return answer.get_future().get();
  }

  std::unique_ptr<NodePods> pods_;
};

TEST_F(NodePodsTest, ListsByLabelOnThisNode) {
  start_pods([](const Received&) -> Reply {
    return {.status = 200,
            .body = R"({"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"op","uid":"1"}}]})"};
  });
  EXPECT_EQ(*list({.name_space = "op", .label_selector = "app in (x,y)"}),
            (std::vector<PodRef>{{"op", "a", "1"}}));
  EXPECT_EQ(request_count("GET /api/v1/namespaces/op/pods?fieldSelector=spec.nodeName%3Dnode-1&"
                          "labelSelector=app%20in%20%28x%2Cy%29"),
            1)
      << server_->received_requests()[0].line();
}

TEST_F(NodePodsTest, ListsTheDaemonSetsOfANodeSelector) {
  start_pods([](const Received&) -> Reply {
    return {.status = 200, .body = R"({"items":[
      {"metadata":{"name":"a","namespace":"n","uid":"1","ownerReferences":[{"kind":"DaemonSet"}]},
       "spec":{"nodeSelector":{"k":"true"}}},
      {"metadata":{"name":"b","namespace":"n","uid":"2","ownerReferences":[{"kind":"ReplicaSet"}]},
       "spec":{"nodeSelector":{"k":"true"}}},
      {"metadata":{"name":"c","namespace":"n","uid":"3","ownerReferences":[{"kind":"DaemonSet"}]},"spec":{}}]})"};
  });
  EXPECT_EQ(*list({.node_selector_key = "k"}), (std::vector<PodRef>{{"n", "a", "1"}}));
}

TEST_F(NodePodsTest, HandsOverWholePendingPods) {
  start_pods([](const Received&) -> Reply {
    return {.status = 200, .body = R"({"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]})"};
  });
  std::string seen;
  EXPECT_TRUE(list({.on_pending_pod = [&](std::string_view object) { seen += object; }}));
  EXPECT_EQ(seen, R"({"metadata":{"name":"a"}}{"metadata":{"name":"b"}})");
  EXPECT_EQ(request_count("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1%2Cstatus.phase%3DPending"),
            1);
}

TEST_F(NodePodsTest, ARefusedListNamesTheRight) {
  start_pods([](const Received&) -> Reply { return {.status = 403, .body = R"({"message":"forbidden"})"}; });
  const auto refused = list({.name_space = "op"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_NE(refused.error().message().find("list on pods"), std::string::npos);
}

TEST_F(NodePodsTest, DeletesEachPodByItsUid) {
  start_pods([](const Received& request) -> Reply {
    if (request.line().ends_with("/gone")) return {.status = 404};
    if (request.line().ends_with("/other")) return {.status = 409};
    if (request.line().ends_with("/kept")) return {.status = 403};
    return {.status = 200};
  });
  EXPECT_TRUE(remove({{"op", "a", "1"}, {"op", "gone", "2"}, {"op", "other", "3"}}));
  EXPECT_EQ(request_count("DELETE /api/v1/namespaces/op/pods/a"), 1);
  EXPECT_NE(server_->received_requests()[0].body.find(R"("uid":"1")"), std::string::npos);
  const auto refused = remove({{"op", "kept", "4"}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("delete on pods"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::k8s
