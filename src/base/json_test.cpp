#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet {
namespace {

std::string nested(std::size_t levels, const std::string& open = "[", const std::string& close = "]") {
  std::string text;
  for (std::size_t i = 0; i < levels; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < levels; ++i) text += close;
  return text;
}

Status skip(const std::string& text) {
  JsonReader reader(text);
  reader.skip_value();
  return reader.finish();
}

TEST(ParseJson, TakesTheWholeTextOrNothing) {
  using namespace std::string_view_literals;
  EXPECT_EQ(parse_json(R"({"a": [1, "\u0000"]})")["a"][1], "\0"sv);
  for (const auto text : {"null\0x"sv, "{}\0"sv, "\0"sv, "{\"a\0\": 1}"sv, "{}x"sv, ""sv})
    EXPECT_TRUE(parse_json(text).is_discarded()) << text;
}

TEST(Json, NestingHasALimit) {
  for (const auto& [open, close] : {std::pair{"[", "]"}, {"{\"a\":", "}"}, {" [ {\"b\" : ", " } ] "}}) {
    const std::size_t per_round = open[0] == ' ' ? 2 : 1;
    const auto allowed = nested(kMaxNesting / per_round, open, close);
    EXPECT_FALSE(exceeds_nesting(allowed));
    EXPECT_FALSE(parse_json(allowed).is_discarded());
    EXPECT_TRUE(skip(allowed));
    for (const std::size_t levels : {kMaxNesting + 1, std::size_t{200'000}}) {
      const auto refused = nested(levels, open, close);
      EXPECT_TRUE(exceeds_nesting(refused));
      EXPECT_TRUE(parse_json(refused).is_discarded());
      EXPECT_NE(skip(refused).error().message().find("nested deeper than 64 levels"), std::string::npos);
    }
  }
  EXPECT_FALSE(exceeds_nesting("\"" + std::string(200, '[') + "\\\"" + std::string(200, '[') + "\""));
  EXPECT_TRUE(exceeds_nesting(std::string(200, '[')));  // unfinished
}

TEST(Json, ReaderAcceptsWhatIsJson) {
  const std::string texts[] = {"{}",
                               "[]",
                               " 1 ",
                               "-0.5e+10",
                               "0",
                               "true",
                               "\"\"",
                               "\"\\u00e4\\n\"",
                               "[1]]",
                               "1 2",
                               "{\"a\":1,}",
                               "[1,]",
                               "[,1]",
                               "{\"a\" 1}",
                               "{1:2}",
                               "{\"a\":}",
                               "01",
                               "-",
                               "1.",
                               "1e",
                               "\"",
                               "\"\\x\"",
                               "\"\\u12g4\"",
                               "\"\n\"",
                               "",
                               " ",
                               "nul",
                               "truex",
                               "]",
                               "}",
                               "[}",
                               "{]",
                               "[",
                               "{\"a\":[1,{\"b\":null}],\"c\":false}",
                               "[[],[{}],\"]\"]",
                               "{\"a\":1 \"b\":2}",
                               "\"a\" ,"};
  for (const auto& text : texts) {
    EXPECT_EQ(skip(text).has_value(), nlohmann::json::accept(text)) << text;
    JsonReader reader(text);
    if (reader.enter_object()) {
      for (std::string_view key; reader.next_member(key);) reader.skip_value();
      EXPECT_EQ(reader.finish().has_value(), nlohmann::json::accept(text)) << text;
    }
  }
}

TEST(Json, ReaderReturnsTextsAsWritten) {
  const std::string text = R"( {"a\n": [1, {"x": []}] , "b":{"name": "n\u0031"}} )";
  JsonReader reader(text);
  ASSERT_FALSE(reader.enter_array());
  ASSERT_TRUE(reader.enter_object());
  std::string_view key;
  ASSERT_TRUE(reader.next_member(key));
  EXPECT_EQ(key, "a\\n");
  EXPECT_EQ(reader.skip_value(), R"([1, {"x": []}])");
  ASSERT_TRUE(reader.next_member(key));
  ASSERT_TRUE(reader.enter_object());
  ASSERT_TRUE(reader.next_member(key));
  EXPECT_EQ(unescape_json_string(reader.skip_value()), "n1");
  EXPECT_FALSE(reader.next_member(key));
  EXPECT_FALSE(reader.next_member(key));
  EXPECT_TRUE(reader.finish());
}

TEST(Json, ReaderOutsideOfContainersHasNoMembers) {
  JsonReader reader("1}");
  std::string_view key;
  EXPECT_FALSE(reader.enter_object());
  EXPECT_EQ(reader.skip_value(), "1");
  EXPECT_FALSE(reader.next_member(key));
  EXPECT_FALSE(reader.next_item());
  EXPECT_FALSE(reader.finish());
}

TEST(Json, StringsAreEscaped) {
  for (const std::string text : {"", "plain", "\"q\"", "a\\b", "line\nend\t", "ü\x01x\x1f"}) {
    std::string written;
    append_json_string(written, text);
    EXPECT_EQ(nlohmann::json::parse(written), text);
    EXPECT_EQ(unescape_json_string(written), text);
  }
}

}  // namespace
}  // namespace gpulet
