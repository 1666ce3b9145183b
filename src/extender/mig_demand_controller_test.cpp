#include "extender/mig_demand_controller.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "k8s/test_api.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using scheduler::MigDemand;

constexpr const char* kThird = "nvidia.com/mig-3g.40gb";

json waiting_pod(const std::string& name, const std::string& created = "2026-01-31T12:00:00Z") {
  return {{"metadata",
           {{"namespace", "team"}, {"name", name}, {"uid", "uid-" + name}, {"creationTimestamp", created}}},
          {"spec", {{"containers", {{{"name", "c"}, {"resources", {{"limits", {{kThird, "1"}}}}}}}}}},
          {"status",
           {{"phase", "Pending"},
            {"conditions",
             {{{"type", "PodScheduled"},
               {"status", "False"},
               {"reason", "Unschedulable"},
               {"message", std::string("0/2 nodes are available: 2 Insufficient ") + kThird + "."}}}}}}};
}

// Two replicas' controllers share what they write; the test is the API server.
class MigDemandTest : public testing::Test {
 protected:
  MigDemandTest() {
    cluster_.mark_pods_synced();
    set_node("n1", 0);
    set_node("n2", 1);
    start();
  }
  MigDemandPorts make_ports() {
    return {.loop = loop_,
            .cluster = cluster_,
            .is_synced = [this] { return synced_; },
            .send_event = [this](k8s::Event event) { events_.push_back(std::move(event)); },
            .write = [this](const auto& node, auto status) { write(node, status); }};
  }
  MigDemandController& start() {
    auto& made = *controllers_.emplace_back(std::make_unique<MigDemandController>(make_ports(), 30s));
    made.mark_pods_listed();
    return made;
  }
  MigDemandController& start_before_list() {
    return *controllers_.emplace_back(std::make_unique<MigDemandController>(make_ports(), 30s));
  }
  // A node that can have `offered` of the devices free, and has `free` on its GPU.
  void set_node(const std::string& name, unsigned offered, unsigned free = 0) {
    auto node = scheduler::test_node(1, 1);
    node.mig_offer = {{{ResourceName(kThird), offered, "GPU 0: 2 × 3g.40gb in use"}}};
    if (free > 0) {
      scheduler::NodeResource resource{.name = ResourceName(kThird), .units = {}};
      for (unsigned i = 0; i < free; ++i) {
        auto& unit = resource.units.emplace_back();
        unit.profile = "3g.40gb";
        unit.memory_mib = 40'000;
        unit.slice = i * 4;
      }
      node.resources.push_back(std::move(resource));
    }
    cluster_.set_node(name, node);
  }
  void write(const std::string& node, const std::string& status) {
    ++writes_;
    const auto demand = json::parse(status).at("status").at("migDemand");
    recorded_[node] = scheduler::decode_mig_demand(demand);
    for (const auto& controller : controllers_) controller->set_recorded(node, recorded_[node]);
  }
  void add_pod(const std::string& name) {
    for (const auto& controller : controllers_) controller->set_pod(waiting_pod(name).dump());
  }
  std::vector<std::string> pods_of(const std::string& node) {
    return recorded_[node].requests.empty() ? std::vector<std::string>() : recorded_[node].requests[0].pods;
  }
  std::vector<std::string> reasons() const {
    std::vector<std::string> all;
    for (const auto& event : events_) all.push_back(event.reason);
    return all;
  }

  ManualLoop loop_;
  scheduler::ClusterState cluster_;
  bool synced_ = true;
  unsigned writes_ = 0;
  std::map<std::string, MigDemand> recorded_;
  std::vector<k8s::Event> events_;
  std::vector<std::unique_ptr<MigDemandController>> controllers_;
};

TEST_F(MigDemandTest, AsksOnceThePodHasWaited) {
  add_pod("a");
  loop_.advance(29s);
  EXPECT_EQ(writes_, 0u);
  loop_.advance(10s);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
  ASSERT_EQ(reasons(), std::vector<std::string>{kMigRequestedReason});
  EXPECT_EQ(events_[0].pod->uid, "uid-a");
  set_node("n2", 1, 1);
  loop_.advance(10s);
  ASSERT_EQ(reasons().size(), 2u);
  EXPECT_EQ(events_[1].message, "nvidia.com/mig-3g.40gb cut on node n2 GPU 0");
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"}) << "reserved until it is bound";
  controllers_[0]->remove_pod("team/a");
  loop_.advance(10s);
  EXPECT_TRUE(recorded_.at("n2").requests.empty());
  const auto before = writes_;
  loop_.advance(1h);
  EXPECT_EQ(writes_, before) << "nobody waits";
}

