#include "base/yaml_writer.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace gpulet {
namespace {

TEST(YamlScalar, IsUnquotedOnlyIfEveryReaderParsesAString) {
  for (const auto* text : {"v1", "1g.10gb", "0.0.0.0:9400", "5m", "/run/x", "a b", "0.5.0", "GPU-0:1"})
    EXPECT_EQ(yaml_scalar(text), text);
  for (const auto* text : {"",  "no",  "True", "~",    "1",  "0660", "1.5", "0x1f", "1:30",   "2026-01-31",
                           "*", "- a", "a: b", "a #b", " a", "a ",   "-",   "<<",   "[::]:1", "caf\xc3\xa9"})
    EXPECT_EQ(yaml_scalar(text), quoted_text(text)) << text;
}

TEST(YamlScalar, EscapesInQuotes) { EXPECT_EQ(quoted_text("a\"\\\n\x01"), R"("a\"\\\n\u0001")"); }

TEST(YamlWriter, WritesMappingsListsAndComments) {
  YamlNode root;
  root.add("version", YamlNode::text("v1")).comment = "from x\ny";
  auto& flow = root.add("flow", YamlNode::list());
  flow.flow = true;
  flow.items = {YamlNode::bare("0"), YamlNode::text("a,b")};
  auto& list = root.add("list", YamlNode::list());
  YamlNode item;
  item.add("no", YamlNode::bare("true"));
  item.add("empty", YamlNode{});
  list.items = {item, YamlNode::text("x"), YamlNode::list()};
  EXPECT_EQ(write_yaml(root),
            "version: v1  # from x?y\n"
            "flow: [0, \"a,b\"]\n"
            "list:\n"
            "  - \"no\": true\n"
            "    empty: {}\n"
            "  - x\n"
            "  - []\n");
  EXPECT_EQ(write_yaml(root, 4).substr(41, 18), "list:\n    - \"no\": ");
}

// Readers refuse a key of more than 1024 characters that is not marked.
TEST(YamlWriter, MarksLongKeys) {
  const std::string key(1100, 'k');
  YamlNode item, root;
  item.add(key, YamlNode::text("v"));
  root.add("list", YamlNode::list()).items = {item};
  EXPECT_EQ(write_yaml(root), "list:\n  - ? " + key + "\n    : v\n");
}

TEST(Hash, IsFnv1a) {
  EXPECT_EQ(fnv1a_64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a_64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a_64("bar", fnv1a_64("foo")), fnv1a_64("foobar"));
  EXPECT_EQ(fnv1a_32("foobar"), 0xbf9cf968u);
  EXPECT_EQ(hex_text(0x1a2b, 3), "a2b");
  EXPECT_EQ(hex_text(1, 6), "000001");
}

}  // namespace
}  // namespace gpulet
