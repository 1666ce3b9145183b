#include "extender/cluster_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "k8s/test_api.h"
#include "metrics_api/request_pool.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

// Answers as the extender would.
class FakeExplainer final : public http::RequestHandler {
 public:
  void handle_request(const http::Request& request, Time, const http::ResponseCallback& reply) override {
    reply({.body = std::make_shared<const std::string>("explained " + std::string(request.target))});
  }
};

TEST(ClusterPage, KeepsADocumentAndKnowsItByItsEtag) {
  ManualLoop loop;
  scheduler::ClusterState cluster;
  PageFacts facts;
  FakeExplainer explainer;
  std::vector<std::string> problems = {"initial lists are incomplete"};
  cluster.set_node("n1", scheduler::test_node(2, 2));
  ClusterPage page({.loop = loop,
                    .document = {.cluster = cluster, .facts = facts, .node_page = ""},
                    .problems = [&] { return problems; },
                    .extender = explainer});
  std::vector<http::Response> responses;
  const auto send = [&](const std::string& target, const std::string& etag = "", bool gzip = false) {
    responses.clear();
    http::Request request{.method = "GET", .target = target};
    if (gzip) request.accept_encoding = "gzip";
    if (!etag.empty()) request.fields.emplace_back("if-none-match", etag);
    page.handle_request(request, loop.now(),
                        [&](http::Response one) { responses.push_back(std::move(one)); });
    loop.advance(Duration::zero());
    EXPECT_EQ(responses.size(), 1U) << target;
    return responses.empty() ? http::Response{.status = 0, .body = nullptr} : responses[0];
  };
  const auto early = send("/api/cluster");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(*early.body, "initial lists are incomplete\n");
  problems.clear();

  const auto first = send("/api/cluster");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.content_type, "application/json");
  EXPECT_EQ(json::parse(*first.body)["nodes"][0]["name"], "n1");
  ASSERT_FALSE(first.etag.empty());
  const auto packed = send("/api/cluster", "", true);
  EXPECT_TRUE(packed.gzipped);
  EXPECT_EQ(http::gunzip(*packed.body, 1u << 20), *first.body);
  const auto same = send("/api/cluster", first.etag);
  EXPECT_EQ(same.status, 304);
  EXPECT_TRUE(same.body->empty());
  EXPECT_EQ(page.document_count(), 1U);
  const auto head = http::response_head(same, true);
  EXPECT_NE(head.find("HTTP/1.1 304 Not Modified\r\nETag: " + first.etag), std::string::npos) << head;
  EXPECT_EQ(head.find("Content-Length"), std::string::npos) << head;

  loop.advance(kDocumentLifetime);
  EXPECT_EQ(send("/api/cluster", first.etag).status, 304) << "made again, and equal";
  EXPECT_EQ(page.document_count(), 2U);
  cluster.set_node("n2", scheduler::test_node(2, 2));
  EXPECT_EQ(send("/api/cluster", first.etag).status, 304) << "as long as it lives";
  loop.advance(kDocumentLifetime);
  const auto changed = send("/api/cluster", first.etag);
  EXPECT_EQ(changed.status, 200);
  EXPECT_EQ(json::parse(*changed.body)["nodes"].size(), 2U);

  EXPECT_EQ(*send("/api/explain?namespace=a&pod=b").body, "explained /explain?namespace=a&pod=b");
  for (const auto& [path, type] : {std::pair("/", "text/html; charset=utf-8"),
                                   {"/cluster", "text/html; charset=utf-8"},
                                   {"/cluster.js", "text/javascript; charset=utf-8"},
                                   {"/cluster.css", "text/css; charset=utf-8"},
                                   {"/chinese.json", "application/json"},
                                   {"/cluster-chinese.json", "application/json"},
                                   {"/icon.svg", "image/svg+xml"}}) {
    EXPECT_EQ(send(path).content_type, type) << path;
  }
  EXPECT_EQ(send("/page.js").status, 404);
  EXPECT_EQ(send("/filter").status, 404);
}

TEST(ClusterPage, BoundsTheReadersThatWait) {
  ManualLoop loop;
  scheduler::ClusterState cluster;
  PageFacts facts;
  FakeExplainer explainer;
  ClusterPage page({.loop = loop,
                    .document = {.cluster = cluster, .facts = facts, .node_page = ""},
                    .problems = [] { return std::vector<std::string>(); },
                    .extender = explainer});
  std::map<int, std::size_t> counts;
  for (std::size_t i = 0; i <= kMaxWaitingReaders; ++i) {
    page.handle_request({.method = "GET", .target = "/api/cluster"}, loop.now(),
                        [&](const http::Response& one) { ++counts[one.status]; });
  }
  EXPECT_EQ(counts[503], 1U);
  EXPECT_EQ(counts[200], 0U);
  loop.advance(Duration::zero());
  EXPECT_EQ(counts[200], kMaxWaitingReaders);
  EXPECT_EQ(page.document_count(), 1U);
}