TEST_F(MigDemandTest, RenewsWhileThePodWaits) {
  add_pod("a");
  loop_.advance(40s);
  const auto first = recorded_.at("n2").renewed;
  loop_.advance(1min);
  EXPECT_NE(recorded_.at("n2").renewed, first);
  loop_.advance(10min);
  EXPECT_LE(writes_, 13u);
  EXPECT_GE(writes_, 10u);
}

TEST_F(MigDemandTest, ReplicasAgree) {
  set_node("n1", 1);
  start();
  controllers_[0]->set_pod(waiting_pod("a").dump());
  loop_.advance(20s);
  controllers_[1]->set_pod(waiting_pod("a").dump());
  loop_.advance(20s);
  EXPECT_EQ(pods_of("n1"), std::vector<std::string>{"team/a"});
  EXPECT_EQ(writes_, 1u) << "the other has not waited for as long, and keeps what is recorded";
  loop_.advance(10min);
  EXPECT_EQ(pods_of("n1"), std::vector<std::string>{"team/a"});
  EXPECT_TRUE(recorded_["n2"].requests.empty());
  EXPECT_LE(writes_, 12u) << "one of them renews";
}

TEST_F(MigDemandTest, TriesAnotherNodeWhereThePodCannotRun) {
  set_node("n1", 1);
  add_pod("a");
  loop_.advance(40s);
  ASSERT_EQ(pods_of("n1"), std::vector<std::string>{"team/a"});
  set_node("n1", 1, 1);
  loop_.advance(3min);
  EXPECT_TRUE(pods_of("n1").empty());
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
}

TEST_F(MigDemandTest, SaysWhyNoNodeCuts) {
  set_node("n2", 0);
  add_pod("a");
  loop_.advance(9min);
  EXPECT_EQ(writes_, 0u);
  ASSERT_EQ(reasons(), std::vector<std::string>{kMigUnmetReason}) << "once in a while";
  EXPECT_TRUE(events_[0].warning);
  EXPECT_EQ(events_[0].message,
            "no node can cut 1 x nvidia.com/mig-3g.40gb now: n1: GPU 0: 2 × 3g.40gb in use; n2: GPU 0: 2 × "
            "3g.40gb in use");
}

TEST_F(MigDemandTest, KnowsNothingBeforeTheListsAreComplete) {
  synced_ = false;
  add_pod("a");
  loop_.advance(5min);
  EXPECT_EQ(writes_, 0u);
  synced_ = true;
  loop_.advance(5s);
  EXPECT_EQ(writes_, 1u);
}

TEST_F(MigDemandTest, AReplicaThatStartsKeepsTheDemands) {
  add_pod("a");
  loop_.advance(40s);
  ASSERT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
  auto& later = start_before_list();
  later.set_recorded("n2", recorded_.at("n2"));
  loop_.advance(30s);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"}) << "it does not know the Pod yet";
  later.set_pod(waiting_pod("a").dump());
  later.mark_pods_listed();
  loop_.advance(30s);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
}

TEST_F(MigDemandTest, WritesAgainWhatAnotherOverwrote) {
  add_pod("a");
  loop_.advance(40s);
  ASSERT_EQ(writes_, 1u);
  recorded_["n2"] = {};
  controllers_[0]->set_recorded("n2", {});
  loop_.advance(6s);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
}

TEST_F(MigDemandTest, ReplicasOrderPodsByTheirAge) {
  set_node("n2", 2);
  start();
  const std::string old = waiting_pod("old", "2026-01-31T11:00:00Z").dump(), young = waiting_pod("a").dump();
  controllers_[0]->set_pod(old);
  loop_.advance(1s);
  controllers_[0]->set_pod(young);
  controllers_[1]->set_pod(young);
  loop_.advance(1s);
  controllers_[1]->set_pod(old);
  loop_.advance(50s);
  EXPECT_EQ(pods_of("n2"), (std::vector<std::string>{"team/old", "team/a"}));
  const auto before = writes_;
  EXPECT_LE(before, 2u) << "they agree";
  set_node("n2", 1);
  loop_.advance(20s);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/old"});
}

TEST_F(MigDemandTest, OneFreeDeviceTellsOnePod) {
  set_node("n2", 2);
  add_pod("a");
  add_pod("b");
  loop_.advance(40s);
  ASSERT_EQ(pods_of("n2").size(), 2u);
  set_node("n2", 2, 1);
  loop_.advance(20s);
  const auto all = reasons();
  EXPECT_EQ(std::ranges::count(all, kMigCutReason), 1);
  loop_.advance(3min);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/b"}) << "only one had it free and did not run";
}

