#include "extender/explain_client.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "k8s/test_api.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using k8s::Received;
using nlohmann::json;

// An API server with one node and one Pod, and a configurable response of the Service's proxy.
class ExplainClientTest : public k8s::ApiTest {
 protected:
  void begin(int status, const std::string& body) {
    start_server([=](const Received& request) -> Reply {
      const std::string line = request.line();
      if (line.find("/proxy/explain?") != std::string::npos) return {status, body};
      if (line.find("watch=true") != std::string::npos) {
        return {.status = 200, .script = [](Stream& stream) { return stream.wait_open(60'000) || true; }};
      }
      json items = json::array();
      if (line.find("/gpunodes?") != std::string::npos) {
        items.push_back({{"metadata", {{"name", "n1"}}},
                         {"spec", json::parse(scheduler::encode_spec(scheduler::test_node(8, 4)))}});
      }
      if (line == "GET /api/v1/namespaces/team/pods/p") {
        return {200, R"({"metadata":{"namespace":"team","name":"p"},"spec":{"containers":[{"resources":)"
                     R"({"limits":{"nvidia.com/gpu":"9"}}}]}})"};
      }
      if (line.starts_with("GET /api/v1/namespaces/")) return {404, R"({"kind":"Status"})"};
      return {200, json{{"metadata", {{"resourceVersion", "7"}}}, {"items", items}}.dump()};
    });
  }
  Result<ExplainAnswer> fetch(const std::string& pod,
                              const std::string& service = "gpulet/gpulet-scheduler:9410") {
    return fetch_explanation({.name_space = "team", .pod = pod, .service = service, .timeout = 20s},
                             client_config());
  }
};

TEST_F(ExplainClientTest, QueriesTheExtenderThroughTheApiServer) {
  const std::string large(3u << 20, 'x');  // as for thousands of nodes
  begin(200, large);
  const auto explanation = fetch("p").value();
  EXPECT_EQ(explanation.text, large);
  EXPECT_TRUE(explanation.by_extender);
  EXPECT_EQ(
      server_->received_requests()[0].line(),
      "GET /api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain?namespace=team&pod=p");
}

TEST_F(ExplainClientTest, UsesTlsWhenTheExtenderRequiresIt) {
  start_server([](const Received& request) -> Reply {
    const bool encrypted =
        request.line().find("/services/https:gpulet-scheduler:9410/proxy/") != std::string::npos;
    if (!encrypted) return {400, "this port speaks HTTPS\n"};
    return {200, "n1 is best\n"};
  });
  for (const char* service : {"gpulet/gpulet-scheduler:9410", "gpulet/https:gpulet-scheduler:9410"}) {
    const auto explanation = fetch("p", service);
    ASSERT_TRUE(explanation) << explanation.error().full_message();
    EXPECT_EQ(explanation->text, "n1 is best\n");
    EXPECT_TRUE(explanation->by_extender);
  }
  EXPECT_EQ(server_->received_requests().size(), 3u);
}

TEST_F(ExplainClientTest, ReportsTheExtendersError) {
  begin(404, "no such Pod\n");
  const auto refused = fetch("p");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kNotFound);
  EXPECT_EQ(refused.error().message(), "no such Pod");
}

TEST_F(ExplainClientTest, ComputesLocallyWithoutAnExtender) {
  begin(503, R"({"kind":"Status","message":"no endpoints available"})");
  const auto explanation = fetch("p").value();
  EXPECT_FALSE(explanation.by_extender);
  const auto& text = explanation.text;
  EXPECT_NE(text.find("n1  0/8 held, 8 free of 9 requested"), std::string::npos) << text;
  EXPECT_EQ(fetch("p", "").value().text, text);
  const auto without_extender = fetch("nobody", "");
  ASSERT_FALSE(without_extender);
  EXPECT_EQ(without_extender.error().code(), Code::kNotFound);
}

// As in a cluster without gpulet's scheduler: the client does not wait.
TEST_F(ExplainClientTest, FailsWithoutExtenderAndGpuNodes) {
  start_server([](const Received& request) -> Reply {
    if (request.line().find("/proxy/explain?") != std::string::npos)
      return {404, R"({"kind":"Status","message":"services \"gpulet-scheduler\" not found"})"};
    return {404, "404 page not found"};
  });
  const auto nothing = fetch("p");
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(nothing.error().message().find("publish"), std::string::npos) << nothing.error().full_message();
}

TEST_F(ExplainClientTest, FallsBackWhenTheExtenderHangs) {
  start_server([](const Received& request) -> Reply {
    if (request.line().find("/proxy/explain?") != std::string::npos) return {.act = Act::kHang};
    return {403, R"({"kind":"Status","message":"gpunodes is forbidden"})"};
  });
  const auto refused = fetch_explanation({.name_space = "team", .pod = "p", .timeout = 2s}, client_config());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_NE(refused.error().message().find("gpunodes is forbidden"), std::string::npos)
      << refused.error().full_message();
}

TEST_F(ExplainClientTest, AcceptsHttpsUrls) {
  const auto mine = Certificate::make_certificate("me", &authority_, "");
  ASSERT_TRUE(write_file_atomic(directory_ + "/me.crt", mine.pem()));
  ASSERT_TRUE(write_file_atomic(directory_ + "/me.key", mine.key_pem()));
  server_ = std::make_unique<k8s::TestApiServer>(
      certificate_, [](const Received&) { return Reply{200, "it fits"}; }, &authority_);
  ExplainQuery query{.name_space = "team",
                     .pod = "p",
                     .url = "https://127.0.0.1:" + std::to_string(server_->port()),
                     .ca_file = directory_ + "/ca.crt",
                     .certificate_file = directory_ + "/me.crt",
                     .key_file = directory_ + "/me.key",
                     .timeout = 20s};
  const auto explanation = fetch_explanation(query, {});
  ASSERT_TRUE(explanation) << explanation.error().full_message();
  EXPECT_EQ(explanation->text, "it fits");
  EXPECT_EQ(server_->received_requests().back().line(), "GET /explain?namespace=team&pod=p");
  EXPECT_EQ(server_->received_requests().back().client, "me");
  query.ca_file = directory_ + "/me.crt";  // a CA that signed nothing
  const auto untrusted = fetch_explanation(query, {});
  ASSERT_FALSE(untrusted);
  EXPECT_EQ(untrusted.error().code(), Code::kPermissionDenied) << untrusted.error().full_message();
  EXPECT_NE(untrusted.error().full_message().find("the extender"), std::string::npos)
      << untrusted.error().full_message();
  query.ca_file = directory_ + "/none.crt";
  EXPECT_EQ(fetch_explanation(query, {}).error().subject(), directory_ + "/none.crt");
}

TEST_F(ExplainClientTest, RejectsInvalidNames) {
  begin(200, "");
  EXPECT_EQ(fetch("../p").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(fetch("p", "gpulet").error().code(), Code::kInvalidArgument);
  for (const char* url :
       {"ftp://a:1", "https://a", "http://a", "http://:1", "http://a:0", "http://a:70000", "a:1"}) {
    const auto refused = fetch_explanation({.pod = "p", .url = url, .timeout = 5s}, client_config());
    ASSERT_FALSE(refused) << url;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace gpulet::extender
