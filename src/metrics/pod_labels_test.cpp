#include "metrics/pod_labels.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

LabelPatterns patterns(const std::vector<std::string>& texts) {
  auto parsed = LabelPatterns::parse(texts, "--kubernetes-pod-label-allowlist-regex");
  EXPECT_TRUE(parsed) << parsed.error().text();
  return parsed.value_or(LabelPatterns());
}

TEST(PodLabels, NamesThatPrometheusTakes) {
  EXPECT_EQ(to_labels({{"app.kubernetes.io/name", "x"}, {"team-a", "y"}, {"0day", "z"}, {"__meta", "w"}}, {}),
            (Labels{{"_0day", "z"}, {"_meta", "w"}, {"app_kubernetes_io_name", "x"}, {"team_a", "y"}}));
  EXPECT_EQ(to_labels({{"a-b", "first"}, {"a.b", "second"}}, {}), (Labels{{"a_b", "first"}}));
}

TEST(PodLabels, OnlyWhatAPatternAllows) {
  const std::map<std::string, std::string> labels = {{"app", "x"}, {"application", "y"}, {"team", "z"}};
  EXPECT_EQ(to_labels(labels, patterns({"^app$", "tea"})), (Labels{{"app", "x"}, {"team", "z"}}));
  EXPECT_EQ(to_labels(labels, patterns({"nothing"})), Labels{});
  EXPECT_EQ(to_labels(labels, patterns({})).size(), 3u);
  EXPECT_EQ(to_labels({{std::string(400, 'a'), "x"}}, patterns({".*"})), Labels{});
}

TEST(PodLabels, ABadPatternIsNamed) {
  const auto bad = LabelPatterns::parse({"^app$", "(unclosed"}, "podLabels");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.error().text().find("podLabels: \"(unclosed\" is no regular expression ("), 0u)
      << bad.error().text();
  EXPECT_FALSE(LabelPatterns::parse({std::string(2000, 'a')}, "podLabels"));
}

}  // namespace
}  // namespace gpulet::metrics
