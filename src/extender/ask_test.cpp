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
  Result<std::string> answer(const std::string& pod,
                             const std::string& service = "gpulet/gpulet-scheduler:9410") {
    return ask({.name_space = "team", .pod = pod, .service = service, .limit = 20s}, access());
  }
};

TEST_F(AskTest, TheExtenderIsAskedThroughTheApiServer) {
  const std::string large(3u << 20, 'x');  // as of thousands of nodes
  begin(200, large);
  EXPECT_EQ(answer("p").value(), large);
  EXPECT_EQ(
      server_->received()[0].line(),
      "GET /api/v1/namespaces/gpulet/services/gpulet-scheduler:9410/proxy/explain?namespace=team&pod=p");
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
  const auto text = answer("p").value();
  EXPECT_NE(text.find("n1  0/8 held, 8 free of 9 wanted"), std::string::npos) << text;
  EXPECT_EQ(answer("p", "").value(), text);
  const auto nobody = answer("nobody", "");
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), Code::kNotFound);
}

TEST_F(AskTest, WhatNamesNothingIsRefused) {
  begin(200, "");
  EXPECT_EQ(answer("../p").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(answer("p", "gpulet").error().code(), Code::kInvalidArgument);
  for (const char* url : {"https://a:1", "http://a", "http://:1", "http://a:0", "http://a:70000", "a:1"}) {
    const auto refused = ask({.pod = "p", .url = url, .limit = 5s}, access());
    ASSERT_FALSE(refused) << url;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace gpulet::extender
