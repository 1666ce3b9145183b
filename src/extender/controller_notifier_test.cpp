#include "extender/controller_notifier.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "k8s/test_api.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using scheduler::test_node;
using scheduler::test_pod;

// n1 remembers the Deployment `web`; its Pods come to n2 and n3.
class ControllerNotifierTest : public k8s::ApiTest {
 protected:
  void SetUp() override {
    k8s::ApiTest::SetUp();
    auto memory = test_node(1, 1);
    memory.controllers.push_back({.controller = "default/web",
                                  .curve = scheduler::flat_curve(50, 20),
                                  .hours = 48,
                                  .last_hour = 495'000});
    cluster_.set_node("n1", memory);
    cluster_.set_node("n2", test_node(1, 1));
    start_server([this](const k8s::Received&) { return Reply{status_.load(), "{}", {}, {}}; });
    call_on_loop([&] {
      notifier_ = std::make_unique<ControllerNotifier>(loop_, client_config(), cluster_,
                                                       k8s::SendTiming{10s, {1ms, 2ms}});
    });
  }
  void release_source() override { notifier_.reset(); }
  void bind(const std::string& pod, const std::string& node) {
    call_on_loop([&] { notifier_->on_bound(test_pod(pod, 1, node)); });
  }

  scheduler::ClusterState cluster_;
  std::unique_ptr<ControllerNotifier> notifier_;
  std::atomic<int> status_ = 200;
};

TEST_F(ControllerNotifierTest, SendsWhatAnotherNodeKnows) {
  bind("other-7c6b9b4b5f-x2x9k", "n2");
  bind("web-7c6b9b4b5f-x2x9k", "n1");
  bind("web-7c6b9b4b5f-bcdfg", "n2");
  bind("web-7c6b9b4b5f-bcdfh", "n2");
  ASSERT_TRUE(k8s::eventually([&] { return !server_->received_requests().empty(); }));
  bind("web-7c6b9b4b5f-bcdfj", "n3");
  ASSERT_TRUE(k8s::eventually([&] { return server_->received_requests().size() == 2; }));
  const auto requests = server_->received_requests();
  EXPECT_EQ(requests[0].line(), "PATCH /apis/gpulet.io/v1alpha1/gpunodes/n2/status");
  EXPECT_EQ(requests[0].body,
            R"({"status":{"controllers":[{"hours":48,"lastHour":495000,"load":"323232323232323214",)"
            R"("name":"default/web"}]}})");
  EXPECT_EQ(requests[1].line(), "PATCH /apis/gpulet.io/v1alpha1/gpunodes/n3/status")
      << "one request for two Pods of n2, and none for what a node knows or nobody does";
}

TEST_F(ControllerNotifierTest, RetriesUntilItIsAccepted) {
  status_ = 403;
  bind("web-0", "n2");
  ASSERT_TRUE(k8s::eventually([&] { return server_->received_requests().size() >= 2; }));
  status_ = 404;
  const auto refused = server_->received_requests().size();
  ASSERT_TRUE(k8s::eventually([&] { return server_->received_requests().size() > refused; }));
  status_ = 200;
  bind("web-1", "n3");
  ASSERT_TRUE(k8s::eventually([&] {
    return server_->received_requests().back().line() == "PATCH /apis/gpulet.io/v1alpha1/gpunodes/n3/status";
  }));
}

}  // namespace
}  // namespace gpulet::extender
