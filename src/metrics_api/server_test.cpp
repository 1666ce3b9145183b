#include "metrics_api/server.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cluster/test_api.h"
#include "metrics_api/test_agent.h"
#include "web/test_client.h"

namespace gpulet::metrics_api {
namespace {

using namespace std::chrono_literals;
using cluster::eventually;
using cluster::Received;
using nlohmann::json;

const std::string kBase = "/apis/custom.metrics.k8s.io/v1beta2";
const std::string kPods = kBase + "/namespaces/models/pods/";
constexpr const char* kTokens = "POST /apis/authentication.k8s.io/v1/tokenreviews";
constexpr const char* kRights = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

struct Row {
  std::string name, ip, node;
};

std::string table(const std::vector<Row>& rows, const std::string& more = "") {
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

std::string page_of(const std::string& pod, int utilization, double age = 0) {
  return "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-" + pod + "\",namespace=\"models\",pod=\"" + pod + "\"} " +
         std::to_string(utilization) + "\ngpulet_sample_age_seconds " + std::to_string(age) + "\n";
}

// A cluster of two nodes: Pods `a` on n1 and `b` on n2, an agent on each.
class ServerTest : public cluster::ApiTest {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    cluster::ApiTest::SetUp();
    proxies_ = Certificate::make("front proxies", nullptr, "");
    proxy_ = Certificate::make("front-proxy-client", &proxies_, "");
    replies_["kube-system/configmaps"] = {200, config_map(proxies_), {}, {}};
    replies_[kRights] = {201, R"({"status":{"allowed":true}})", {}, {}};
    replies_["/namespaces/gpulet/pods"] = {
        200, table({{"gpulet-1", "127.0.0.1", "n1"}, {"gpulet-2", "127.0.0.2", "n2"}}), {}, {}};
    replies_["/namespaces/models/pods"] = {
        200, table({{"a", "10.0.0.1", "n1"}, {"b", "10.0.0.2", "n2"}}), {}, {}};
    serve([this](const Received& request) { return answer(request); });
    one_ = std::make_unique<TestAgent>("127.0.0.1:0");
    two_ = std::make_unique<TestAgent>("127.0.0.2:" + std::to_string(one_->port()));
    one_->say(200, page_of("a", 80));
    two_->say(200, page_of("b", 20));
    options_.listen = "127.0.0.1:0";
    options_.agents.name_space = "gpulet";
    options_.scrape.port = one_->port();
    options_.pages.fresh = 1h;
  }
  void let_go() override { running_.reset(); }

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
  Reply answer(const Received& request) {
    const std::string line = request.line();
    if (line.find("watch=true") != std::string::npos) {
      return {200, "", {}, [this](Stream& stream) {
                while (stream.wait(5)) {
                  const std::lock_guard lock(mutex_);
                  if (!news_.empty()) stream.chunk(std::exchange(news_, {}));
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
  std::vector<Received> asked(const std::string& part) {
    std::vector<Received> found;
    for (auto& request : server_->received()) {
      if (request.line().find(part) != std::string::npos) found.push_back(std::move(request));
    }
    return found;
  }

  void start(bool until_ready = true) {
    call([this] {
      auto started = Server::start(loop_, access(), options_);
      ASSERT_TRUE(started) << started.error().text();
      running_ = std::move(*started);
      port_ = running_->port();
    });
    ASSERT_NE(port_, 0);
    if (until_ready) {
      ASSERT_TRUE(eventually([this] { return web::status_of(ask("/readyz", nullptr)) == 200; }));
    }
  }
  std::string ask(const std::string& target, const Certificate* client, const std::string& fields = "") {
    web::Client connection(port_);
    if (!connection.encrypt(client)) return "";
    connection.send("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields + "\r\n");
    return connection.answer();
  }
  // As the API server sends it on for somebody.
  std::string as(const std::string& user, const std::string& target, const std::string& fields = "") {
    return ask(target, &proxy_, "X-Remote-User: " + user + "\r\n" + fields);
  }
  // "a=80 b=20"
  std::string values(const std::string& what = "*/gpu_utilization") {
    const std::string got = as("hpa", kPods + what);
    if (web::status_of(got) != 200) return std::to_string(web::status_of(got)) + " " + message(got);
    std::string text;
    const auto list = json::parse(web::body_of(got));
    for (const auto& item : list["items"]) {
      text += (text.empty() ? "" : " ") + item["describedObject"]["name"].get<std::string>() + "=" +
              item["value"].get<std::string>();
    }
    return text;
  }
  static std::string message(const std::string& got) {
    const auto status = json::parse(web::body_of(got), nullptr, false);
    return status.is_object() ? status.value("message", "") : got;
  }

  Certificate proxies_, proxy_;
  std::mutex mutex_;
  std::map<std::string, Reply> replies_;  // by a part of the request's line; the longest counts
  std::string news_;                      // the watch's next
  std::unique_ptr<TestAgent> one_, two_;
  ServerOptions options_;
  std::unique_ptr<Server> running_;
  std::uint16_t port_ = 0;
};

TEST_F(ServerTest, IsReadyOnceItKnowsWhomToTrust) {
  set_reply("kube-system/configmaps", {403, R"({"message":"not you"})", {}, {}});
  start(false);
  EXPECT_EQ(web::status_of(ask("/healthz", nullptr)), 200);
  EXPECT_EQ(web::status_of(ask("/livez", nullptr)), 200);
  EXPECT_TRUE(eventually([this] { return !asked("kube-system/configmaps").empty(); }));
  EXPECT_EQ(web::status_of(ask("/readyz", nullptr)), 503);
  // A certificate that nobody has vouched for is not even asked for.
  EXPECT_EQ(web::status_of(as("hpa", kBase)), 401);
}

TEST_F(ServerTest, Discovery) {
  start();
  EXPECT_EQ(json::parse(web::body_of(as("hpa", "/apis")))["kind"], "APIGroupList");
  EXPECT_EQ(json::parse(web::body_of(as("hpa", "/apis/custom.metrics.k8s.io")))["kind"], "APIGroup");
  EXPECT_EQ(json::parse(web::body_of(as("hpa", kBase)))["groupVersion"], "custom.metrics.k8s.io/v1beta2");
  EXPECT_EQ(web::status_of(as("hpa", "/openapi/v2")), 404);
  EXPECT_EQ(web::status_of(as("hpa", "/openapi/v3")), 404);
  EXPECT_EQ(message(as("hpa", kPods + "*/cpu")), "the server could not find the requested resource");
}

TEST_F(ServerTest, ValuesOfThePodsThatASelectorPicks) {
  start();
  const std::string got = as("hpa", kPods + "*/gpu_utilization?labelSelector=app%3Dx%2Ctier%20in%20%28a%29");
  ASSERT_EQ(web::status_of(got), 200);
  const auto list = json::parse(web::body_of(got));
  ASSERT_EQ(list["items"].size(), 2u);
  EXPECT_EQ(list["items"][0]["describedObject"],
            json::parse(R"({"kind":"Pod","apiVersion":"v1","namespace":"models","name":"a"})"));
  EXPECT_EQ(list["items"][0]["metric"], json::parse(R"({"name":"gpu_utilization"})"));
  EXPECT_EQ(list["items"][0]["value"], "80");
  EXPECT_EQ(list["items"][1]["value"], "20");
  const auto listed = asked("/namespaces/models/pods");
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].line(),
            "GET /api/v1/namespaces/models/"
            "pods?includeObject=None&limit=500&labelSelector=app%3Dx%2Ctier%20in%20%28a%29");
  EXPECT_NE(listed[0].head.find("Accept: application/json;as=Table;g=meta.k8s.io;v=v1"), std::string::npos);
  EXPECT_EQ(asked("/namespaces/gpulet/pods")[0].line(),
            "GET /api/v1/namespaces/gpulet/"
            "pods?includeObject=None&limit=500&labelSelector=app.kubernetes.io%2Fname%3Dgpulet");
}

TEST_F(ServerTest, AListComesInPages) {
  set_reply("/namespaces/models/pods", {200, table({{"a", "10.0.0.1", "n1"}}, "more="), {}, {}});
  set_reply("/namespaces/models/pods?includeObject=None&limit=500&continue=more%3D",
            {200, table({{"pending", "<none>", "<none>"}, {"b", "10.0.0.2", "n2"}}), {}, {}});
  start();
  EXPECT_EQ(values(), "a=80 b=20");
}

TEST_F(ServerTest, OnePod) {
  set_reply("/namespaces/models/pods", {200, table({{"a", "10.0.0.1", "n1"}}), {}, {}});
  start();
  EXPECT_EQ(values("a/gpu_utilization"), "a=80");
  EXPECT_NE(asked("/namespaces/models/pods")[0].line().find("&fieldSelector=metadata.name%3Da"),
            std::string::npos);
  EXPECT_EQ(values("a/gpu_power_watts"), "404 gpu_power_watts of Pod models/a is not known");
  EXPECT_EQ(values("*/gpu_power_watts"), "");
}

TEST_F(ServerTest, WhoIsNobodyIsRefused) {
  set_reply(kTokens, {201, R"({"status":{"authenticated":false}})", {}, {}});
  start();
  const std::string target = kPods + "*/gpu_utilization";
  EXPECT_EQ(web::status_of(ask(target, nullptr)), 401);
  EXPECT_EQ(
      web::status_of(ask(target, nullptr, "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n")),
      401);
  EXPECT_EQ(web::status_of(ask(target, nullptr, "Authorization: Bearer guessed\r\n")), 401);
  EXPECT_EQ(web::status_of(ask(target, nullptr, "Authorization: Basic YTpi\r\n")), 401);
  EXPECT_EQ(web::status_of(ask("/no/such/path", nullptr)), 401);
  // Of the right authority, but not the front proxy.
  const auto other = Certificate::make("somebody", &proxies_, "");
  EXPECT_EQ(web::status_of(ask(target, &other, "X-Remote-User: admin\r\n")), 401);
  // Of another authority: the handshake fails.
  const auto forged = Certificate::make("front-proxy-client", nullptr, "");
  EXPECT_EQ(ask(target, &forged, "X-Remote-User: admin\r\n"), "");
  EXPECT_TRUE(asked(kRights).empty());
  EXPECT_TRUE(asked("/pods").empty());
}

TEST_F(ServerTest, WhatAUserMayIsAskedAndRememberedForAWhile) {
  start();
  EXPECT_EQ(web::status_of(as("hpa", kPods + "*/gpu_utilization?labelSelector=app%3Dx",
                              "X-Remote-Group: g1\r\nX-Remote-Group: g2\r\nX-Remote-Extra-Key: v\r\n")),
            200);
  ASSERT_EQ(asked(kRights).size(), 1u);
  EXPECT_EQ(json::parse(asked(kRights)[0].body), json::parse(R"({"apiVersion":"authorization.k8s.io/v1",
    "kind":"SubjectAccessReview","spec":{"user":"hpa","uid":"","groups":["g1","g2","system:authenticated"],
    "extra":{"key":["v"]},
    "resourceAttributes":{"namespace":"models","verb":"get","group":"custom.metrics.k8s.io","version":"v1beta2",
    "resource":"pods","subresource":"gpu_utilization","name":"*"}}})"));
  as("hpa", kBase + "?timeout=32s");
  as("hpa", kBase + "?timeout=32s");
  ASSERT_EQ(asked(kRights).size(), 2u);
  EXPECT_EQ(json::parse(asked(kRights)[1].body)["spec"]["nonResourceAttributes"],
            json::parse(R"({"path":"/apis/custom.metrics.k8s.io/v1beta2","verb":"get"})"));

  set_reply(kRights, {201, R"({"status":{"allowed":false,"reason":"no"}})", {}, {}});
  const auto refused = as("mallory", kPods + "*/gpu_utilization");
  EXPECT_EQ(web::status_of(refused), 403);
  EXPECT_EQ(message(refused), "User \"mallory\" may not get this");
  // Whether it makes sense is not told to who may not ask.
  EXPECT_EQ(web::status_of(as("mallory", kPods + "*/m?watch=true")), 403);
  // Those who may everything are not asked about.
  const auto before = asked(kRights).size();
  EXPECT_EQ(web::status_of(as("system:kube-aggregator", kBase, "X-Remote-Group: system:masters\r\n")), 200);
  EXPECT_EQ(asked(kRights).size(), before);
  set_reply(kRights, {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(web::status_of(as("another", kBase)), 503);
}

TEST_F(ServerTest, ATokenIsTheUserThatTheApiServerSays) {
  set_reply(kTokens, {201,
                      R"({"status":{"authenticated":true,"user":{"username":"prom","uid":"1","groups":["g"],
                         "extra":{"k":["v"]}}}})",
                      {},
                      {}});
  start();
  const std::string field = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(web::status_of(ask(kBase, nullptr, field)), 200);
  EXPECT_EQ(web::status_of(ask(kBase, nullptr, field)), 200);
  ASSERT_EQ(asked(kTokens).size(), 1u);
  EXPECT_EQ(json::parse(asked(kTokens)[0].body)["spec"], json::parse(R"({"token":"secret"})"));
  const auto spec = json::parse(asked(kRights)[0].body)["spec"];
  EXPECT_EQ(spec["user"], "prom");
  EXPECT_EQ(spec["groups"], json::parse(R"(["g","system:authenticated"])"));
  EXPECT_EQ(spec["extra"], json::parse(R"({"k":["v"]})"));
  set_reply(kTokens, {500, "{}", {}, {}});
  EXPECT_EQ(web::status_of(ask(kBase, nullptr, "Authorization: Bearer other\r\n")), 503);
}

TEST_F(ServerTest, AnAgentThatFailsCostsItsOwnPodsOnly) {
  options_.scrape.limit = 300ms;
  options_.pages.fresh = 0ms;
  start();
  EXPECT_EQ(values(), "a=80 b=20");
  two_->say(500, "");
  one_->say(200, page_of("a", 81));
  EXPECT_EQ(values(), "a=81 b=20") << "what it said last is not too old";
  EXPECT_EQ(asked("/namespaces/gpulet/pods").size(), 1u)
      << "the agents are listed at most every five seconds";
}

TEST_F(ServerTest, WhatIsTooOldIsNotTold) {
  options_.pages.oldest = 10s;
  one_->say(200, page_of("a", 80, 9));
  two_->say(200, page_of("b", 20, 11));
  start();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(ServerTest, AnAgentThatHangsIsNotWaitedFor) {
  options_.scrape.limit = 200ms;
  two_->hang();
  start();
  EXPECT_EQ(values(), "a=80");
  // Nor asked again before its time.
  EXPECT_EQ(values(), "a=80");
  EXPECT_EQ(two_->asked(), 1);
  EXPECT_EQ(one_->asked(), 1);
}

TEST_F(ServerTest, APageThatIsTooLargeIsNone) {
  two_->say(200, page_of("b", 20) + std::string(kMaxPageBytes, '\n'));
  start();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(ServerTest, ANodeWithoutAnAgentHasNoValues) {
  set_reply("/namespaces/gpulet/pods", {200, table({{"gpulet-1", "127.0.0.1", "n1"}}), {}, {}});
  start();
  EXPECT_EQ(values(), "a=80");
}

TEST_F(ServerTest, WhatTheApiServerRefusesIsSaid) {
  set_reply("/namespaces/models/pods", {400, R"({"message":"unable to parse"})", {}, {}});
  start();
  EXPECT_EQ(values(), "400 the API server answered 400: unable to parse");
  set_reply("/namespaces/models/pods", {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(values(), "500 needed is list on pods: the API server answered 403: no right");
  set_reply("/namespaces/models/pods", {200, R"({"kind":"PodList","items":[]})", {}, {}});
  EXPECT_EQ(values(), "503 the API server answered with what is no table of Pods");
  set_reply("/namespaces/models/pods", {200, table({{"a", "10.0.0.1", "n1"}}), {}, {}});
  set_reply("/namespaces/gpulet/pods", {403, R"({"message":"no right"})", {}, {}});
  EXPECT_EQ(values(), "500 needed is list on pods: the API server answered 403: no right");
}

TEST_F(ServerTest, AnotherFrontProxyIsTrustedWithoutARestart) {
  start();
  EXPECT_EQ(values(), "a=80 b=20");
  const auto before = proxy_;
  proxies_ = Certificate::make("other front proxies", nullptr, "");
  proxy_ = Certificate::make("front-proxy-client", &proxies_, "");
  {
    const std::lock_guard lock(mutex_);
    const auto list = json::parse(config_map(proxies_));
    json map = list["items"][0];
    map["metadata"]["resourceVersion"] = "6";
    news_ = json({{"type", "MODIFIED"}, {"object", map}}).dump() + "\n";
  }
  EXPECT_TRUE(eventually([this] { return web::status_of(as("hpa", kBase)) == 200; }));
  EXPECT_EQ(ask(kBase, &before, "X-Remote-User: hpa\r\n"), "");
}

TEST_F(ServerTest, ItsCertificateIsFollowed) {
  const auto write = [this](const std::string& name) {
    const auto made = Certificate::make(name, nullptr, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(folder_ + "/tls.key", made.key_pem()));
    ASSERT_TRUE(write_file_atomic(folder_ + "/tls.crt", made.pem()));
  };
  const auto shown = [this] {
    web::Client client(port_);
    return client.encrypt() ? client.server_name() : "";
  };
  write("first");
  options_.certificate_file = folder_ + "/tls.crt";
  options_.key_file = folder_ + "/tls.key";
  start();
  EXPECT_EQ(shown(), "first");
  write("second");
  EXPECT_TRUE(eventually([&] { return shown() == "second"; }));
  // A bad one changes nothing.
  ASSERT_TRUE(write_file_atomic(folder_ + "/tls.crt", "junk"));
  EXPECT_EQ(shown(), "second");
  EXPECT_EQ(values(), "a=80 b=20");
}

TEST_F(ServerTest, WithoutACertificateItMakesOne) {
  start();
  web::Client client(port_);
  ASSERT_TRUE(client.encrypt());
  EXPECT_EQ(client.server_name(), "gpulet-metrics-api");
}

TEST_F(ServerTest, OptionsThatWillNotDo) {
  options_.key_file = folder_ + "/tls.key";
  call([this] { EXPECT_FALSE(Server::start(loop_, access(), options_)); });
  options_.certificate_file = folder_ + "/absent";
  call([this] {
    const auto started = Server::start(loop_, access(), options_);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().about(), folder_ + "/absent");
  });
  options_.certificate_file = options_.key_file = "";
  options_.listen = "nowhere";
  call([this] { EXPECT_FALSE(Server::start(loop_, access(), options_)); });
}

TEST_F(ServerTest, AgentsBehindTlsAndAPassword) {
  const auto authority = Certificate::make("agents", nullptr, "");
  const auto agent = Certificate::make("agent", &authority, "agent.internal");
  ASSERT_TRUE(write_file_atomic(folder_ + "/agents.crt", authority.pem()));
  ASSERT_TRUE(write_file_atomic(folder_ + "/password", "alice:secret\n"));
  const web::Access closed = {.tls = web::Tls{.certificate = agent.pem(), .key = agent.key_pem()},
                              .users = {{"alice", web::secret_hash()}}};
  TestAgent secret("127.0.0.3:0", closed);
  secret.say(200, page_of("a", 7));
  set_reply("/namespaces/gpulet/pods", {200, table({{"gpulet-1", "127.0.0.3", "n1"}}), {}, {}});
  options_.scrape.https = true;
  options_.scrape.port = secret.port();
  options_.scrape.ca_file = folder_ + "/agents.crt";
  options_.scrape.server_name = "agent.internal";
  options_.scrape.basic_auth_file = folder_ + "/password";
  options_.pages.fresh = 0ms;
  start();
  EXPECT_EQ(values(), "a=7");
  ASSERT_TRUE(write_file_atomic(folder_ + "/password", "alice:wrong\n"));
  call([this] { running_.reset(); });
  start();
  EXPECT_EQ(values(), "");
  ASSERT_TRUE(write_file_atomic(folder_ + "/password", "alice:secret\n"));
  options_.scrape.server_name = "other.internal";
  call([this] { running_.reset(); });
  start();
  EXPECT_EQ(values(), "");
}

}  // namespace
}  // namespace gpulet::metrics_api
