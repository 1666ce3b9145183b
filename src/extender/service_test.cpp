#include "extender/service.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster/test_api.h"
#include "scheduler/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using cluster::Received;
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

// An API server with what a test puts into it, and an extender that follows it.
class ServiceTest : public cluster::ApiTest {
 protected:
  ServiceTest() {
    scheduler::GpuNode split = scheduler::test_node(8, 4), whole = scheduler::test_node(8, 4);
    scheduler::hold(split, "team/one", {0, 4, 1, 5});
    scheduler::hold(whole, "team/two", {0, 1, 2, 3});
    nodes_ = {object_of("n1", split), object_of("n2", whole)};
    pods_ = {pod_object("one", "4", json::object(), "n1"), pod_object("two", "4", json::object(), "n2")};
    namespaces_ = {{{"metadata", {{"name", "team"}, {"annotations", {{"gpulet.io/policy", "binpack"}}}}}}};
  }
  void let_go() override {
    service_.reset();
    feed_.reset();
  }

  void begin() {
    serve([this](const Received& request) { return answer(request.line()); });
    call([&] {
      feed_.emplace(loop_, access(), view_, cluster::CollectionTiming{.backoff = {1ms, 5ms}});
      service_.emplace(
          ServicePorts{.loop = loop_,
                       .view = view_,
                       .feed = *feed_,
                       .event = [this](cluster::Event event) { events_.push_back(std::move(event)); }},
          "topology", nodes_to_score_);
    });
  }
  void begin_ready() {
    begin();
    ASSERT_TRUE(cluster::eventually([&] { return get("/readyz").status == 200; }));
  }

  Reply answer(const std::string& line) {
    std::lock_guard lock(mutex_);
    if (line.find("watch=true") != std::string::npos) {
      return {.status = 200, .script = [this, line](Stream& stream) { return tell(stream, line); }};
    }
    const auto list = [](const json& items) {
      return Reply{200, json{{"metadata", {{"resourceVersion", "7"}}}, {"items", items}}.dump()};
    };
    if (line.starts_with("GET /apis/gpulet.io/v1alpha1/gpunodes?")) return list(nodes_);
    if (line.starts_with("GET /api/v1/pods?")) return list(pods_);
    if (line.starts_with("GET /api/v1/namespaces?")) return list(namespaces_);
    if (line == "GET /api/v1/namespaces/team/pods/waiting") {
      return {200, pod_object("waiting", "4", {{"gpulet.io/gpu-links", "NV"}}).dump()};
    }
    return {404, R"({"kind":"Status","message":"not found"})"};
  }
  // Changes of the collection, as the test makes them, until its end.
  bool tell(Stream& stream, const std::string& line) {
    std::size_t told = 0;
    do {
      std::vector<std::pair<std::string, std::string>> changes;
      {
        std::lock_guard lock(mutex_);
        changes.assign(changes_.begin() + static_cast<std::ptrdiff_t>(told), changes_.end());
        told = changes_.size();
      }
      for (const auto& [collection, change] : changes) {
        if (line.find(collection + "?") != std::string::npos) stream.chunk(change + "\n");
      }
    } while (stream.wait(2));
    return true;
  }
  void change(const std::string& collection, const std::string& type, const json& object) {
    std::lock_guard lock(mutex_);
    changes_.emplace_back(collection, json{{"type", type}, {"object", object}}.dump());
  }

  web::Answer ask(const std::string& method, const std::string& target, const std::string& body = "") {
    std::promise<web::Answer> promise;
    call([&] {
      service_->serve({.method = method, .target = target, .body = body}, loop_.now(),
                      [&](web::Answer answer) { promise.set_value(std::move(answer)); });
    });
    return promise.get_future().get();
  }
  web::Answer get(const std::string& target) { return ask("GET", target); }
  json post(const std::string& target, const json& body) {
    const auto answer = ask("POST", target, body.dump());
    EXPECT_EQ(answer.status, 200) << *answer.body;
    return json::parse(*answer.body);
  }
  std::vector<cluster::Event> events() {
    std::vector<cluster::Event> events;
    call([&] { events = events_; });
    return events;
  }

  std::mutex mutex_;
  std::size_t nodes_to_score_ = scheduler::kNodesToScore;
  json nodes_, pods_, namespaces_;
  std::vector<std::pair<std::string, std::string>> changes_;  // collection, line
  scheduler::ClusterView view_;
  std::optional<Feed> feed_;
  std::optional<ExtenderService> service_;
  std::vector<cluster::Event> events_;
};

