#include "k8s/objects.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::k8s {
namespace {

using nlohmann::json;

struct Found {
  std::vector<std::pair<std::string, std::string>> members;
  std::vector<std::string> items;
  bool done = false;
  Status status;
};

Found parse_members(const std::string& text, std::size_t piece, std::size_t limit = 1u << 20) {
  Found found;
  JsonStream members(
      limit, [&](auto key, auto value) { found.members.emplace_back(key, value); },
      [&](auto item) { found.items.emplace_back(item); });
  for (std::size_t at = 0; at < text.size() && found.status; at += piece) {
    found.status = members.feed(std::string_view(text).substr(at, piece));
  }
  found.done = members.is_done();
  return found;
}

TEST(ObjectTexts, SanitizedLinesHaveNoControlCharacters) {
  EXPECT_EQ(sanitize_line("plain ä \xC2\xA0€"), "plain ä \xC2\xA0€");
  EXPECT_EQ(sanitize_line("a\nb\r\tc\x1b[2J\x7f"), "a b  c [2J ");
  EXPECT_EQ(sanitize_line("a\xC2\x9b"
                          "31m"),
            "a  31m");
  EXPECT_EQ(sanitize_line(std::string("a\0b", 3)), "a b");
}

TEST(ObjectTexts, ResponsesAreDescribedInOneLine) {
  EXPECT_EQ(describe_response(
                {403, R"({"message": "line\none\u001b[2J", "details": {"causes": [{"message": "\r\n"}]}})"}),
            "the API server answered 403: line one [2J   ");
  EXPECT_EQ(describe_response({500, "not JSON"}), "the API server answered 500");
}

TEST(JsonMembers, SplitsAListIntoItems) {
  const std::string list =
      R"( {"kind":"PodList","metadata":{"resourceVersion":"7","continue":"a\"b}"},"n":[{"no":1}],)"
      R"("items":[{"a":{"b":["}]",{}]}}, {"c":"\\"},3],"last":true}
)";
  for (std::size_t piece = 1; piece < list.size(); ++piece) {
    const auto found = parse_members(list, piece);
    ASSERT_TRUE(found.status) << found.status.error().full_message();
    EXPECT_TRUE(found.done);
    EXPECT_EQ(found.items, (std::vector<std::string>{R"({"a":{"b":["}]",{}]}})", R"({"c":"\\"})"}));
    ASSERT_EQ(found.members.size(), 2U);
    EXPECT_EQ(found.members[0], (std::pair<std::string, std::string>{"kind", "\"PodList\""}));
    EXPECT_EQ(found.members[1].second, R"({"resourceVersion":"7","continue":"a\"b}"})");
  }
}

TEST(JsonMembers, RejectsNonObjects) {
  for (const char* text : {"[]", "7", "x{}", "}", "{}{", "\"a\"", "{}]"}) {
    EXPECT_FALSE(parse_members(text, 1).status) << text;
  }
  EXPECT_FALSE(parse_members("{\"a\":{}", 3).done);
}

TEST(JsonMembers, BufferIsBounded) {
  EXPECT_FALSE(parse_members(R"({"items":[{"a":")" + std::string(2000, 'x'), 100, 1000).status);
  EXPECT_FALSE(parse_members("{\"" + std::string(2000, 'x'), 100).status);
  EXPECT_TRUE(parse_members(R"({"skipped":[")" + std::string(100'000, 'x') + "\"]}", 100, 1000).status);
}

TEST(JsonMembers, FindsAMemberByName) {
  const std::string object = R"({"metadata":{"name":"a","x":{"name":"b"}},"name":"c","n":7})";
  EXPECT_EQ(metadata_string(object, "name"), "a");
  EXPECT_EQ(string_member(object, "name"), "c");
  EXPECT_EQ(string_member(object, "n"), "");
  EXPECT_EQ(metadata_string("nothing", "name"), "");
}

// However the bytes are split, the items equal those of a parser for the whole text.
RC_GTEST_PROP(JsonMembers, ItemsAreThoseOfAParser, (const std::vector<std::string>& texts)) {
  json list = {{"kind", "L"}, {"items", json::array()}, {"metadata", {{"resourceVersion", "1"}}}};
  for (const auto& text : texts) list["items"].push_back({{"t", text}, {"o", {{"l", {text, 1, nullptr}}}}});
  const auto text = list.dump(-1, ' ', false, json::error_handler_t::replace);
  const auto found = parse_members(text, *rc::gen::inRange<std::size_t>(1, 50));
  RC_ASSERT(found.status.has_value());
  RC_ASSERT(found.done);
  RC_ASSERT(found.items.size() == texts.size());
  const auto whole = json::parse(text);
  for (std::size_t i = 0; i < texts.size(); ++i) RC_ASSERT(json::parse(found.items[i]) == whole["items"][i]);
}

}  // namespace
}  // namespace gpulet::k8s
