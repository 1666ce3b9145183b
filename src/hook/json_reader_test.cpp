#include "hook/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpulet::hook {
namespace {

bool is_json(std::string_view text) {
  JsonReader json(text);
  return json.skip_value().has_value() && json.expect_end().has_value();
}

std::optional<std::string> string_of(std::string_view text) {
  JsonReader json(text);
  auto value = json.read_string();
  if (!value || !json.expect_end()) return std::nullopt;
  return *value;
}

TEST(JsonReader, AcceptsJson) {
  for (const char* text :
       {"null", " true ", "false", "0", "-0", "-1.5e+10", "1E3", "\"\"", "[]", "{}", "[1,[2,{\"a\":[]}]]",
        "{\"a\":1,\"a\":2,\"\":null}", "\t\r\n{ \"a\" : [ 1 , 2 ] }\n", "\"\\u00e9\\ud83d\\ude00\\n\""})
    EXPECT_TRUE(is_json(text)) << text;
}

TEST(JsonReader, RejectsOtherText) {
  for (const char* text : {"",
                           " ",
                           "nul",
                           "nulll",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "0x1",
                           "-",
                           "NaN",
                           "'a'",
                           "\"",
                           "\"\\\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\ud800\\u0041\"",
                           "\"\\udc00\"",
                           "\"\x01\"",
                           "\"\n\"",
                           "[",
                           "]",
                           "[1",
                           "[1,",
                           "[1,]",
                           "[,]",
                           "[1 2]",
                           "{",
                           "{\"a\"",
                           "{\"a\":",
                           "{\"a\":1",
                           "{\"a\":1,",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{1:1}",
                           "{\"a\" 1}",
                           "1 2",
                           "{}{}",
                           "// x\n1",
                           "[1]]"})
    EXPECT_FALSE(is_json(text)) << text;
}

TEST(JsonReader, Strings) {
  EXPECT_EQ(string_of(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(string_of(R"("\u0041\u00e9\u20ac\ud83d\ude00")"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(string_of("\"\\u0000\""), std::string(1, '\0'));
  EXPECT_EQ(string_of("1"), std::nullopt);
}

TEST(JsonReader, LimitsDepth) {
  EXPECT_TRUE(is_json(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(is_json(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(is_json(std::string(1'000'000, '[')));
  std::string wide = "[";
  for (int i = 0; i < 1000; ++i) wide += "[],";
  EXPECT_TRUE(is_json(wide + "0]")) << "depth is given back";
}

TEST(JsonReader, RejectsAnUnreadMember) {
  JsonReader json(R"({"a":1})");
  EXPECT_FALSE(json.read_object([](std::string_view) { return Status{}; }));
}

TEST(JsonReader, Numbers) {
  EXPECT_EQ(JsonReader("18446744073709551615").read_unsigned(), 18446744073709551615u);
  for (const char* text : {"18446744073709551616", "-1", "1.0", "1e2", "\"1\""})
    EXPECT_FALSE(JsonReader(text).read_unsigned()) << text;
}

}  // namespace
}  // namespace gpulet::hook
