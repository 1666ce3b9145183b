#include "metrics_api/server.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "http/test_client.h"
#include "k8s/test_api.h"
#include "metrics_api/test_agent.h"

namespace gpulet::metrics_api {
namespace {

using namespace std::chrono_literals;
using k8s::eventually;
using k8s::Received;
using nlohmann::json;

const std::string kBase = "/apis/custom.metrics.k8s.io/v1beta2";
const std::string kPods = kBase + "/namespaces/models/pods/";
constexpr const char* kTokens = "POST /apis/authentication.k8s.io/v1/tokenreviews";
constexpr const char* kRights = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

struct Row {
  std::string name, ip, node;
};

std::string pod_table(const std::vector<Row>& rows, const std::string& more = "") {
  json made = {{"kind", "Table"},
               {"metadata", {{"continue", more}}},
               {"columnDefinitions", json::array()},
               {"rows", json::array()}};
  for (const char* column : {"Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"}) {
    made["columnDefinitions"].push_back({{"name", column}});
  }
  for (const auto& row : rows) {
    made["rows"].push_back({{"cells", {row.name, "1/1", "Running", "0", "1d", row.ip, row.node}}});
  }
  return made.dump();
}

std::string agent_metrics_page(const std::string& pod, int utilization, double age = 0) {
  return "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-" + pod + "\",namespace=\"models\",pod=\"" + pod + "\"} " +
         std::to_string(utilization) + "\ngpulet_sample_age_seconds " + std::to_string(age) + "\n";
}

// A cluster of two nodes: Pods `a` on n1 and `b` on n2, with an agent on each.
class MetricsServerTest : public k8s::ApiTest {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    k8s::ApiTest::SetUp();
    proxies_ = Certificate::make_certificate("front proxies", nullptr, "");
    proxy_ = Certificate::make_certificate("front-proxy-client", &proxies_, "");
    replies_["kube-system/configmaps"] = {200, config_map(proxies_), {}, {}};
    replies_[kRights] = {201, R"({"status":{"allowed":true}})", {}, {}};
    replies_["/namespaces/gpulet/pods"] = {
        200, pod_table({{"gpulet-1", "127.0.0.1", "n1"}, {"gpulet-2", "127.0.0.2", "n2"}}), {}, {}};
    replies_["/namespaces/models/pods"] = {
        200, pod_table({{"a", "10.0.0.1", "n1"}, {"b", "10.0.0.2", "n2"}}), {}, {}};
    start_server([this](const Received& request) { return reply_to(request); });
    one_ = std::make_unique<TestAgent>("127.0.0.1:0");
    two_ = std::make_unique<TestAgent>("127.0.0.2:" + std::to_string(one_->agent_port()));
    one_->set_page(200, agent_metrics_page("a", 80));
    two_->set_page(200, agent_metrics_page("b", 20));
    options_.listen = "127.0.0.1:0";
    options_.agents.name_space = "gpulet";
    options_.scrape.port = one_->agent_port();
    options_.pages.refresh_after = 1h;
  }
  void release_source() override { running_.reset(); }

  static std::string config_map(const Certificate& authority) {
    const json map = {{"metadata", {{"resourceVersion", "5"}}},
                      {"data",
                       {{"requestheader-client-ca-file", authority.pem()},
                        {"requestheader-allowed-names", R"(["front-proxy-client"])"},
                        {"requestheader-username-headers", R"(["X-Remote-User"])"},
                        {"requestheader-group-headers", R"(["X-Remote-Group"])"},
                        {"requestheader-extra-headers-prefix", R"(["X-Remote-Extra-"])"}}}};
    return json({{"metadata", {{"resourceVersion", "5"}}}, {"items", json::array({map})}}).dump();
  }
  Reply reply_to(const Received& request) {
    const std::string line = request.line();
    if (line.find("watch=true") != std::string::npos) {
      return {200, "", {}, [this](Stream& stream) {
                while (stream.wait_open(5)) {
                  const std::lock_guard lock(mutex_);
                  if (!changes_.empty()) stream.chunk(std::exchange(changes_, {}));
                }
                return false;
              }};
    }
    const std::lock_guard lock(mutex_);
    const Reply* best = nullptr;
    std::size_t length = 0;
    for (const auto& [part, reply] : replies_) {
      if (part.size() < length || line.find(part) == std::string::npos) continue;
      best = &reply;
      length = part.size();
    }
    return best != nullptr ? *best : Reply{404, "{}", {}, {}};
  }
  void set_reply(const std::string& part, Reply reply) {
    const std::lock_guard lock(mutex_);
    replies_[part] = std::move(reply);
  }
  std::vector<Received> request_count(const std::string& part) {
    std::vector<Received> found;
    for (auto& request : server_->received_requests()) {
      if (request.line().find(part) != std::string::npos) found.push_back(std::move(request));
    }
    return found;
  }

