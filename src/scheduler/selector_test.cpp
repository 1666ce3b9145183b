#include "scheduler/selector.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpulet::scheduler {
namespace {

const Attributes kH100{.model = "NVIDIA H100 80GB HBM3",
                       .architecture = "hopper",
                       .memory_mib = 81559,
                       .compute = "9.0",
                       .driver = "570.124.06",
                       .cuda = "12.8",
                       .mig_profile = {},
                       .shares = 1,
                       .numa = 1};

bool holds(const std::string& text, const Attributes& device = kH100) {
  const auto selector = parse_selector(text);
  EXPECT_TRUE(selector.has_value()) << text << ": " << selector.error().text();
  return selector && std::ranges::all_of(*selector, [&](const auto& one) { return matches(one, device); });
}

TEST(Selector, EachOperatorByNfdsMeaning) {
  EXPECT_TRUE(holds(R"({"memory":{"op":"Gt","value":["40000"]}})"));
  EXPECT_FALSE(holds(R"({"memory":{"op":"Gt","value":["81559"]}})"));
  EXPECT_TRUE(holds(R"({"memory":{"op":"Lt","value":["81560"]}})"));
  EXPECT_TRUE(holds(R"({"compute":{"op":"GtLt","value":["8.9","9.1"]}})"));
  EXPECT_FALSE(holds(R"({"compute":{"op":"GtLt","value":["9.0","10.0"]}})"));
  EXPECT_TRUE(holds(R"({"architecture":{"op":"In","value":["ampere","Hopper"]}})"));
  EXPECT_TRUE(holds(R"({"architecture":{"op":"NotIn","value":["ampere"]}})"));
  EXPECT_TRUE(holds(R"({"model":{"op":"In","value":["H100"]}})"));
  EXPECT_TRUE(holds(R"({"mig":{"op":"DoesNotExist"}})"));
  EXPECT_TRUE(holds(R"({"numa":{"op":"Exists"}})"));
  EXPECT_TRUE(holds(R"({"numa":{"op":"IsTrue"}})"));
  EXPECT_FALSE(holds(R"({"numa":{"op":"IsFalse"}})"));
  EXPECT_TRUE(holds(R"({"driver":{"op":"Gt","value":["550.54"]},"cuda":{"op":"In","value":["12.8"]}})"));
  EXPECT_FALSE(holds(R"({"driver":{"op":"Gt","value":["550.54"]},"shares":{"op":"Gt","value":["1"]}})"));
}

TEST(Selector, NothingIsComparedWithWhatIsNotKnown) {
  const Attributes unknown{};
  for (const char* attribute : {"driver", "cuda", "compute", "numa"}) {
    const std::string name = std::string("{\"") + attribute;
    EXPECT_FALSE(holds(name + R"(":{"op":"Lt","value":["99"]}})", unknown)) << attribute;
    EXPECT_FALSE(holds(name + R"(":{"op":"In","value":["0"]}})", unknown)) << attribute;
  }
}

TEST(Selector, WhatIsWrongIsSaidWithWhatIsAccepted) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"", "a JSON object of attributes is accepted"},
      {"[]", "a JSON object of attributes is accepted"},
      {"{}", "a JSON object of attributes is accepted"},
      {R"({"colour":{"op":"In","value":["red"]}})",
       "'colour' is no attribute of a device: model, architecture"},
      {R"({"memory":{"op":"Above","value":["1"]}})", "'Above' is no operator: In, NotIn"},
      {R"({"memory":["40000"]})", "'memory' has no \"op\""},
      {R"({"memory":{"op":"Gt","value":[40000]}})", "write \"8\", not 8"},
      {R"({"memory":{"op":"Gt","value":"40000"}})", "no list"},
      {R"({"memory":{"op":"Gt","value":["1","2"]}})", "Gt of 'memory' takes 1 values"},
      {R"({"memory":{"op":"GtLt","value":["1"]}})", "GtLt of 'memory' takes 2 values"},
      {R"({"mig":{"op":"Exists","value":["1"]}})", "Exists of 'mig' takes 0 values"},
  };
  for (const auto& [text, error] : kWrong) {
    const auto selector = parse_selector(text);
    ASSERT_FALSE(selector.has_value()) << text;
    EXPECT_NE(selector.error().text().find(error), std::string::npos) << selector.error().text();
  }
  EXPECT_FALSE(parse_selector(std::string(kMaxSelectorBytes + 1, ' ')).has_value());
}

TEST(Selector, VersionsPartByPart) {
  EXPECT_EQ(compare_versions("550.54", "550.54.0"), 0);
  EXPECT_EQ(compare_versions("550.9", "550.54"), -1);
  EXPECT_EQ(compare_versions("12.10", "12.9"), 1);
  EXPECT_EQ(compare_versions("", "0"), 0);
}

TEST(Selector, AModelIsNamedByWholeWords) {
  EXPECT_TRUE(names_model("H100", "NVIDIA H100 80GB HBM3"));
  EXPECT_TRUE(names_model("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3"));  // as the label has it
  EXPECT_TRUE(names_model("a100 SXM4", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(names_model("A10", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(names_model("", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(names_model("80GB H100", "NVIDIA H100 80GB HBM3"));
}

}  // namespace
}  // namespace gpulet::scheduler
