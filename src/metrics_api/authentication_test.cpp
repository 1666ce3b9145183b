#include "metrics_api/authentication.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::metrics_api {
namespace {

using nlohmann::json;

json config_map() {
  return json::parse(R"({"data":{"client-ca-file":"other","requestheader-client-ca-file":"PEM",
    "requestheader-allowed-names":"[\"front-proxy-client\"]","requestheader-username-headers":"[\"X-Remote-User\"]",
    "requestheader-uid-headers":"[\"X-Remote-Uid\"]","requestheader-group-headers":"[\"X-Remote-Group\"]",
    "requestheader-extra-headers-prefix":"[\"X-Remote-Extra-\"]"}})");
}

TEST(Authentication, ParsesTheFrontProxyConfigMap) {
  const auto proxy = parse_front_proxy(config_map());
  ASSERT_TRUE(proxy);
  EXPECT_EQ(*proxy, (FrontProxy{"PEM",
                                {"front-proxy-client"},
                                {"X-Remote-User"},
                                {"X-Remote-Uid"},
                                {"X-Remote-Group"},
                                {"X-Remote-Extra-"}}));
  for (const json& without : {json(), json::object(), json::parse(R"({"data":{"client-ca-file":"x"}})")}) {
    const auto nobody = parse_front_proxy(without);
    ASSERT_TRUE(nobody);
    EXPECT_EQ(*nobody, FrontProxy{});
  }
  for (const char* bad : {"", "x", "{}", "[1]"}) {
    json map = config_map();
    map["data"]["requestheader-allowed-names"] = bad;
    const auto refused = parse_front_proxy(map);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().subject(), "requestheader-allowed-names");
  }
  json silent = config_map();
  silent["data"].erase("requestheader-username-headers");
  EXPECT_FALSE(parse_front_proxy(silent));
}

TEST(Authentication, IdentifiesUsersOfTheFrontProxy) {
  FrontProxy proxy = *parse_front_proxy(config_map());
  http::Request request{.method = "GET",
                        .target = "/apis",
                        .client = "front-proxy-client",
                        .fields = {{"Host", "x"},
                                   {"x-remote-user", "system:serviceaccount:kube-system:hpa"},
                                   {"X-Remote-Group", "system:serviceaccounts"},
                                   {"X-REMOTE-GROUP", "system:authenticated"},
                                   {"X-Remote-Uid", "7"},
                                   {"X-Remote-Extra-Example.org%2FScopes", "a"},
                                   {"X-Remote-Extra-example.org%2fscopes", "b"},
                                   {"X-Remote-Extra-", "nothing"}}};
  const auto user = user_from_front_proxy(proxy, request);
  ASSERT_TRUE(user);
  EXPECT_EQ(*user, (User{"system:serviceaccount:kube-system:hpa",
                         "7",
                         {"system:serviceaccounts", "system:authenticated"},
                         {{"example.org/scopes", {"a", "b"}}}}));

  // Anyone can send the headers; only a client with a verified certificate and an allowed name is believed.
  request.client = "somebody";
  EXPECT_FALSE(user_from_front_proxy(proxy, request));
  request.client = "";
  EXPECT_FALSE(user_from_front_proxy(proxy, request));
  request.client = "somebody";
  proxy.allowed_names.clear();
  EXPECT_TRUE(user_from_front_proxy(proxy, request));
  request.client = "";
  EXPECT_FALSE(user_from_front_proxy(proxy, request));
  request.client = "somebody";
  EXPECT_FALSE(user_from_front_proxy(FrontProxy{}, request));
  request.fields.clear();
  EXPECT_FALSE(user_from_front_proxy(proxy, request));
}

TEST(Authentication, AddsTheAuthenticatedGroup) {
  using Groups = std::vector<std::string>;
  const auto groups = [](const std::string& name, Groups given) {
    return add_authenticated_group({.name = name, .uid = "", .groups = std::move(given), .extra = {}}).groups;
  };
  EXPECT_EQ(groups("system:kube-aggregator", {}), Groups{"system:authenticated"});
  EXPECT_EQ(groups("a", {"g"}), (Groups{"g", "system:authenticated"}));
  EXPECT_EQ(groups("a", {"system:authenticated"}), Groups{"system:authenticated"});
  EXPECT_EQ(groups("a", {"system:unauthenticated"}), Groups{"system:unauthenticated"});
  EXPECT_EQ(groups("system:anonymous", {}), Groups{});
}

TEST(Authentication, ParsesBearerTokens) {
  const auto token = [](std::string_view value) {
    return bearer_token({.method = "GET", .target = "/", .fields = {{"authorization", value}}});
  };
  EXPECT_EQ(token("Bearer abc"), "abc");
  EXPECT_EQ(token("bearer  abc "), "abc");
  for (const char* none : {"", "Bearer", "Bearer ", "Basic YTpi", "abc"}) EXPECT_FALSE(token(none)) << none;
  EXPECT_TRUE(token("Bearer " + std::string(kMaxTokenBytes, 'x')));
  EXPECT_FALSE(token("Bearer " + std::string(kMaxTokenBytes + 1, 'x')));
  EXPECT_FALSE(bearer_token({.method = "GET", .target = "/"}));
}

}  // namespace
}  // namespace gpulet::metrics_api