  void start_test_server(bool until_ready = true) {
    call_on_loop([this] {
      auto started = Server::start_server(loop_, client_config(), options_);
      ASSERT_TRUE(started) << started.error().full_message();
      running_ = std::move(*started);
      port_ = running_->bound_port();
    });
    ASSERT_NE(port_, 0);
    if (until_ready) {
      ASSERT_TRUE(eventually([this] { return http::status_code(send_get("/readyz", nullptr)) == 200; }));
    }
  }
  std::string send_get(const std::string& target, const Certificate* client, const std::string& fields = "") {
    http::TestClient connection(port_);
    if (!connection.encrypt(client)) return "";
    connection.send_bytes("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields +
                          "\r\n");
    return connection.read_response();
  }
  // As the API server forwards it for a user.
  std::string as(const std::string& user, const std::string& target, const std::string& fields = "") {
    return send_get(target, &proxy_, "X-Remote-User: " + user + "\r\n" + fields);
  }
  // "a=80 b=20"
  std::string values(const std::string& what = "*/gpu_utilization") {
    const std::string got = as("hpa", kPods + what);
    if (http::status_code(got) != 200) return std::to_string(http::status_code(got)) + " " + message(got);
    std::string text;
    const auto list = json::parse(http::response_body(got));
    for (const auto& item : list["items"]) {
      text += (text.empty() ? "" : " ") + item["describedObject"]["name"].get<std::string>() + "=" +
              item["value"].get<std::string>();
    }
    return text;
  }
  static std::string message(const std::string& got) {
    const auto status = json::parse(http::response_body(got), nullptr, false);
    return status.is_object() ? status.value("message", "") : got;
  }

