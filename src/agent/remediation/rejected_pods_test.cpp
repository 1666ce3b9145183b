#include "agent/remediation/rejected_pods.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "k8s/test_api.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

constexpr const char* kRejectedResource = "nvidia.com/gpu";

// Rejected on node-1, `minute` of the hour old.
json rejected_pod(const std::string& name, int minute = 10) {
  return {{"metadata",
           {{"namespace", "default"},
            {"name", name},
            {"uid", "uid-" + name},
            {"resourceVersion", "1"},
            {"creationTimestamp", "2026-01-02T03:" + std::to_string(minute) + ":05Z"},
            {"ownerReferences", {{{"kind", "ReplicaSet"}, {"controller", true}}}}}},
          {"spec",
           {{"nodeName", "node-1"},
            {"containers", {{{"resources", {{"limits", {{kRejectedResource, "1"}, {"memory", "1Gi"}}}}}}}}}},
          {"status", {{"phase", "Failed"}, {"reason", "UnexpectedAdmissionError"}}}};
}

TEST(ParseRejectedPod, WhichPodsMayGo) {
  struct Row {
    const char* what;
    std::function<void(json&)> change;
    bool taken;
  };
  const Row rows[] = {
      {"as it is", [](auto&) {}, true},
      {"too few", [](auto& pod) { pod["status"]["reason"] = "OutOfnvidia.com/gpu"; }, true},
      {"of a Job", [](auto& pod) { pod["metadata"]["ownerReferences"][0]["kind"] = "Job"; }, true},
      {"an owner that is no controller",
       [](auto& pod) { pod["metadata"]["ownerReferences"][0]["controller"] = false; }, false},
      {"no owner", [](auto& pod) { pod["metadata"].erase("ownerReferences"); }, false},
      {"of a DaemonSet", [](auto& pod) { pod["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"; },
       false},
      {"static", [](auto& pod) { pod["metadata"]["annotations"][k8s::kMirrorPod] = "x"; }, false},
      {"terminating", [](auto& pod) { pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"; },
       false},
      {"another node", [](auto& pod) { pod["spec"]["nodeName"] = "node-10"; }, false},
      {"no node", [](auto& pod) { pod["spec"].erase("nodeName"); }, false},
      {"running", [](auto& pod) { pod["status"]["phase"] = "Running"; }, false},
      {"failed by itself", [](auto& pod) { pod["status"].erase("reason"); }, false},
      {"evicted", [](auto& pod) { pod["status"]["reason"] = "Evicted"; }, false},
      {"not aligned", [](auto& pod) { pod["status"]["reason"] = "TopologyAffinityError"; }, false},
      {"always restarted, and succeeded",
       [](auto& pod) {
         pod["spec"]["restartPolicy"] = "Always";
         pod["status"] = {{"phase", "Succeeded"}};
       },
       true},
      {"of a Job, and succeeded",
       [](auto& pod) {
         pod["spec"]["restartPolicy"] = "Never";
         pod["status"] = {{"phase", "Succeeded"}};
       },
       false},
      {"no uid", [](auto& pod) { pod["metadata"].erase("uid"); }, false},
      {"no Pod", [](auto& pod) { pod = json::array(); }, false},
  };
  for (const auto& [what, change, taken] : rows) {
    auto pod = rejected_pod("a");
    change(pod);
    EXPECT_EQ(parse_rejected_pod(pod, "node-1").has_value(), taken) << what;
  }
}

TEST(ParseRejectedPod, ReadsWhatEveryContainerRequests) {
  auto pod = rejected_pod("a");
  pod["spec"]["initContainers"] = {{{"resources", {{"limits", {{"nvidia.com/mig-1g.10gb", "1"}}}}}}};
  pod["spec"]["containers"].push_back({{"resources", {{"limits", {{"example.com/none", "0"}}}}}});
  pod["spec"]["containers"].push_back("no container");
  const auto read = parse_rejected_pod(pod, "node-1");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->pod, (PodRef{"default", "a", "uid-a"}));
  EXPECT_EQ(read->resources, (std::set<std::string>{kRejectedResource, "memory", "nvidia.com/mig-1g.10gb"}));
}

TEST(IsRejectionOver, OnceEachOfferedResourceCanBeAllocated) {
  const std::string mig = "nvidia.com/mig-1g.10gb";
  struct Row {
    const char* reason;
    std::set<std::string> resources;
    OfferedResources offered;
    bool over;
  };
  const Row rows[] = {
      {"UnexpectedAdmissionError", {kRejectedResource, "memory"}, {{kRejectedResource, true}}, true},
      {"UnexpectedAdmissionError", {kRejectedResource}, {{kRejectedResource, false}}, false},
      {"UnexpectedAdmissionError", {kRejectedResource}, {}, false},
      {"UnexpectedAdmissionError", {"memory"}, {{kRejectedResource, true}}, false},
      {"UnexpectedAdmissionError",
       {kRejectedResource, mig},
       {{kRejectedResource, true}, {mig, false}},
       false},
      {"UnexpectedAdmissionError", {kRejectedResource, mig}, {{kRejectedResource, true}, {mig, true}}, true},
      {"UnexpectedAdmissionError", {kRejectedResource, "example.com/nic"}, {{kRejectedResource, true}}, true},
      {"OutOfnvidia.com/gpu", {kRejectedResource}, {{kRejectedResource, true}}, true},
      {"OutOfnvidia.com/gpu", {kRejectedResource}, {{kRejectedResource, false}}, false},
      {"OutOfmemory", {kRejectedResource, "memory"}, {{kRejectedResource, true}}, false},
      {"OutOfnvidia.com/mig-1g.10gb", {kRejectedResource}, {{kRejectedResource, true}, {mig, true}}, false},
  };
  for (const auto& [reason, resources, offered, over] : rows) {
    const RejectedPod pod{
        .pod = {"default", "a", "uid-a"}, .created = 0, .reason = reason, .resources = resources};
    EXPECT_EQ(is_rejection_over(pod, offered), over) << reason << " " << json(resources) << json(offered);
  }
}

// One that stays: its node lacked what the agent does not offer.
json unrelated_pod() {
  auto pod = rejected_pod("unrelated", 10);
  pod["status"]["reason"] = "OutOfmemory";
  return pod;
}

// An API server that lists Pods, and deletes them.
class RejectedPodsTest : public k8s::ApiTest {
 protected:
  void release_source() override { deleter_.reset(); }
  void begin(std::size_t limit = 10, Duration window = 1h) {
    start_server([this](const Received& request) {
      const std::lock_guard lock(mutex_);
      if (request.line().starts_with("DELETE ")) return on_delete(request);
      EXPECT_NE(
          request.line().find(
              "fieldSelector=spec.nodeName%3Dnode-1%2Cstatus.phase%21%3DPending%2Cstatus.phase%21%3DRunning"),
          std::string::npos)
          << request.line();
      if (request.line().find("watch=") == std::string::npos)
        return Reply{200, json{{"metadata", {{"resourceVersion", "5"}}}, {"items", pods_}}.dump()};
      return Reply{200, "", Act::kRespond, [](Stream& stream) {
                     while (stream.wait_open(20)) {
                     }
                     return false;
                   }};
    });
    call_on_loop([&] {
      deleter_.emplace(RejectedPodPorts{.loop = loop_,
                                        .access = client_config(),
                                        .offered =
                                            [this] {
                                              ++attempts_;
                                              return OfferedResources{{kRejectedResource, ready_.load()}};
                                            },
                                        .deleted =
                                            [this](const RejectedPod& pod) {
                                              const std::lock_guard lock(mutex_);
                                              reported_.push_back(pod.pod.name);
                                            }},
                       RejectedPodTiming{.watch = {}, .deletions = limit, .window = window, .interval = 1ms});
    });
  }
  std::vector<std::string> reported() {
    const std::lock_guard lock(mutex_);
    return reported_;
  }
  bool tries(int more) {
    const int before = attempts_;
    return k8s::eventually([&] { return attempts_ >= before + more; });
  }
  std::ptrdiff_t deletions() {
    const auto all = server_->received_requests();
    return std::ranges::count_if(all, [](const auto& one) { return one.line().starts_with("DELETE "); });
  }

  std::mutex mutex_;
  json pods_ = json::array();
  std::atomic<bool> ready_ = true;
  std::atomic<int> refusals_ = 0, attempts_ = 0;
  std::vector<std::string> reported_;
  std::optional<RejectedPodDeleter> deleter_;

 private:
  Reply on_delete(const Received& request) {
    const auto name = request.line().substr(request.line().rfind('/') + 1);
    EXPECT_EQ(request.line(), "DELETE /api/v1/namespaces/default/pods/" + name);
    EXPECT_EQ(json::parse(request.body)["preconditions"]["uid"], "uid-" + name);
    if (refusals_ == 0) return Reply{200, "{}"};
    --refusals_;
    return Reply{403, R"({"message":"forbidden"})"};
  }
};

TEST_F(RejectedPodsTest, TheOldestGoFirstEachOnce) {
  pods_ = {unrelated_pod(), rejected_pod("young", 30), rejected_pod("old", 11), rejected_pod("middle", 20)};
  begin();
  ASSERT_TRUE(k8s::eventually([&] { return reported().size() == 3; }));
  EXPECT_EQ(reported(), (std::vector<std::string>{"old", "middle", "young"}));
  ASSERT_TRUE(tries(5));
  EXPECT_EQ(deletions(), 3);
}

TEST_F(RejectedPodsTest, TheyWaitUntilTheResourceCanBeAllocated) {
  ready_ = false;
  pods_ = {rejected_pod("a")};
  begin();
  ASSERT_TRUE(tries(5));
  EXPECT_EQ(deletions(), 0);
  ready_ = true;
  EXPECT_TRUE(k8s::eventually([&] { return reported().size() == 1; }));
}

TEST_F(RejectedPodsTest, NoMoreThanTheLimitGoInAWindow) {
  for (int i = 10; i < 15; ++i) pods_.push_back(rejected_pod("p" + std::to_string(i), i));
  begin(2);
  ASSERT_TRUE(k8s::eventually([&] { return reported().size() == 2; }));
  ASSERT_TRUE(tries(10));
  EXPECT_EQ(deletions(), 2);
}

TEST_F(RejectedPodsTest, TheNextWindowTakesTheOthers) {
  for (int i = 10; i < 15; ++i) pods_.push_back(rejected_pod("p" + std::to_string(i), i));
  begin(2, 30ms);
  EXPECT_TRUE(k8s::eventually([&] { return reported().size() == 5; }));
}

TEST_F(RejectedPodsTest, ARefusedDeletionIsTriedAgainAndCounts) {
  refusals_ = 2;
  pods_ = {rejected_pod("a"), rejected_pod("b", 20)};
  begin(4);
  ASSERT_TRUE(k8s::eventually([&] { return reported().size() == 2; }));
  EXPECT_EQ(deletions(), 4);
}

TEST_F(RejectedPodsTest, OtherPodsStay) {
  auto bare = rejected_pod("bare"), other = rejected_pod("other"), evicted = rejected_pod("evicted");
  bare["metadata"].erase("ownerReferences");
  other["spec"]["nodeName"] = "node-2";
  evicted["status"]["reason"] = "Evicted";
  pods_ = {bare, other, evicted, unrelated_pod(), rejected_pod("mine", 50)};
  begin();
  ASSERT_TRUE(k8s::eventually([&] { return reported().size() == 1; }));
  ASSERT_TRUE(tries(5));
  EXPECT_EQ(reported(), std::vector<std::string>{"mine"});
  EXPECT_EQ(deletions(), 1);
}

}  // namespace
}  // namespace gpulet::agent
