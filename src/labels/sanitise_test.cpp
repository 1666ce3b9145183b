#include "labels/sanitise.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <regex>

namespace gpulet::labels {
namespace {

// Kubernetes' own words for it.
bool as_kubernetes(const std::string& value) {
  static const std::regex form("(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?");
  return value.size() <= 63 && std::regex_match(value, form);
}

TEST(Sanitise, NamesAsNvidiaHasThem) {
  EXPECT_EQ(clean_value("NVIDIA H100 80GB HBM3"), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(clean_value("Tesla V100-SXM2-32GB"), "Tesla-V100-SXM2-32GB");
  EXPECT_EQ(clean_value("GeForce  RTX (TM)  2080"), "GeForce-RTX-TM-2080");
  EXPECT_EQ(clean_value("NVIDIA A100", "-MIG-1g.10gb"), "NVIDIA-A100-MIG-1g.10gb");
  EXPECT_EQ(clean_value(""), "");
}

TEST(Sanitise, WhatNvidiaWouldGetRefused) {
  EXPECT_EQ(clean_value("(R) NVIDIA."), "R-NVIDIA");
  EXPECT_EQ(clean_value("-.x._"), "x");
  EXPECT_EQ(clean_value("\xc2\xae", "-SHARED"), "SHARED");
  const std::string longest(63, 'a');
  EXPECT_EQ(clean_value(longest), longest);
  EXPECT_EQ(clean_value(longest + "b"), longest);
  EXPECT_EQ(clean_value(std::string(80, 'a'), "-SHARED"), std::string(56, 'a') + "-SHARED")
      << "the end counts";
  EXPECT_EQ(clean_value(std::string(62, 'a') + " b"), std::string(62, 'a')) << "no dash is left at the end";
}

TEST(Sanitise, PartsOfKeys) {
  EXPECT_EQ(clean_key_part("NVIDIA H100", 40), "NVIDIA-H100");
  EXPECT_EQ(clean_key_part("", 40), "unnamed");
  EXPECT_EQ(clean_key_part("///", 40), "unnamed");
  const std::string shared(50, 'x');
  const auto one = clean_key_part(shared + "1", 40), other = clean_key_part(shared + "2", 40);
  EXPECT_EQ(one.size(), 40u);
  EXPECT_NE(one, other);
}

TEST(Sanitise, Keys) {
  for (const char* key : {"nvidia.com/gpu.product", "gpulet.io/model.NVIDIA-H100.count", "a", "a-b.c/d"}) {
    EXPECT_TRUE(valid_key(key)) << key;
  }
  for (const char* key : {"", "/", "nvidia.com/", "/gpu", "Nvidia.com/gpu", "nvidia..com/gpu", "-a.b/c",
                          "a.b-/c", "a/b/c", "nvidia.com/.gpu", "nvidia.com/gpu."}) {
    EXPECT_FALSE(valid_key(key)) << key;
  }
  EXPECT_TRUE(valid_key("n.io/" + std::string(63, 'a')));
  EXPECT_FALSE(valid_key("n.io/" + std::string(64, 'a')));
}

// Of what names are made of, and of anything else.
rc::Gen<std::string> anything() {
  return rc::gen::oneOf(rc::gen::arbitrary<std::string>(),
                        rc::gen::container<std::string>(rc::gen::elementOf(std::string("aZ09-_. /\n+(é"))));
}

RC_GTEST_PROP(Sanitise, EveryValueIsOneThatKubernetesTakes, ()) {
  const auto raw = *anything();
  const auto suffix = *rc::gen::elementOf(std::vector<std::string>{"", "-SHARED", "-MIG-1g.10gb-SHARED"});
  const auto value = clean_value(raw, suffix);
  RC_ASSERT(as_kubernetes(value));
  RC_ASSERT(valid_value(value));
  RC_ASSERT(value.ends_with(suffix) || (!suffix.empty() && suffix.substr(1) == value));
  RC_ASSERT(clean_value(value) == value);
}

RC_GTEST_PROP(Sanitise, WhatIsValidIsLeftAlone, ()) {
  const auto raw = *anything();
  RC_ASSERT(valid_value(raw) == as_kubernetes(raw));
  if (valid_value(raw)) RC_ASSERT(clean_value(raw) == raw);
}

RC_GTEST_PROP(Sanitise, EveryPartOfAKeyFits, ()) {
  const auto part = clean_key_part(*anything(), *rc::gen::inRange<std::size_t>(16, 50));
  RC_ASSERT(!part.empty());
  RC_ASSERT(valid_key("gpulet.io/model." + part));
}

}  // namespace
}  // namespace gpulet::labels