  Certificate proxies_, proxy_;
  std::mutex mutex_;
  std::map<std::string, Reply> replies_;  // by a substring of the request line; the longest wins
  std::string changes_;                   // next event of the watch
  std::unique_ptr<TestAgent> one_, two_;
  ServerOptions options_;
  std::unique_ptr<Server> running_;
  std::uint16_t port_ = 0;
};

TEST_F(MetricsServerTest, IsReadyOnceTheFrontProxyIsKnown) {
  set_reply("kube-system/configmaps", {403, R"({"message":"not you"})", {}, {}});
  start_test_server(false);
  EXPECT_EQ(http::status_code(send_get("/healthz", nullptr)), 200);
  EXPECT_EQ(http::status_code(send_get("/livez", nullptr)), 200);
  EXPECT_TRUE(eventually([this] { return !request_count("kube-system/configmaps").empty(); }));
  EXPECT_EQ(http::status_code(send_get("/readyz", nullptr)), 503);
  // An unverified certificate is ignored.
  EXPECT_EQ(http::status_code(as("hpa", kBase)), 401);
}

TEST_F(MetricsServerTest, Discovery) {
  start_test_server();
  EXPECT_EQ(json::parse(http::response_body(as("hpa", "/apis")))["kind"], "APIGroupList");
  EXPECT_EQ(json::parse(http::response_body(as("hpa", "/apis/custom.metrics.k8s.io")))["kind"], "APIGroup");
  EXPECT_EQ(json::parse(http::response_body(as("hpa", kBase)))["groupVersion"],
            "custom.metrics.k8s.io/v1beta2");
  EXPECT_EQ(http::status_code(as("hpa", "/openapi/v2")), 404);
  EXPECT_EQ(http::status_code(as("hpa", "/openapi/v3")), 404);
  EXPECT_EQ(message(as("hpa", kPods + "*/cpu")), "the server could not find the requested resource");
}

TEST_F(MetricsServerTest, ReturnsValuesOfSelectedPods) {
  start_test_server();
  const std::string got = as("hpa", kPods + "*/gpu_utilization?labelSelector=app%3Dx%2Ctier%20in%20%28a%29");
  ASSERT_EQ(http::status_code(got), 200);
  const auto list = json::parse(http::response_body(got));
  ASSERT_EQ(list["items"].size(), 2u);
  EXPECT_EQ(list["items"][0]["describedObject"],
            json::parse(R"({"kind":"Pod","apiVersion":"v1","namespace":"models","name":"a"})"));
  EXPECT_EQ(list["items"][0]["metric"], json::parse(R"({"name":"gpu_utilization"})"));
  EXPECT_EQ(list["items"][0]["value"], "80");
  EXPECT_EQ(list["items"][1]["value"], "20");
  const auto listed = request_count("/namespaces/models/pods");
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].line(),
            "GET /api/v1/namespaces/models/"
            "pods?includeObject=None&limit=500&labelSelector=app%3Dx%2Ctier%20in%20%28a%29");
  EXPECT_NE(listed[0].head.find("Accept: application/json;as=Table;g=meta.k8s.io;v=v1"), std::string::npos);
  EXPECT_EQ(request_count("/namespaces/gpulet/pods")[0].line(),
            "GET /api/v1/namespaces/gpulet/"
            "pods?includeObject=None&limit=500&labelSelector=app.kubernetes.io%2Fname%3Dgpulet");
}

TEST_F(MetricsServerTest, TheForecastIsNeverBelowThePresentUse) {
  start_test_server();
  EXPECT_EQ(values("*/gpu_utilization_forecast"), "a=80 b=20");
  EXPECT_EQ(values("*/gpu_utilization_forecast?metricLabelSelector=horizon%3D3h"), "a=80 b=20");
  EXPECT_EQ(values("*/gpu_utilization_forecast?metricLabelSelector=horizon%3Dsoon"),
            "400 metricLabelSelector is \"horizon=soon\"; expected horizon= and 1m to 24h");
}

TEST_F(MetricsServerTest, ReadsListsInPages) {
  set_reply("/namespaces/models/pods", {200, pod_table({{"a", "10.0.0.1", "n1"}}, "more="), {}, {}});
  set_reply("/namespaces/models/pods?includeObject=None&limit=500&continue=more%3D",
            {200, pod_table({{"pending", "<none>", "<none>"}, {"b", "10.0.0.2", "n2"}}), {}, {}});
  start_test_server();
  EXPECT_EQ(values(), "a=80 b=20");
}

TEST_F(MetricsServerTest, ReturnsTheValueOfOnePod) {
  set_reply("/namespaces/models/pods", {200, pod_table({{"a", "10.0.0.1", "n1"}}), {}, {}});
  start_test_server();
  EXPECT_EQ(values("a/gpu_utilization"), "a=80");
  EXPECT_NE(request_count("/namespaces/models/pods")[0].line().find("&fieldSelector=metadata.name%3Da"),
            std::string::npos);
  EXPECT_EQ(values("a/gpu_power_watts"), "404 gpu_power_watts of Pod models/a has no value");
  EXPECT_EQ(values("*/gpu_power_watts"), "");
}

