#include "runtimes/toml.h"

#include <gtest/gtest.h>

namespace gpulet::runtimes::toml {
namespace {

Document parse_text(std::string_view text) {
  auto document = parse_toml(text, "f.toml");
  EXPECT_TRUE(document) << document.error().full_message();
  return document ? *document : Document{};
}

std::string parse_error(std::string_view text) {
  const auto document = parse_toml(text, "f.toml");
  EXPECT_FALSE(document) << text;
  return document ? "" : document.error().full_message();
}

TEST(Toml, FindsTablesKeysAndValues) {
  const std::string text =
      "# head\r\nversion = 3 # three\n\nimports = [\n  'a', # first\n  \"b\\u00e9\\n\",\n]\n"
      "[plugins.\"io.containerd.cri.v1.runtime\"]\n  enable_cdi = true\n  a.b = { c = 1979-05-27 07:32:00, d "
      "= [] }\n"
      "[[x]]\ny = 1\n[[x]]\ny = 2_000\n";
  const auto document = parse_text(text);
  ASSERT_EQ(document.tables.size(), 4u);
  EXPECT_EQ(document.tables[1].path, (Path{"plugins", "io.containerd.cri.v1.runtime"}));
  EXPECT_EQ(document.tables[1].line, 8u);
  EXPECT_EQ(text.substr(document.tables[1].begin, 9), "[plugins.");
  EXPECT_EQ(document.tables[1].end, document.tables[2].begin);
  EXPECT_EQ(document.tables[3].end, text.size());
  EXPECT_EQ(document.find({"version"})->value.number, 3);
  const auto& imports = document.find({"imports"})->value;
  ASSERT_EQ(imports.items.size(), 2u);
  EXPECT_EQ(imports.items[0].text, "a");
  EXPECT_EQ(imports.items[1].text, "b\xc3\xa9\n");
  EXPECT_EQ(text.substr(imports.items[0].begin, imports.items[0].end - imports.items[0].begin), "'a'");
  EXPECT_EQ(text[imports.end - 1], ']');
  EXPECT_TRUE(document.find({"plugins", "io.containerd.cri.v1.runtime", "enable_cdi"})->value.flag);
  const auto* c = document.find({"plugins", "io.containerd.cri.v1.runtime", "a", "b", "c"});
  ASSERT_NE(c, nullptr);
  EXPECT_TRUE(c->is_inline);
  EXPECT_EQ(c->line, 10u);
  EXPECT_EQ(document.find({"x", "y"})->value.number, 2000);
  EXPECT_EQ(document.find({"enable_cdi"}), nullptr);
}

TEST(Toml, ParsesAllStrings) {
  const auto document = parse_text(
      "a = \"\"\"\n x \\\n   y\"\"\"\"\nb = '''\nz\\n'''\nc = \"\"\nd = '\\'\n\"q k\" = \"\\U0001F600\"\n");
  EXPECT_EQ(document.find({"a"})->value.text, " x y\"");
  EXPECT_EQ(document.find({"b"})->value.text, "z\\n");
  EXPECT_EQ(document.find({"c"})->value.text, "");
  EXPECT_EQ(document.find({"d"})->value.text, "\\");
  EXPECT_EQ(document.find({"q k"})->value.text, "\xf0\x9f\x98\x80");
}

TEST(Toml, AHashInAStringIsNotAComment) {
  const auto document = parse_text("a = \"# x\" # imports = [\n[t] # ]\nb = '#'\n");
  EXPECT_EQ(document.find({"a"})->value.text, "# x");
  EXPECT_EQ(document.find({"t", "b"})->value.text, "#");
}

TEST(Toml, AByteOrderMarkComesBeforeTheRootTable) {
  const auto document = parse_text("\xef\xbb\xbfversion = 2\n");
  EXPECT_TRUE(document.has_byte_order_mark);
  EXPECT_EQ(document.tables[0].begin, 3u);
  EXPECT_EQ(document.find({"version"})->value.number, 2);
  EXPECT_FALSE(parse_text("version = 2\n").has_byte_order_mark);
  EXPECT_EQ(parse_error("a = 1\n\xef\xbb\xbf"
                        "b = 2\n"),
            "f.toml:2: expected a key")
      << "only at the start";
}

TEST(Toml, ReportsErrorsWithTheLine) {
  EXPECT_EQ(parse_error("a = 1\nb = \"x\n"), "f.toml:2: unterminated string");
  EXPECT_EQ(parse_error("a = 1\n\na = 2\n"), "f.toml:3: a is duplicated");
  EXPECT_EQ(parse_error("[a]\n[b]\n[a]\n"), "f.toml:3: [a] is duplicated");
  EXPECT_EQ(parse_error("a = [1, 2\n"), "f.toml:2: expected `,` or `]` in an array");
  EXPECT_EQ(parse_error("imports = [,]\n"), "f.toml:1: expected a value");
  EXPECT_EQ(parse_error("foo"), "f.toml:1: expected `=` after the key foo");
  EXPECT_EQ(parse_error("a = yes\n"), "f.toml:1: `yes` is not a value; strings need quotes");
  EXPECT_EQ(parse_error("a = 1 b = 2\n"), "f.toml:1: expected a new line after the value or header");
  EXPECT_EQ(parse_error("a = \"\\q\"\n"), "f.toml:1: invalid escape");
  EXPECT_EQ(parse_error("a = { b = 1\n}\n"), "f.toml:1: expected `,` or `}` in an inline table");
  EXPECT_EQ(parse_error("a = 1\n[a]\n"), "f.toml:2: [a] is duplicated");
  EXPECT_EQ(parse_error("# a\x01\n"), "f.toml:1: control character in a comment");
  EXPECT_EQ(parse_error("[a\n"), "f.toml:1: expected `]`");
  EXPECT_NE(parse_error("a = " + std::string(1000, '[')).find("nested deeper than 64"), std::string::npos);
}

TEST(Toml, ParsesQuotedText) {
  for (const std::string text : {"/etc/cdi", "a\"b\\c", "tab\tnew\nline", "\x01\x7f", "é"}) {
    EXPECT_EQ(parse_text("a = " + toml::quote_toml(text) + "\n").find({"a"})->value.text, text);
  }
}

}  // namespace
}  // namespace gpulet::runtimes::toml
