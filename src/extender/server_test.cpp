#include "extender/server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "k8s/test_api.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

json object_of(const std::string& name, const scheduler::GpuNode& node) {
  return {{"metadata", {{"name", name}, {"resourceVersion", "1"}}},
          {"spec", json::parse(scheduler::encode_spec(node))}};
}

json pod_object(const std::string& name, const std::string& gpus, const json& annotations = json::object(),
                const std::string& node = "") {
  json pod = {
      {"metadata",
       {{"namespace", "team"},
        {"name", name},
        {"uid", "uid-" + name},
        {"resourceVersion", "1"},
        {"annotations", annotations}}},
      {"spec",
       {{"containers", {{{"name", "main"}, {"resources", {{"limits", {{"nvidia.com/gpu", gpus}}}}}}}}}}};
  if (!node.empty()) pod["spec"]["nodeName"] = node;
  return pod;
}

// An API server with the test's objects, and an extender that watches it.
class ExtenderServerTest : public k8s::ApiTest {
 protected:
  ExtenderServerTest() {
    scheduler::GpuNode split = scheduler::test_node(8, 4), whole = scheduler::test_node(8, 4);
    scheduler::hold_units(split, "team/one", {0, 4, 1, 5});
    scheduler::hold_units(whole, "team/two", {0, 1, 2, 3});
    nodes_ = {object_of("n1", split), object_of("n2", whole)};
    pods_ = {pod_object("one", "4", json::object(), "n1"), pod_object("two", "4", json::object(), "n2")};
    namespaces_ = {{{"metadata", {{"name", "team"}, {"annotations", {{"gpulet.io/policy", "binpack"}}}}}}};
  }
  void release_source() override {
    service_.reset();
    watcher_.reset();
  }

  void begin() {
    start_server([this](const Received& request) { return reply_to(request.line()); });
    call_on_loop([&] {
      watcher_.emplace(loop_, client_config(), cluster_, k8s::CollectionTiming{.backoff = {1ms, 5ms}},
                       nullptr, [this](const auto& pod) {
                         bound_.push_back(pod.name);
                         service_->on_pod_bound(pod);
                       });
      service_.emplace(
          ServiceDependencies{
              .loop = loop_,
              .cluster = cluster_,
              .watcher = *watcher_,
              .send_event = [this](k8s::Event event) { events_.push_back(std::move(event)); }},
          "topology", nodes_to_score_, AskTiming{.settle = 1ms});
    });
  }
  void begin_ready() {
    begin();
    ASSERT_TRUE(k8s::eventually([&] { return get("/readyz").status == 200; }));
  }

  Reply reply_to(const std::string& line) {
    std::lock_guard lock(mutex_);
    if (line.find("watch=true") != std::string::npos) {
      return {.status = 200, .script = [this, line](Stream& stream) { return send_change(stream, line); }};
    }
    const auto list = [](const json& items) {
      return Reply{200, json{{"metadata", {{"resourceVersion", "7"}}}, {"items", items}}.dump()};
    };
    if (line.starts_with("GET /apis/gpulet.io/v1alpha1/gpunodes?")) return list(nodes_);
    if (line.starts_with("GET /api/v1/pods?"))
      return list(line.find("nominatedNodeName") == std::string::npos ? pods_ : nominated_);
    if (line.starts_with("GET /apis/policy/v1/poddisruptionbudgets?") && !budgets_.is_null())
      return list(budgets_);
    if (line.starts_with("GET /api/v1/namespaces?")) return list(namespaces_);
    if (line == "GET /api/v1/namespaces/team/pods/waiting") {
      return {200, pod_object("waiting", "4", {{"gpulet.io/gpu-links", "NV"}}).dump()};
    }
    return {404, R"({"kind":"Status","message":"not found"})"};
  }
  // Streams the test's changes of the collection until its end.
  bool send_change(Stream& stream, const std::string& line) {
    std::size_t events_sent = 0;
    do {
      std::vector<std::pair<std::string, std::string>> changes;
      {
        std::lock_guard lock(mutex_);
        changes.assign(changes_.begin() + static_cast<std::ptrdiff_t>(events_sent), changes_.end());
        events_sent = changes_.size();
      }
      for (const auto& [collection, change] : changes) {
        if (line.find(collection + "?") != std::string::npos) stream.chunk(change + "\n");
      }
    } while (stream.wait_open(2));
    return true;
  }
  void change_object(const std::string& collection, const std::string& type, const json& object) {
    std::lock_guard lock(mutex_);
    changes_.emplace_back(collection, json{{"type", type}, {"object", object}}.dump());
  }