TEST_F(MigDemandTest, AvoidsANodeTwiceAsLongEachTime) {
  set_node("n2", 1, 1);
  // There is room, so that nobody is asked; the node is asked as soon as there is none.
  const auto give_up = [&] {
    set_node("n2", 1);
    loop_.advance(1min);
    ASSERT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
    set_node("n2", 1, 1);
    loop_.advance(3min);
    ASSERT_TRUE(pods_of("n2").empty());
    set_node("n2", 1);
  };
  add_pod("a");
  give_up();
  loop_.advance(25min);
  EXPECT_TRUE(pods_of("n2").empty());
  loop_.advance(6min);
  give_up();
  loop_.advance(50min);
  EXPECT_TRUE(pods_of("n2").empty());
  loop_.advance(11min);
  EXPECT_EQ(pods_of("n2"), std::vector<std::string>{"team/a"});
}

// kube-scheduler no longer says that the resource lacks: the Pod has it there, and lacks something else.
TEST_F(MigDemandTest, APodThatLacksSomethingElseIsNotServedAgain) {
  add_pod("a");
  loop_.advance(40s);
  set_node("n2", 1, 1);
  loop_.advance(10s);
  auto pod = waiting_pod("a");
  pod["status"]["conditions"][0]["message"] = "0/2 nodes are available: 2 Insufficient cpu.";
  controllers_[0]->set_pod(pod.dump());
  loop_.advance(10s);
  EXPECT_TRUE(pods_of("n2").empty());
  set_node("n2", 1);
  add_pod("a");
  loop_.advance(20min);
  EXPECT_TRUE(pods_of("n2").empty());
}

TEST_F(MigDemandTest, PlansTheOldestPods) {
  set_node("n2", 512);
  for (int i = 0; i < 300; ++i) add_pod("p" + std::to_string(1000 + i));
  loop_.advance(32s);
  EXPECT_EQ(events_.size(), kMaxPodEvents) << "of the first pass";
  loop_.advance(20s);
  EXPECT_EQ(events_.size(), kMaxPlannedPods) << "each Pod once";
  EXPECT_EQ(recorded_.at("n2").requests.at(0).count, kMaxPlannedPods);
  EXPECT_EQ(recorded_.at("n2").requests.at(0).pods.size(), scheduler::kMaxDemandPods);
  const auto writes = writes_;
  loop_.advance(30s);
  EXPECT_EQ(writes_, writes) << "what does not fit does not differ";
}

// The API server's side: which Pods are watched, and what is written where.
class MigDemandApiTest : public k8s::ApiTest {};

TEST_F(MigDemandApiTest, WritesTheStatus) {
  start_server([](const k8s::Received&) { return Reply{200, "{}", {}, {}}; });
  std::unique_ptr<GpuNodeStatusWriter> writer;
  call_on_loop([&] {
    writer = std::make_unique<GpuNodeStatusWriter>(loop_, client_config(), k8s::SendTiming{10s, {1ms, 2ms}});
    writer->write_status("n2", R"({"status":{"migDemand":null}})");
  });
  EXPECT_TRUE(k8s::eventually([&] { return server_->received_requests().size() == 1; }));
  call_on_loop([&] { writer.reset(); });
  const auto request = server_->received_requests().at(0);
  EXPECT_EQ(request.line(), "PATCH /apis/gpulet.io/v1alpha1/gpunodes/n2/status");
  EXPECT_EQ(request.body, R"({"status":{"migDemand":null}})");
}

TEST_F(MigDemandApiTest, ARefusedNodeDoesNotBlockTheOthers) {
  start_server([](const k8s::Received& request) {
    const bool is_refused = request.line().find("/n1/") != std::string::npos;
    return Reply{is_refused ? 422 : 200, "{}", {}, {}};
  });
  std::unique_ptr<GpuNodeStatusWriter> writer;
  call_on_loop([&] {
    writer = std::make_unique<GpuNodeStatusWriter>(loop_, client_config(), k8s::SendTiming{10s, {1h, 2h}});
    writer->write_status("n1", R"({"status":{}})");
    writer->write_status("n2", R"({"status":{"migDemand":null}})");
  });
  EXPECT_TRUE(k8s::eventually([&] { return server_->received_requests().size() == 2; }));
  call_on_loop([&] { writer.reset(); });
  EXPECT_EQ(server_->received_requests().at(1).line(), "PATCH /apis/gpulet.io/v1alpha1/gpunodes/n2/status");
}

}  // namespace
}  // namespace gpulet::extender