const json kNames = {"n1", "n2", "n3"};

TEST_F(ServiceTest, AFourThatIsLinkedIsOnOneNodeThoughBothHaveFourFree) {
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4", {{"gpulet.io/gpu-links", "NV"}})}, {"NodeNames", kNames}};
  const auto filtered = post("/filter", body);
  EXPECT_EQ(filtered["NodeNames"], (json{"n2", "n3"}));
  EXPECT_EQ(filtered["FailedNodes"], (json{{"n1", "4/8 held, 4 free but no 4 linked by NV"}}));
  const json plain = {{"Pod", pod_object("p", "4", {{"gpulet.io/policy", "topology"}})},
                      {"NodeNames", kNames}};
  const auto scores = post("/prioritize", plain);
  EXPECT_LT(scores[0]["Score"], scores[1]["Score"]);
  EXPECT_EQ(scores[1]["Score"], 10);
  EXPECT_EQ(scores[2], (json{{"Host", "n3"}, {"Score", 0}}));
  EXPECT_TRUE(events().empty());
}

TEST_F(ServiceTest, OfMoreNodesThanItIsToScoreTheBestPass) {
  nodes_to_score_ = 1;
  begin_ready();
  json pod = pod_object("p", "2", {{"gpulet.io/policy", "topology"}});
  const auto passed = [&] { return post("/filter", {{"Pod", pod}, {"NodeNames", kNames}})["NodeNames"]; };
  // On n1 the two that are free in each half are linked no worse than on n2; of what is equal the first
  // passes.
  const auto scores = post("/prioritize", {{"Pod", pod}, {"NodeNames", kNames}});
  const auto best = scores[0]["Score"] >= scores[1]["Score"] ? "n1" : "n2";
  EXPECT_EQ(passed(), (json{best}));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_nodes_left_out_total 2"), std::string::npos);
  pod["spec"]["topologySpreadConstraints"] = {{{"whenUnsatisfiable", "ScheduleAnyway"}}};
  EXPECT_EQ(passed(), kNames) << "it prefers nodes itself";
  pod = pod_object("p", "4", {{"gpulet.io/policy", "topology"}});
  EXPECT_EQ(passed(), (json{"n2"})) << "the one with four that are linked";
  pod = pod_object("p", "0");
  EXPECT_EQ(passed(), kNames) << "it asks for no GPU";
}

TEST_F(ServiceTest, AFaultMovesNewPodsAway) {
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4")}, {"NodeNames", {"n2"}}};
  EXPECT_EQ(post("/filter", body)["NodeNames"], (json{"n2"}));
  auto broken = scheduler::test_node(8, 4);
  scheduler::hold(broken, "team/two", {0, 1, 2, 3});
  scheduler::quarantine(broken, 6, "XID 79: GPU has fallen off the bus");
  change("gpunodes", "MODIFIED", object_of("n2", broken));
  EXPECT_TRUE(cluster::eventually([&] { return post("/filter", body)["NodeNames"].empty(); }));
  const auto told = events();
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told[0].reason, kNowhereReason);
  EXPECT_EQ(told[0].message, "none of 1 node: n2: 4/8 held, 1 quarantined (XID 79), 3 free of 4 wanted");
  EXPECT_EQ(told[0].pod->uid, "uid-p");
  EXPECT_EQ(told.size(), 1U) << "the same is told once";
}

TEST_F(ServiceTest, APodThatIsBoundIsAssumedAndOneThatIsGoneIsNot) {
  pods_.push_back(pod_object("early", "2", json::object(), "n2"));
  begin_ready();
  const json body = {{"Pod", pod_object("p", "4")}, {"NodeNames", {"n2"}}};
  EXPECT_TRUE(post("/filter", body)["NodeNames"].empty());
  change("pods", "DELETED", pod_object("early", "2", json::object(), "n2"));
  EXPECT_TRUE(cluster::eventually([&] { return !post("/filter", body)["NodeNames"].empty(); }));
  change("pods", "ADDED", pod_object("late", "1", json::object(), "n2"));
  EXPECT_TRUE(cluster::eventually([&] { return post("/filter", body)["NodeNames"].empty(); }));
}