  http::Response send_request(const std::string& method, const std::string& target,
                              const std::string& body = "") {
    std::promise<http::Response> promise;
    call_on_loop([&] {
      service_->handle_request({.method = method, .target = target, .body = body}, loop_.now(),
                               [&](http::Response reply_to) { promise.set_value(std::move(reply_to)); });
    });
    return promise.get_future().get();
  }
  http::Response get(const std::string& target) { return send_request("GET", target); }
  json post_json(const std::string& target, const json& body) {
    const auto reply_to = send_request("POST", target, body.dump());
    EXPECT_EQ(reply_to.status, 200) << *reply_to.body;
    return json::parse(*reply_to.body);
  }
  std::vector<k8s::Event> events() {
    std::vector<k8s::Event> events;
    call_on_loop([&] { events = events_; });
    return events;
  }

  std::vector<std::string> bound_;  // as reported, on the loop
  std::mutex mutex_;
  std::size_t nodes_to_score_ = scheduler::kNodesToScore;
  json nodes_, pods_, namespaces_;
  json nominated_ = json::array(), budgets_;                  // budgets_ null: no right to them
  std::vector<std::pair<std::string, std::string>> changes_;  // collection, line
  scheduler::ClusterState cluster_;
  std::optional<ClusterWatcher> watcher_;
  std::optional<ExtenderService> service_;
  std::vector<k8s::Event> events_;
};

const json kNames = {"n1", "n2", "n3"};

TEST_F(ExtenderServerTest, PassesOnlyNodesWithLinkedGpus) {
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4", {{"gpulet.io/gpu-links", "NV"}})}, {"NodeNames", kNames}};
  const auto filtered = post_json("/filter", body);
  EXPECT_EQ(filtered["NodeNames"], (json{"n2", "n3"}));
  EXPECT_EQ(filtered["FailedNodes"], (json{{"n1", "4/8 held, 4 free but no 4 linked by NV"}}));
  const json plain = {{"Pod", pod_object("p", "4", {{"gpulet.io/policy", "topology"}})},
                      {"NodeNames", kNames}};
  const auto scores = post_json("/prioritize", plain);
  EXPECT_LT(scores[0]["Score"], scores[1]["Score"]);
  EXPECT_EQ(scores[1]["Score"], 10);
  EXPECT_EQ(scores[2], (json{{"Host", "n3"}, {"Score", 0}}));
  EXPECT_TRUE(events().empty());
}

TEST_F(ExtenderServerTest, ReturnsOnlyTheBestNodes) {
  nodes_to_score_ = 1;
  begin_ready();
  json pod = pod_object("p", "2", {{"gpulet.io/policy", "topology"}});
  const auto passed = [&] {
    return post_json("/filter", {{"Pod", pod}, {"NodeNames", kNames}})["NodeNames"];
  };
  // On n1 the two free GPUs of each half are linked no worse than on n2; ties go to the first.
  const auto scores = post_json("/prioritize", {{"Pod", pod}, {"NodeNames", kNames}});
  const auto best = scores[0]["Score"] >= scores[1]["Score"] ? "n1" : "n2";
  EXPECT_EQ(passed(), (json{best}));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_nodes_left_out_total 2"), std::string::npos);
  pod["spec"]["topologySpreadConstraints"] = {{{"whenUnsatisfiable", "ScheduleAnyway"}}};
  EXPECT_EQ(passed(), kNames) << "it prefers nodes itself";
  pod = pod_object("p", "4", {{"gpulet.io/policy", "topology"}});
  EXPECT_EQ(passed(), (json{"n2"})) << "the one with four that are linked";
  pod = pod_object("p", "0");
  EXPECT_EQ(passed(), kNames) << "it requests no GPU";
}