TEST_F(MetricsServerTest, RejectsUnauthenticatedRequests) {
  set_reply(kTokens, {201, R"({"status":{"authenticated":false}})", {}, {}});
  start_test_server();
  const std::string target = kPods + "*/gpu_utilization";
  EXPECT_EQ(http::status_code(send_get(target, nullptr)), 401);
  EXPECT_EQ(http::status_code(
                send_get(target, nullptr, "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n")),
            401);
  EXPECT_EQ(http::status_code(send_get(target, nullptr, "Authorization: Bearer guessed\r\n")), 401);
  EXPECT_EQ(http::status_code(send_get(target, nullptr, "Authorization: Basic YTpi\r\n")), 401);
  EXPECT_EQ(http::status_code(send_get("/no/such/path", nullptr)), 401);
  // Signed by the right CA, but not the front proxy.
  const auto other = Certificate::make_certificate("somebody", &proxies_, "");
  EXPECT_EQ(http::status_code(send_get(target, &other, "X-Remote-User: admin\r\n")), 401);
  // Signed by another CA: the handshake fails.
  const auto forged = Certificate::make_certificate("front-proxy-client", nullptr, "");
  EXPECT_EQ(send_get(target, &forged, "X-Remote-User: admin\r\n"), "");
  EXPECT_TRUE(request_count(kRights).empty());
  EXPECT_TRUE(request_count("/pods").empty());
}

TEST_F(MetricsServerTest, AuthorizesAndCachesTheReview) {
  start_test_server();
  EXPECT_EQ(http::status_code(as("hpa", kPods + "*/gpu_utilization?labelSelector=app%3Dx",
                                 "X-Remote-Group: g1\r\nX-Remote-Group: g2\r\nX-Remote-Extra-Key: v\r\n")),
            200);
  ASSERT_EQ(request_count(kRights).size(), 1u);
  EXPECT_EQ(json::parse(request_count(kRights)[0].body),
            json::parse(R"({"apiVersion":"authorization.k8s.io/v1",
    "kind":"SubjectAccessReview","spec":{"user":"hpa","uid":"","groups":["g1","g2","system:authenticated"],
    "extra":{"key":["v"]},
    "resourceAttributes":{"namespace":"models","verb":"get","group":"custom.metrics.k8s.io","version":"v1beta2",
    "resource":"pods","subresource":"gpu_utilization","name":"*"}}})"));
  as("hpa", kBase + "?timeout=32s");
  as("hpa", kBase + "?timeout=32s");
  ASSERT_EQ(request_count(kRights).size(), 2u);
  EXPECT_EQ(json::parse(request_count(kRights)[1].body)["spec"]["nonResourceAttributes"],
            json::parse(R"({"path":"/apis/custom.metrics.k8s.io/v1beta2","verb":"get"})"));

  set_reply(kRights, {201, R"({"status":{"allowed":false,"reason":"no"}})", {}, {}});
  const auto refused = as("mallory", kPods + "*/gpu_utilization");
  EXPECT_EQ(http::status_code(refused), 403);
  EXPECT_EQ(message(refused), "User \"mallory\" is not allowed to get this");
  // Unauthorized users do not learn whether the request is valid.
  EXPECT_EQ(http::status_code(as("mallory", kPods + "*/m?watch=true")), 403);
  // No review for users who may do everything.
  const auto before = request_count(kRights).size();
  EXPECT_EQ(http::status_code(as("system:kube-aggregator", kBase, "X-Remote-Group: system:masters\r\n")),
            200);
  EXPECT_EQ(request_count(kRights).size(), before);
  set_reply(kRights, {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(http::status_code(as("another", kBase)), 503);
}

TEST_F(MetricsServerTest, AuthenticatesBearerTokens) {
  set_reply(kTokens, {201,
                      R"({"status":{"authenticated":true,"user":{"username":"prom","uid":"1","groups":["g"],
                         "extra":{"k":["v"]}}}})",
                      {},
                      {}});
  start_test_server();
  const std::string field = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(http::status_code(send_get(kBase, nullptr, field)), 200);
  EXPECT_EQ(http::status_code(send_get(kBase, nullptr, field)), 200);
  ASSERT_EQ(request_count(kTokens).size(), 1u);
  EXPECT_EQ(json::parse(request_count(kTokens)[0].body)["spec"], json::parse(R"({"token":"secret"})"));
  const auto spec = json::parse(request_count(kRights)[0].body)["spec"];
  EXPECT_EQ(spec["user"], "prom");
  EXPECT_EQ(spec["groups"], json::parse(R"(["g","system:authenticated"])"));
  EXPECT_EQ(spec["extra"], json::parse(R"({"k":["v"]})"));
  set_reply(kTokens, {500, "{}", {}, {}});
  EXPECT_EQ(http::status_code(send_get(kBase, nullptr, "Authorization: Bearer other\r\n")), 503);
}

