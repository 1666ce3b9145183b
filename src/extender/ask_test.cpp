#include "extender/ask.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster/test_api.h"
#include "scheduler/test_nodes.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;
using cluster::Received;
using nlohmann::json;

// An API server with one node and one Pod, and what its proxy of the Service says.
class AskTest : public cluster::ApiTest {
 protected:
  void begin(int status, const std::string& body) {
    serve([=](const Received& request) -> Reply {
      const std::string line = request.line();
      if (line.find("/proxy/explain?") != std::string::npos) return {status, body};
      if (line.find("watch=true") != std::string::npos) {
        return {.status = 200, .script = [](Stream& stream) { return stream.wait(60'000) || true; }};
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
  Result<Answer> answer(const std::string& pod, const std::string& service = "gpulet/gpulet-scheduler:9410") {
    return ask({.name_space = "team", .pod = pod, .service = service, .limit = 20s}, access());
  }
};

TEST_F(AskTest, TheExtenderIsAskedThroughTheApiServer) {
  const std::string large(3u << 20, 'x');  // as of thousands of nodes
  begin(200, large);
  const auto said = answer("p").value();
  EXPECT_EQ(said.text, large);
  EXPECT_TRUE(said.by_extender);
  EXPECT_EQ(
      server_->received()[0].line(),
      "GET /api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain?namespace=team&pod=p");
}

TEST_F(AskTest, OneThatSpeaksTlsIsAskedByTls) {
  serve([](const Received& request) -> Reply {
    const bool encrypted =
        request.line().find("/services/https:gpulet-scheduler:9410/proxy/") != std::string::npos;
    if (!encrypted) return {400, "this port speaks HTTPS\n"};
    return {200, "n1 is best\n"};
  });
  for (const char* service : {"gpulet/gpulet-scheduler:9410", "gpulet/https:gpulet-scheduler:9410"}) {
    const auto said = answer("p", service);
    ASSERT_TRUE(said) << said.error().text();
    EXPECT_EQ(said->text, "n1 is best\n");
    EXPECT_TRUE(said->by_extender);
  }
  EXPECT_EQ(server_->received().size(), 3u);
}

TEST_F(AskTest, WhatTheExtenderRefusesIsSaid) {
  begin(404, "there is no such Pod\n");
  const auto refused = answer("p");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kNotFound);
  EXPECT_EQ(refused.error().message(), "there is no such Pod");
}

TEST_F(AskTest, WithoutAnExtenderItIsWorkedOutHere) {
  begin(503, R"({"kind":"Status","message":"no endpoints available"})");
  const auto said = answer("p").value();
  EXPECT_FALSE(said.by_extender);
  const auto& text = said.text;
  EXPECT_NE(text.find("n1  0/8 held, 8 free of 9 wanted"), std::string::npos) << text;
  EXPECT_EQ(answer("p", "").value().text, text);
  const auto nobody = answer("nobody", "");
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), Code::kNotFound);
}

// As in a cluster without gpulet's scheduler: nothing is waited for.
TEST_F(AskTest, WithoutAnExtenderAndAnythingPublishedItIsSaidAtOnce) {
  serve([](const Received& request) -> Reply {
    if (request.line().find("/proxy/explain?") != std::string::npos)
      return {404, R"({"kind":"Status","message":"services \"gpulet-scheduler\" not found"})"};
    return {404, "404 page not found"};
  });
  const auto nothing = answer("p");
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(nothing.error().message().find("publish"), std::string::npos) << nothing.error().text();
}

TEST_F(AskTest, AnExtenderThatHangsIsNotWaitedForToTheEnd) {
  serve([](const Received& request) -> Reply {
    if (request.line().find("/proxy/explain?") != std::string::npos) return {.act = Act::kHang};
    return {403, R"({"kind":"Status","message":"gpunodes is forbidden"})"};
  });
  const auto refused = ask({.name_space = "team", .pod = "p", .limit = 2s}, access());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_NE(refused.error().message().find("gpunodes is forbidden"), std::string::npos)
      << refused.error().text();
}

TEST_F(AskTest, AnAddressMayBeEncrypted) {
  const auto mine = Certificate::make("me", &authority_, "");
  ASSERT_TRUE(write_file_atomic(folder_ + "/me.crt", mine.pem()));
  ASSERT_TRUE(write_file_atomic(folder_ + "/me.key", mine.key_pem()));
  server_ = std::make_unique<cluster::TestApiServer>(
      certificate_, [](const Received&) { return Reply{200, "it fits"}; }, &authority_);
  Question question{.name_space = "team",
                    .pod = "p",
                    .url = "https://127.0.0.1:" + std::to_string(server_->port()),
                    .ca_file = folder_ + "/ca.crt",
                    .certificate_file = folder_ + "/me.crt",
                    .key_file = folder_ + "/me.key",
                    .limit = 20s};
  const auto said = ask(question, {});
  ASSERT_TRUE(said) << said.error().text();
  EXPECT_EQ(said->text, "it fits");
  EXPECT_EQ(server_->received().back().line(), "GET /explain?namespace=team&pod=p");
  EXPECT_EQ(server_->received().back().client, "me");
  question.ca_file = folder_ + "/me.crt";  // which signed nothing
  const auto stranger = ask(question, {});
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().code(), Code::kPermissionDenied) << stranger.error().text();
  EXPECT_NE(stranger.error().text().find("the extender"), std::string::npos) << stranger.error().text();
  question.ca_file = folder_ + "/none.crt";
  EXPECT_EQ(ask(question, {}).error().about(), folder_ + "/none.crt");
}

TEST_F(AskTest, WhatNamesNothingIsRefused) {
  begin(200, "");
  EXPECT_EQ(answer("../p").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(answer("p", "gpulet").error().code(), Code::kInvalidArgument);
  for (const char* url :
       {"ftp://a:1", "https://a", "http://a", "http://:1", "http://a:0", "http://a:70000", "a:1"}) {
    const auto refused = ask({.pod = "p", .url = url, .limit = 5s}, access());
    ASSERT_FALSE(refused) << url;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace gpulet::extender