TEST_F(ExtenderServerTest, RejectsNodesWithFaultyGpus) {
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4")}, {"NodeNames", {"n2"}}};
  EXPECT_EQ(post_json("/filter", body)["NodeNames"], (json{"n2"}));
  auto broken = scheduler::test_node(8, 4);
  scheduler::hold_units(broken, "team/two", {0, 1, 2, 3});
  scheduler::quarantine_gpu(broken, 6, "XID 79: GPU has fallen off the bus");
  change_object("gpunodes", "MODIFIED", object_of("n2", broken));
  EXPECT_TRUE(k8s::eventually([&] { return post_json("/filter", body)["NodeNames"].empty(); }));
  const auto events_sent = events();
  ASSERT_FALSE(events_sent.empty());
  EXPECT_EQ(events_sent[0].reason, kUnschedulableReason);
  EXPECT_EQ(events_sent[0].message,
            "no node of 1 fits: n2: 4/8 held, 1 quarantined (XID 79), 3 free of 4 requested");
  EXPECT_EQ(events_sent[0].pod->uid, "uid-p");
  EXPECT_EQ(events_sent.size(), 1U) << "the same is told once";
}

TEST_F(ExtenderServerTest, AssumesBoundPodsUntilTheyAreDeleted) {
  pods_.push_back(pod_object("early", "2", json::object(), "n2"));
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4")}, {"NodeNames", {"n2"}}};
  EXPECT_TRUE(post_json("/filter", body)["NodeNames"].empty());
  change_object("pods", "DELETED", pod_object("early", "2", json::object(), "n2"));
  EXPECT_TRUE(k8s::eventually([&] { return !post_json("/filter", body)["NodeNames"].empty(); }));
  change_object("pods", "ADDED", pod_object("late", "1", json::object(), "n2"));
  EXPECT_TRUE(k8s::eventually([&] { return post_json("/filter", body)["NodeNames"].empty(); }));
}

TEST_F(ExtenderServerTest, CorrectsTheVictimsOfPreemption) {
  auto low = pod_object("low", "4", json::object(), "n2");
  low["metadata"]["labels"] = {{"app", "web"}};
  low["spec"]["priority"] = -1;
  pods_.push_back(low);
  budgets_ = {{{"metadata", {{"namespace", "team"}, {"name", "web"}}},
               {"spec", {{"selector", {{"matchLabels", {{"app", "web"}}}}}}},
               {"status", {{"disruptionsAllowed", 0}}}}};
  begin_ready();
  json high = pod_object("high", "4", {{"gpulet.io/gpu-links", "NV"}});
  high["spec"]["priority"] = 10;
  const auto victims = [](const json& uids, int violations) {
    json pods = json::array();
    for (const auto& uid : uids) pods.push_back({{"UID", uid}});
    return json{{"Pods", pods}, {"NumPDBViolations", violations}};
  };
  // n1 has four free GPUs, but none linked: whoever leaves must free a group.
  json body = {
      {"Pod", high},
      {"NodeNameToMetaVictims",
       {{"n1", victims({"uid-one"}, 0)}, {"n2", victims({"uid-low"}, 1)}, {"n3", victims({"uid-x"}, 0)}}}};
  ASSERT_TRUE(k8s::eventually(
      [&] { return get("/metrics").body->find("gpulet_scheduler_lists_total 5") != std::string::npos; }));
  const json expected = {{"n1", victims({"uid-one"}, 0)},  // all four of its group leave with it
                         {"n2", victims({"uid-two"}, 0)},  // no budget is violated
                         {"n3", victims({"uid-x"}, 0)}};
  EXPECT_EQ(post_json("/preempt", body)["NodeNameToMetaVictims"], expected);
  high["spec"]["priority"] = 0;  // "one" and "two" have the same
  body["Pod"] = high;
  body["NodeNameToMetaVictims"].erase("n1");
  EXPECT_EQ(post_json("/preempt", body)["NodeNameToMetaVictims"],
            (json{{"n2", victims({"uid-low"}, 1)}, {"n3", victims({"uid-x"}, 0)}}));
  const auto metrics = *get("/metrics").body;
  EXPECT_NE(metrics.find("gpulet_scheduler_preemption_nodes_total{result=\"kept\"} 4"), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("gpulet_scheduler_preemption_nodes_total{result=\"corrected\"} 1"),
            std::string::npos);
  EXPECT_EQ(send_request("POST", "/preempt", "{}").status, 400);
  EXPECT_EQ(get("/preempt").status, 405);
}