TEST_F(MetricsServerTest, FailedAgentAffectsOnlyItsOwnPods) {
  options_.scrape.timeout = 300ms;
  options_.pages.refresh_after = 0ms;
  start_test_server();
  EXPECT_EQ(values(), "a=80 b=20");
  two_->set_page(500, "");
  one_->set_page(200, agent_metrics_page("a", 81));
  EXPECT_EQ(values(), "a=81 b=20") << "its last answer is not too old";
  EXPECT_EQ(request_count("/namespaces/gpulet/pods").size(), 1u)
      << "the agents are listed at most every five seconds";
}

TEST_F(MetricsServerTest, OmitsStaleValues) {
  options_.pages.max_age = 10s;
  one_->set_page(200, agent_metrics_page("a", 80, 9));
  two_->set_page(200, agent_metrics_page("b", 20, 11));
  start_test_server();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(MetricsServerTest, DoesNotWaitForAHangingAgent) {
  options_.scrape.timeout = 200ms;
  two_->stop_answering();
  start_test_server();
  EXPECT_EQ(values(), "a=80");
  // Not requested again before its time.
  EXPECT_EQ(values(), "a=80");
  EXPECT_EQ(two_->request_count(), 1);
  EXPECT_EQ(one_->request_count(), 1);
}

TEST_F(MetricsServerTest, RejectsPagesThatAreTooLarge) {
  two_->set_page(200, agent_metrics_page("b", 20) + std::string(kMaxPageBytes, '\n'));
  start_test_server();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(MetricsServerTest, OmitsNodesWithoutAgent) {
  set_reply("/namespaces/gpulet/pods", {200, pod_table({{"gpulet-1", "127.0.0.1", "n1"}}), {}, {}});
  start_test_server();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(MetricsServerTest, ReportsErrorsOfTheApiServer) {
  set_reply("/namespaces/models/pods", {400, R"({"message":"unable to parse"})", {}, {}});
  start_test_server();
  EXPECT_EQ(values(), "400 the API server answered 400: unable to parse");
  set_reply("/namespaces/models/pods", {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(values(), "500 missing permission: list on pods: the API server answered 403: no right");
  set_reply("/namespaces/models/pods", {200, R"({"kind":"PodList","items":[]})", {}, {}});
  EXPECT_EQ(values(), "503 the API server's response is not a table of Pods");
  set_reply("/namespaces/models/pods", {200, pod_table({{"a", "10.0.0.1", "n1"}}), {}, {}});
  set_reply("/namespaces/gpulet/pods", {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(values(), "500 missing permission: list on pods: the API server answered 403: no right");
}

TEST_F(MetricsServerTest, FollowsFrontProxyChanges) {
  start_test_server();
  EXPECT_EQ(values(), "a=80 b=20");
  const auto before = proxy_;
  proxies_ = Certificate::make_certificate("other front proxies", nullptr, "");
  proxy_ = Certificate::make_certificate("front-proxy-client", &proxies_, "");
  {
    const std::lock_guard lock(mutex_);
    const auto list = json::parse(config_map(proxies_));
    json map = list["items"][0];
    map["metadata"]["resourceVersion"] = "6";
    changes_ = json({{"type", "MODIFIED"}, {"object", map}}).dump() + "\n";
  }
  EXPECT_TRUE(eventually([this] { return http::status_code(as("hpa", kBase)) == 200; }));
  EXPECT_EQ(send_get(kBase, &before, "X-Remote-User: hpa\r\n"), "");
}

TEST_F(MetricsServerTest, ReloadsItsCertificate) {
  const auto write = [this](const std::string& name) {
    const auto made = Certificate::make_certificate(name, nullptr, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(directory_ + "/tls.key", made.key_pem()));
    ASSERT_TRUE(write_file_atomic(directory_ + "/tls.crt", made.pem()));
  };
  const auto shown = [this] {
    http::TestClient client(port_);
    return client.encrypt() ? client.server_name() : "";
  };
  write("first");
  options_.certificate_file = directory_ + "/tls.crt";
  options_.key_file = directory_ + "/tls.key";
  start_test_server();
  EXPECT_EQ(shown(), "first");
  write("second");
  EXPECT_TRUE(eventually([&] { return shown() == "second"; }));
  // An invalid one changes nothing.
  ASSERT_TRUE(write_file_atomic(directory_ + "/tls.crt", "junk"));
  EXPECT_EQ(shown(), "second");
  EXPECT_EQ(values(), "a=80 b=20");
}

TEST_F(MetricsServerTest, CreatesASelfSignedCertificate) {
  start_test_server();
  http::TestClient client(port_);
  ASSERT_TRUE(client.encrypt());
  EXPECT_EQ(client.server_name(), "gpulet-metrics-api");
}

TEST_F(MetricsServerTest, RejectsInvalidOptions) {
  options_.key_file = directory_ + "/tls.key";
  call_on_loop([this] { EXPECT_FALSE(Server::start_server(loop_, client_config(), options_)); });
  options_.certificate_file = directory_ + "/absent";
  call_on_loop([this] {
    const auto started = Server::start_server(loop_, client_config(), options_);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().subject(), directory_ + "/absent");
  });
  options_.certificate_file = options_.key_file = "";
  options_.listen = "nowhere";
  call_on_loop([this] { EXPECT_FALSE(Server::start_server(loop_, client_config(), options_)); });
}

TEST_F(MetricsServerTest, ScrapesAgentsWithTlsAndPassword) {
  const auto authority = Certificate::make_certificate("agents", nullptr, "");
  const auto agent = Certificate::make_certificate("agent", &authority, "agent.internal");
  ASSERT_TRUE(write_file_atomic(directory_ + "/agents.crt", authority.pem()));
  ASSERT_TRUE(write_file_atomic(directory_ + "/password", "alice:secret\n"));
  const http::AccessRules closed = {
      .tls = http::TlsServerConfig{.certificate = agent.pem(), .key = agent.key_pem()},
      .users = {{"alice", http::secret_hash()}}};
  TestAgent secret("127.0.0.3:0", closed);
  secret.set_page(200, agent_metrics_page("a", 7));
  set_reply("/namespaces/gpulet/pods", {200, pod_table({{"gpulet-1", "127.0.0.3", "n1"}}), {}, {}});
  options_.scrape.https = true;
  options_.scrape.port = secret.agent_port();
  options_.scrape.ca_file = directory_ + "/agents.crt";
  options_.scrape.server_name = "agent.internal";
  options_.scrape.basic_auth_file = directory_ + "/password";
  options_.pages.refresh_after = 0ms;
  start_test_server();
  EXPECT_EQ(values(), "a=7");
  ASSERT_TRUE(write_file_atomic(directory_ + "/password", "alice:wrong\n"));
  call_on_loop([this] { running_.reset(); });
  start_test_server();
  EXPECT_EQ(values(), "");
  ASSERT_TRUE(write_file_atomic(directory_ + "/password", "alice:secret\n"));
  options_.scrape.server_name = "other.internal";
  call_on_loop([this] { running_.reset(); });
  start_test_server();
  EXPECT_EQ(values(), "");
}

}  // namespace
}  // namespace gpulet::metrics_api