// An API server that knows two users, and has what the page follows.
class ClusterPageApiTest : public k8s::ApiTest {
 protected:
  void release_source() override {
    page_.reset();
    reviewer_.reset();
    tokens_.reset();
    rights_.reset();
    watcher_.reset();
  }
  void begin() {
    start_server([this](const Received& request) { return answer(request); });
    call_on_loop([&] {
      watcher_.emplace(loop_, client_config(), k8s::CollectionTiming{.backoff = {1ms, 5ms}});
      tokens_.emplace(loop_, client_config(), metrics_api::RequestPoolLimits{});
      rights_.emplace(loop_, client_config(), metrics_api::RequestPoolLimits{});
      reviewer_.emplace(loop_, *tokens_, *rights_);
      page_.emplace(ClusterPageDependencies{
          .loop = loop_,
          .document = {.cluster = cluster_, .facts = watcher_->facts(), .node_page = ""},
          .problems = [] { return std::vector<std::string>(); },
          .reviewer = &*reviewer_,
          .extender = explainer_});
    });
  }
  static Reply answer(const Received& request) {
    const auto line = request.line();
    if (line.find("/tokenreviews") != std::string::npos) {
      const auto token = json::parse(request.body)["spec"]["token"].get<std::string>();
      const json user = {{"username", token}};
      return {201, json{{"status", {{"authenticated", token != "forged"}, {"user", user}}}}.dump()};
    }
    if (line.find("/subjectaccessreviews") != std::string::npos) {
      const auto spec = json::parse(request.body)["spec"];
      const bool asks_for_page = spec["nonResourceAttributes"] == json{{"path", "/cluster"}, {"verb", "get"}};
      return {201, json{{"status", {{"allowed", asks_for_page && spec["user"] == "viewer"}}}}.dump()};
    }
    if (line.find("watch=true") != std::string::npos) {
      return {.status = 200, .script = [](Stream& stream) {
                while (stream.wait_open(50)) {
                }
                return true;
              }};
    }
    const auto list = [](const json& items) {
      return Reply{200, json{{"metadata", {{"resourceVersion", "7"}}}, {"items", items}}.dump()};
    };
    const json waiting = {
        {"metadata", {{"namespace", "team"}, {"name", "waits"}}},
        {"spec",
         {{"containers", {{{"name", "m"}, {"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}}}}}}};
    const json plain = {{"metadata", {{"namespace", "team"}, {"name", "no-gpu"}}},
                        {"spec", {{"containers", {{{"name", "m"}}}}}}};
    const json agent = {
        {"metadata", {{"namespace", "gpulet"}, {"name", "agent-1"}}},
        {"spec",
         {{"nodeName", "n1"}, {"containers", {{{"ports", {{{"name", "http"}, {"containerPort", 9444}}}}}}}}},
        {"status",
         {{"phase", "Running"},
          {"podIP", "10.0.0.7"},
          {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
    if (line.find("status.phase%3DPending") != std::string::npos) return list({waiting, plain});
    if (line.find("labelSelector=app.kubernetes.io%2Fname%3Dgpulet") != std::string::npos)
      return list(json::array({agent}));
    if (line.find("spec.unschedulable%3Dtrue") != std::string::npos)
      return list(json::array({{{"metadata", {{"name", "n9"}}}}}));
    return {404, R"({"kind":"Status","message":"not found"})"};
  }
  int status_for(const std::string& target, const std::string& authorization) {
    std::promise<int> promise;
    call_on_loop([&] {
      http::Request request{.method = "GET", .target = target};
      if (!authorization.empty()) request.fields.emplace_back("Authorization", authorization);
      page_->handle_request(request, loop_.now(),
                            [&](const http::Response& one) { promise.set_value(one.status); });
    });
    return promise.get_future().get();
  }

  scheduler::ClusterState cluster_;
  FakeExplainer explainer_;
  std::optional<PageWatcher> watcher_;
  std::optional<metrics_api::RequestPool> tokens_, rights_;
  std::optional<metrics_api::AccessReviewer> reviewer_;
  std::optional<ClusterPage> page_;
};

TEST_F(ClusterPageApiTest, AdmitsUsersWhomTheApiServerPermits) {
  begin();
  for (const char* target : {"/api/cluster", "/api/explain?pod=p"}) {
    EXPECT_EQ(status_for(target, ""), 401) << target;
    EXPECT_EQ(status_for(target, "Basic dmlld2VyOng="), 401) << target;
    EXPECT_EQ(status_for(target, "Bearer forged"), 401) << target;
    EXPECT_EQ(status_for(target, "Bearer stranger"), 403) << target;
    EXPECT_EQ(status_for(target, "Bearer viewer"), 200) << target;
  }
  EXPECT_EQ(status_for("/", ""), 200) << "the page itself tells nothing";
  EXPECT_EQ(status_for("/healthz", ""), 200);
}

TEST_F(ClusterPageApiTest, FollowsWaitingPodsAgentsAndCordons) {
  begin();
  const auto is_synced = [&] {
    bool synced = false;
    call_on_loop([&] { synced = watcher_->is_synced(); });
    return synced;
  };
  ASSERT_TRUE(k8s::eventually(is_synced));
  call_on_loop([&] {
    const auto& facts = watcher_->facts();
    ASSERT_EQ(facts.pending().size(), 1U);
    EXPECT_EQ(facts.pending().begin()->first, "team/waits");
    const auto* const agent = facts.find_agent("n1");
    ASSERT_NE(agent, nullptr);
    EXPECT_EQ(*agent, (AgentPod{.node = "n1", .address = "10.0.0.7", .port = 9444, .ready = true}));
    EXPECT_EQ(facts.cordoned(), std::set<std::string>{"n9"});
    EXPECT_TRUE(watcher_->current_problems().empty());
  });
}

TEST(PageFacts, CountsPendingPodsBeyondItsLimit) {
  PageFacts facts;
  for (std::size_t i = 0; i < kMaxPendingPods + 3; ++i)
    facts.set_pending(scheduler::test_pod("p" + std::to_string(i), 1));
  EXPECT_EQ(facts.pending().size(), kMaxPendingPods);
  EXPECT_EQ(facts.pending_left_out(), 3U);
  EXPECT_EQ(facts.pending_keys().size(), kMaxPendingPods + 3);
  facts.remove_pending("default/p" + std::to_string(kMaxPendingPods));
  EXPECT_EQ(facts.pending_left_out(), 2U);
}

}  // namespace
}  // namespace gpulet::extender