// kube-scheduler may know before this watch that the victims have left.
class LeavingVictimTest : public ExtenderServerTest {
 protected:
  // The victim on n2 is known to leave; without it, the Pod of `body_` fits.
  void begin_leaving() {
    begin_ready();
    change_object("pods", "ADDED", pod_object("four", "4", json::object(), "n2"));
    json high = pod_object("high", "4", {{"gpulet.io/gpu-links", "NV"}});
    high["status"] = {{"nominatedNodeName", "n2"}};
    body_ = json{{"Pod", high}, {"NodeNames", {"n2"}}}.dump();
    ASSERT_TRUE(
        k8s::eventually([&] { return post_json("/filter", json::parse(body_))["NodeNames"].empty(); }));
    victim_["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
    change_object("pods", "MODIFIED", victim_);
    ASSERT_TRUE(k8s::eventually([&] {
      bool leaving = false;
      call_on_loop([&] {
        leaving = std::ranges::any_of(cluster_.find_node("n2")->claims, &scheduler::PodClaim::leaving);
      });
      return leaving;
    }));
  }

  json victim_ = pod_object("two", "4", json::object(), "n2");
  std::string body_;
};

TEST_F(LeavingVictimTest, TheFilterWaitsForTheNews) {
  ASSERT_NO_FATAL_FAILURE(begin_leaving());
  std::promise<http::Response> promise;
  call_on_loop([&] {
    service_->handle_request({.method = "POST", .target = "/filter", .body = body_}, loop_.now(),
                             [&](http::Response response) { promise.set_value(std::move(response)); });
    EXPECT_EQ(service_->metric_values().waiting, 1U);
  });
  change_object("pods", "DELETED", victim_);
  const auto response = promise.get_future().get();
  EXPECT_EQ(json::parse(*response.body)["NodeNames"], (json{"n2"}));
}

TEST_F(LeavingVictimTest, NoLargeRequestIsHeld) {
  ASSERT_NO_FATAL_FAILURE(begin_leaving());
  body_.append(kMaxWaitingBodyBytes, ' ');
  EXPECT_TRUE(json::parse(*send_request("POST", "/filter", body_).body)["NodeNames"].empty());
  call_on_loop([&] { EXPECT_EQ(service_->metric_values().waiting, 0U); });
}

TEST_F(ExtenderServerTest, KeepsDevicesForANominatedPod) {
  auto high = pod_object("high", "4", {{"gpulet.io/gpu-links", "NV"}});
  high["spec"]["priority"] = 10;
  high["status"] = {{"nominatedNodeName", "n2"}};
  nominated_ = {high};
  begin_ready();
  const json body = {{"Pod", pod_object("p", "1")}, {"NodeNames", {"n2"}}};
  EXPECT_TRUE(k8s::eventually([&] { return post_json("/filter", body)["NodeNames"].empty(); }));
  EXPECT_EQ(post_json("/filter", body)["FailedNodes"],
            (json{{"n2", "4/8 held, 4 free, kept for the nominated Pod team/high"}}));
  EXPECT_EQ(post_json("/filter", {{"Pod", high}, {"NodeNames", {"n2"}}})["NodeNames"], (json{"n2"}));
}

TEST_F(ExtenderServerTest, ReportsMalformedAnnotationAndUsesDefault) {
  begin_ready();
  const json pod = pod_object("p", "4", {{"gpulet.io/gpu-links", "fast"}, {"gpulet.io/policy", "bestest"}});
  const auto filtered = post_json("/filter", {{"Pod", pod}, {"NodeNames", kNames}});
  EXPECT_EQ(filtered["NodeNames"], kNames) << "never a refusal of the list";
  post_json("/filter", {{"Pod", pod}, {"NodeNames", kNames}});
  const auto events_sent = events();
  ASSERT_EQ(events_sent.size(), 1U);
  EXPECT_EQ(events_sent[0].reason, kMalformedReason);
  EXPECT_NE(events_sent[0].message.find("gpulet.io/gpu-links is \"fast\": expected NV, NV with a number"),
            std::string::npos)
      << events_sent[0].message;
  EXPECT_NE(events_sent[0].message.find("gpulet.io/policy is \"bestest\": expected one of"),
            std::string::npos);
}

TEST_F(ExtenderServerTest, AContradictionIsRefusedByEveryNode) {
  begin_ready();
  json pod = pod_object("p", "1", {{"gpu-memory", "4096"}});
  pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8192";
  const auto filtered = post_json("/filter", {{"Pod", pod}, {"NodeNames", kNames}});
  EXPECT_TRUE(filtered["NodeNames"].empty()) << "n3, which has no GpuNode, too";
  EXPECT_EQ(filtered["FailedAndUnresolvableNodes"].size(), kNames.size());
  for (const auto& reason : filtered["FailedAndUnresolvableNodes"]) {
    EXPECT_EQ(reason,
              "annotation gpu-memory is \"4096\": expected the same memory as limit nvidia.com/gpumem of "
              "container main, \"8192\", or one of them");
  }
  pod["metadata"]["annotations"] = json::object();
  EXPECT_EQ(post_json("/filter", {{"Pod", pod}, {"NodeNames", kNames}})["NodeNames"], kNames);
}

TEST_F(ExtenderServerTest, UsesTheNamespacesPolicyByDefault) {
  begin_ready();
  EXPECT_NE(get("/explain?namespace=team&pod=waiting").body->find("scored by binpack (from the namespace)"),
            std::string::npos);
  change_object(
      "namespaces", "MODIFIED",
      {{"metadata",
        {{"name", "team"}, {"resourceVersion", "8"}, {"annotations", {{"gpulet.io/policy", "nonsense"}}}}}});
  EXPECT_TRUE(k8s::eventually([&] {
    const auto text = *get("/explain?namespace=team&pod=waiting").body;
    return text.find("scored by topology (extender default)") != std::string::npos &&
           text.find("gpulet.io/policy of namespace team is \"nonsense\"") != std::string::npos;
  }));
}

TEST_F(ExtenderServerTest, ExplainsPendingAndBoundPods) {
  begin_ready();
  const auto waiting = *get("/explain?namespace=team&pod=waiting").body;
  EXPECT_NE(waiting.find("Fits on 1 node:\n  n2  score 10/10  GPU 4, 5, 6, 7, linked by NV4"),
            std::string::npos)
      << waiting;
  const auto bound = json::parse(*get("/explain?namespace=team&pod=two&format=json").body);
  EXPECT_EQ(bound["node"], "n2");
  EXPECT_EQ(bound["devices"], "GPU 0, 1, 2, 3, linked by NV4");
  EXPECT_EQ(get("/explain?namespace=team&pod=nobody").status, 404);
  EXPECT_EQ(get("/explain?namespace=team&pod=%2e%2e%2f").status, 400);
  EXPECT_EQ(get("/explain").status, 400);
}

TEST_F(ExtenderServerTest, IsReadyAfterTheFirstLists) {
  begin();
  ASSERT_TRUE(k8s::eventually([&] { return get("/readyz").status == 200; }));
  EXPECT_EQ(get("/healthz").status, 200);
  call_on_loop([&] { service_->begin_shutdown(); });
  EXPECT_EQ(get("/readyz").status, 503);
  const auto page = *get("/metrics").body;
  for (const char* line : {"gpulet_scheduler_ready 1", "gpulet_scheduler_nodes 2",
                           "gpulet_scheduler_preemption_nodes_total{result=\"dropped\"} 0",
                           "gpulet_scheduler_decision_seconds_count{verb=\"filter\"} 0",
                           "gpulet_scheduler_nodes_refused_total{reason=\"links\"} 0"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

TEST_F(ExtenderServerTest, SeesPodsThatAreBoundAfterTheFirstListsOnce) {
  begin_ready();
  auto late = pod_object("late", "2", json::object(), "n2");
  change_object("pods", "ADDED", late);
  late["status"]["phase"] = "Running";
  change_object("pods", "MODIFIED", late);
  change_object("pods", "ADDED", pod_object("last", "1", json::object(), "n2"));
  ASSERT_TRUE(k8s::eventually([&] {
    std::vector<std::string> bound;
    call_on_loop([&] { bound = bound_; });
    return bound == std::vector<std::string>{"late", "last"};
  }));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_pods_not_asked_total 0"), std::string::npos)
      << "nothing says that a scheduler bound them";
}

TEST_F(ExtenderServerTest, ReportsAPodThatASchedulerBoundWithoutAQuestion) {
  begin_ready();
  auto pod = pod_object("skipped", "2", json::object(), "n2");
  pod["spec"]["schedulerName"] = "default-scheduler";
  pod["status"]["conditions"] = {
      {{"type", "PodScheduled"}, {"status", "True"}, {"lastTransitionTime", "2026-01-31T12:00:00Z"}}};
  change_object("pods", "ADDED", pod);
  ASSERT_TRUE(k8s::eventually([&] { return !events().empty(); }));
  EXPECT_EQ(events()[0].reason, kNotAskedReason);
  EXPECT_EQ(events()[0].pod->name, "skipped");
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_pods_not_asked_total 1"), std::string::npos);
  // A question about another Pod shows that the scheduler asks.
  auto asked = pod_object("asked", "1");
  asked["spec"]["schedulerName"] = "default-scheduler";
  post_json("/filter", {{"Pod", asked}, {"NodeNames", kNames}});
  pod["metadata"]["name"] = "later";
  pod["metadata"]["uid"] = "uid-later";
  change_object("pods", "ADDED", pod);
  ASSERT_TRUE(k8s::eventually([&] {
    std::vector<std::string> bound;
    call_on_loop([&] { bound = bound_; });
    return bound == std::vector<std::string>{"skipped", "later"};
  }));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_pods_not_asked_total 1"), std::string::npos);
}

TEST_F(ExtenderServerTest, RejectsInvalidRequests) {
  begin_ready();
  EXPECT_EQ(send_request("POST", "/filter", "{").status, 400);
  EXPECT_EQ(send_request("POST", "/prioritize", std::string(100'000, '[')).status, 400);
  EXPECT_EQ(send_request("GET", "/filter").status, 405);
  EXPECT_EQ(send_request("POST", "/metrics").status, 405);
  EXPECT_EQ(send_request("GET", "/nothing").status, 404);
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_bad_requests_total 2"), std::string::npos);
}

TEST_F(ExtenderServerTest, IgnoresUndecodableObjects) {
  nodes_.push_back({{"metadata", {{"name", "n3"}}}, {"spec", {{"version", 99}}}});
  begin_ready();
  const json body = {{"Pod", pod_object("p", "9")}, {"NodeNames", kNames}};
  EXPECT_EQ(post_json("/filter", body)["NodeNames"], (json{"n3"}));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_objects_refused_total 1"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::extender
