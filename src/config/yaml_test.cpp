#include "config/yaml.h"

#include <gtest/gtest.h>
#include "config/yaml_documents.h"

namespace gpulet::config::yaml {
namespace {

std::string syntax_error_of(const std::string& text) {
  const auto document = parse_yaml(text, "f");
  return document ? "no error" : document.error().full_message();
}

TEST(Yaml, NodesHavePositions) {
  const auto document = parse_yaml("a: 1\nb:\n  - x\n  - {c: \"q\"}\n", "f");
  ASSERT_TRUE(document);
  const auto& root = document->root;
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[1].key, "b");
  EXPECT_EQ(position_text("f", root.entries[1].position), "f:2:1");
  const auto& list = root.entries[1].value;
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(position_text("f", list.items[0].position), "f:3:5");
  EXPECT_TRUE(list.items[0].plain);
  const auto& quoted = list.items[1].entries[0].value;
  EXPECT_EQ(position_text("f", quoted.position), "f:4:9");
  EXPECT_EQ(quoted.scalar, "q");
  EXPECT_FALSE(quoted.plain);
}

TEST(Yaml, ATabInTheIndentationIsNamed) {
  const std::string tab = ": a tab in the indentation; YAML is indented by spaces";
  EXPECT_EQ(syntax_error_of("a:\n\tb: 1\n"), "f:2:1" + tab);
  EXPECT_EQ(syntax_error_of("a:\n  b: 1\n  \tc: 1\n"), "f:3:3" + tab);
  EXPECT_EQ(syntax_error_of("a: 1\t# a comment\nb: [x\n").find("tab"), std::string::npos);
}

TEST(Yaml, EmptyTextIsNull) {
  for (const auto* text : {"", "\n\n", "# nothing\n", "---\n", "null\n"}) {
    const auto document = parse_yaml(text, "f");
    ASSERT_TRUE(document) << text;
    EXPECT_EQ(document->root.kind, Node::Kind::kNull) << text;
    EXPECT_FALSE(document->second) << text;
  }
}

TEST(Yaml, ReadsJson) {
  const auto document = parse_yaml(R"({"a": [1, "two"], "b": {"c": null}})", "f");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->root.entries[0].value.items[1].scalar, "two");
  EXPECT_EQ(document->root.entries[1].value.entries[0].value.kind, Node::Kind::kNull);
}

TEST(Yaml, ReportsDuplicateKeysAndKeepsTheLast) {
  const auto document = parse_yaml("a: 1\nb: 2\na: 3\n", "f");
  ASSERT_TRUE(document);
  ASSERT_EQ(document->duplicates.size(), 1u);
  EXPECT_EQ(position_text("f", document->duplicates[0].position), "f:3:1");
  EXPECT_EQ(position_text("f", document->duplicates[0].first), "f:1:1");
  ASSERT_EQ(document->root.entries.size(), 2u);
  EXPECT_EQ(document->root.entries[0].value.scalar, "3");
}

TEST(Yaml, ExpandsAliasesAndMergesMappings) {
  const auto document = parse_yaml("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: *x\n", "f");
  ASSERT_TRUE(document);
  const auto& merged = document->root.entries[1].value;
  ASSERT_EQ(merged.entries.size(), 2u);
  EXPECT_EQ(merged.entries[0].key, "b");
  EXPECT_EQ(merged.entries[0].value.scalar, "3");
  EXPECT_EQ(merged.entries[1].key, "a");
  EXPECT_EQ(document->root.entries[2].value.entries[1].value.scalar, "2");
}

TEST(Yaml, ReportsASecondDocument) {
  const auto document = parse_yaml("a: 1\n---\nb: 2\n", "f");
  ASSERT_TRUE(document);
  ASSERT_TRUE(document->second);
  EXPECT_EQ(document->root.entries.size(), 1u);
}

TEST(Yaml, ErrorsAreOneLineWithThePosition) {
  EXPECT_EQ(syntax_error_of("a: [1, 2\n").substr(0, 2), "f:");
  EXPECT_EQ(syntax_error_of("a: *b\n").substr(0, 6), "f:1:4:");
  EXPECT_EQ(syntax_error_of("? [a]\n: b\n"), "f:1:3: a key must be a text");
  EXPECT_EQ(syntax_error_of("a: &a [*a]\n"), "f:1:8: an alias inside its own anchor");
  EXPECT_EQ(syntax_error_of(std::string("a: 1\nb\0: 2\n", 11)), "f:2:2: a control character (code 0)");
  EXPECT_EQ(syntax_error_of(std::string(kMaxTextBytes + 1, ' ')), "f: larger than 1048576 bytes");
  EXPECT_NE(syntax_error_of(std::string(80, '[') + std::string(80, ']')).find("nested deeper than 64 levels"),
            std::string::npos);
  EXPECT_NE(syntax_error_of(std::string(100'000, '[')), "no error");
}

// Nine levels of ten aliases each would be a billion values.
TEST(Yaml, BoundsAliasExpansion) {
  std::string text = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level < 9; ++level) {
    const std::string alias = "*l" + std::to_string(level - 1);
    text += "l" + std::to_string(level) + ": &l" + std::to_string(level) + " [" + alias;
    for (int i = 1; i < 10; ++i) text += ", " + alias;
    text += "]\n";
  }
  EXPECT_NE(syntax_error_of(text).find("more values than any configuration has"), std::string::npos)
      << syntax_error_of(text);
  // Few values, but long ones.
  std::string wide = "a: &a " + std::string(500'000, 'x') + "\nb: [*a";
  for (int i = 0; i < 100; ++i) wide += ", *a";
  EXPECT_NE(syntax_error_of(wide + "]\n").find("more values than any configuration has"), std::string::npos);
}

TEST(YamlDocuments, AreReadInOrderWithoutEmptyOnes) {
  const auto documents =
      parse_documents("# first\n---\na: 1\n---\n# nothing\n---\n{b: 2}\n...\n---\n5\n", "f");
  ASSERT_TRUE(documents) << documents.error().full_message();
  ASSERT_EQ(documents->size(), 3u);
  EXPECT_EQ((*documents)[0].root.entries[0].key, "a");
  EXPECT_EQ((*documents)[1].root.entries[0].position.line, 7u);
  EXPECT_EQ((*documents)[2].root.scalar, "5");
  EXPECT_TRUE(parse_documents("", "f")->empty());
}

TEST(YamlDocuments, ShareTheLimitsAndReportWhere) {
  const auto message_of = [](const std::string& text) {
    const auto documents = parse_documents(text, "f");
    return documents ? std::string() : documents.error().full_message();
  };
  EXPECT_EQ(message_of("a: 1\n---\nb: [\n").find("f:"), 0u);
  std::string many;
  for (std::size_t i = 0; i <= kMaxDocuments; ++i) many += "---\n1\n";
  EXPECT_NE(message_of(many).find("more than 1000 documents"), std::string::npos);
  // Each alone is within the limit.
  std::string large = "---\n[";
  for (std::size_t i = 0; i < kMaxNodes / 2; ++i) large += "1,";
  large += "1]\n";
  EXPECT_EQ(message_of(large), "");
  EXPECT_NE(message_of(large + large).find("more values"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::config::yaml