TEST_F(ServiceTest, AMalformedAnnotationIsToldAndTheDefaultUsed) {
  begin_ready();
  const json pod = pod_object("p", "4", {{"gpulet.io/gpu-links", "fast"}, {"gpulet.io/policy", "bestest"}});
  const auto filtered = post("/filter", {{"Pod", pod}, {"NodeNames", kNames}});
  EXPECT_EQ(filtered["NodeNames"], kNames) << "never a refusal of the list";
  post("/filter", {{"Pod", pod}, {"NodeNames", kNames}});
  const auto told = events();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].reason, kMalformedReason);
  EXPECT_NE(told[0].message.find("gpulet.io/gpu-links is \"fast\": NV, NV with a number"), std::string::npos)
      << told[0].message;
  EXPECT_NE(told[0].message.find("gpulet.io/policy is \"bestest\": accepted are"), std::string::npos);
}

TEST_F(ServiceTest, TheNamespacesPolicyCountsWhereThePodNamesNone) {
  begin_ready();
  EXPECT_NE(get("/explain?namespace=team&pod=waiting").body->find("scored by binpack (of the namespace)"),
            std::string::npos);
  change(
      "namespaces", "MODIFIED",
      {{"metadata",
        {{"name", "team"}, {"resourceVersion", "8"}, {"annotations", {{"gpulet.io/policy", "nonsense"}}}}}});
  EXPECT_TRUE(cluster::eventually([&] {
    const auto text = *get("/explain?namespace=team&pod=waiting").body;
    return text.find("scored by topology (the default)") != std::string::npos &&
           text.find("gpulet.io/policy of namespace team is \"nonsense\"") != std::string::npos;
  }));
}

TEST_F(ServiceTest, ExplainsAPodThatWaitsAndOneThatIsBound) {
  begin_ready();
  const auto waiting = *get("/explain?namespace=team&pod=waiting").body;
  EXPECT_NE(waiting.find("It fits on 1 node:\n  n2  score 10/10  GPU 4, 5, 6, 7, linked by NV4"),
            std::string::npos)
      << waiting;
  const auto bound = json::parse(*get("/explain?namespace=team&pod=two&format=json").body);
  EXPECT_EQ(bound["node"], "n2");
  EXPECT_EQ(bound["devices"], "GPU 0, 1, 2, 3, linked by NV4");
  EXPECT_EQ(get("/explain?namespace=team&pod=nobody").status, 404);
  EXPECT_EQ(get("/explain?namespace=team&pod=%2e%2e%2f").status, 400);
  EXPECT_EQ(get("/explain").status, 400);
}

TEST_F(ServiceTest, IsReadyOnceEverythingIsListed) {
  begin();
  ASSERT_TRUE(cluster::eventually([&] { return get("/readyz").status == 200; }));
  EXPECT_EQ(get("/healthz").status, 200);
  call([&] { service_->leave(); });
  EXPECT_EQ(get("/readyz").status, 503);
  const auto page = *get("/metrics").body;
  for (const char* line :
       {"gpulet_scheduler_ready 1", "gpulet_scheduler_nodes 2", "gpulet_scheduler_lists_total 3",
        "gpulet_scheduler_decision_seconds_count{verb=\"filter\"} 0",
        "gpulet_scheduler_nodes_refused_total{reason=\"links\"} 0"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

TEST_F(ServiceTest, WhatIsNoQuestionIsRefused) {
  begin_ready();
  EXPECT_EQ(ask("POST", "/filter", "{").status, 400);
  EXPECT_EQ(ask("POST", "/prioritize", std::string(100'000, '[')).status, 400);
  EXPECT_EQ(ask("GET", "/filter").status, 405);
  EXPECT_EQ(ask("POST", "/metrics").status, 405);
  EXPECT_EQ(ask("GET", "/nothing").status, 404);
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_bad_requests_total 2"), std::string::npos);
}

TEST_F(ServiceTest, AnObjectThatCannotBeReadIsAsNone) {
  nodes_.push_back({{"metadata", {{"name", "n3"}}}, {"spec", {{"version", 99}}}});
  begin_ready();
  const json body = {{"Pod", pod_object("p", "9")}, {"NodeNames", kNames}};
  EXPECT_EQ(post("/filter", body)["NodeNames"], (json{"n3"}));
  EXPECT_NE(get("/metrics").body->find("gpulet_scheduler_objects_refused_total 1"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::extender
