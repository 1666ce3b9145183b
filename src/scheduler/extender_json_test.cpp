#include "scheduler/extender_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

const json kPod = {{"metadata", {{"namespace", "a"}, {"name", "b"}}},
                   {"spec", {{"containers", {{{"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}}}}}}};

TEST(ExtenderJson, NamesAlone) {
  const auto args =
      ExtenderArgs::parse(json{{"Pod", kPod}, {"Nodes", nullptr}, {"NodeNames", {"n1", "n2", "n3"}}}.dump());
  ASSERT_TRUE(args.has_value()) << args.error().text();
  EXPECT_FALSE(args->whole_nodes());
  EXPECT_EQ(args->pod().key(), "a/b");
  EXPECT_EQ(std::vector<std::string_view>(args->nodes().begin(), args->nodes().end()),
            (std::vector<std::string_view>{"n1", "n2", "n3"}));
  const std::vector<std::size_t> passed = {1};
  const std::vector<ExtenderArgs::Failed> failed = {{0, true, "1/1 \"held\""}, {2, false, "no such driver"}};
  EXPECT_EQ(json::parse(args->filter_result(passed, failed)),
            (json{{"NodeNames", {"n2"}},
                  {"FailedNodes", {{"n1", "1/1 \"held\""}}},
                  {"FailedAndUnresolvableNodes", {{"n3", "no such driver"}}},
                  {"Error", ""}}));
  EXPECT_EQ(json::parse(args->priorities(std::vector{0, 5, 10})), (json{{{"Host", "n1"}, {"Score", 0}},
                                                                        {{"Host", "n2"}, {"Score", 5}},
                                                                        {{"Host", "n3"}, {"Score", 10}}}));
}

TEST(ExtenderJson, WholeNodesComeBackAsTheyCame) {
  const json one = {{"metadata", {{"name", "n1"}, {"labels", {{"a", "ü\n"}}}}},
                    {"status", {{"x", {1, 2.5, nullptr}}}}};
  const json two = {{"metadata", {{"name", "n2"}}}};
  const auto args = ExtenderArgs::parse(json{{"pod", kPod}, {"nodes", {{"items", {one, two}}}}}.dump());
  ASSERT_TRUE(args.has_value()) << args.error().text();
  EXPECT_TRUE(args->whole_nodes());
  const std::vector<std::size_t> passed = {0};
  const auto result = json::parse(args->filter_result(passed, {}));
  EXPECT_EQ(result["Nodes"]["items"], json::array({one}));
  EXPECT_FALSE(result.contains("NodeNames"));
}

TEST(ExtenderJson, NoNodesAtAll) {
  EXPECT_TRUE(ExtenderArgs::parse(json{{"Pod", kPod}, {"NodeNames", json::array()}}.dump()).has_value());
  EXPECT_TRUE(ExtenderArgs::parse(json{{"Pod", kPod}, {"Nodes", {{"items", nullptr}}}}.dump()).has_value());
}

TEST(ExtenderJson, WhatIsNoQuestionIsRefused) {
  const std::pair<std::string, const char*> kWrong[] = {
      {"", "the body is no JSON"},
      {"{", "the body is no JSON"},
      {std::string(100'000, '['), "the body is no JSON"},
      {"[]", "the body has no Pod"},
      {json{{"NodeNames", {"n1"}}}.dump(), "the body has no Pod"},
      {json{{"Pod", 7}, {"NodeNames", {"n1"}}}.dump(), "that is no Pod: metadata.name is missing"},
      {json{{"Pod", kPod}}.dump(), "the body has neither NodeNames nor Nodes"},
      {json{{"Pod", kPod}, {"NodeNames", "n1"}}.dump(),
       "NodeNames is no list, or one of more than 100000 names"},
      {json{{"Pod", kPod}, {"Nodes", {{"items", 7}}}}.dump(),
       "Nodes.items is no list, or one of more than 100000"},
  };
  for (const auto& [body, error] : kWrong) {
    const auto args = ExtenderArgs::parse(body);
    ASSERT_FALSE(args.has_value()) << body.substr(0, 100);
    EXPECT_EQ(args.error().text(), error);
  }
}

TEST(ExtenderJson, NamesThatAreNoneAreJustUnknownNodes) {
  const auto args = ExtenderArgs::parse(json{{"Pod", kPod}, {"NodeNames", {7, nullptr, "n1"}}}.dump());
  ASSERT_TRUE(args.has_value());
  EXPECT_EQ(args->nodes()[0], "");
  EXPECT_EQ(args->nodes()[2], "n1");
}

}  // namespace
}  // namespace gpulet::scheduler
