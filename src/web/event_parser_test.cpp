#include "web/event_parser.h"

#include <gtest/gtest.h>

namespace gpulet::web {
namespace {

std::vector<Event> all_of(std::string_view text) {
  EventParser parser;
  auto events = parser.take(text);
  EXPECT_TRUE(events);
  return events ? *events : std::vector<Event>{};
}

TEST(EventParser, WhatTheListenerSends) {
  EXPECT_EQ(
      all_of("retry: 2000\n\nevent: node\nid: 7\ndata: {\"a\":1}\n\n:\n\nevent: now\nid: 8\ndata: {}\n\n"),
      (std::vector<Event>{{"node", "{\"a\":1}"}, {"now", "{}"}}));
}

TEST(EventParser, TheStandardsForms) {
  EXPECT_EQ(all_of("data: a\ndata:b\ndata:  c\n\n"), (std::vector<Event>{{"message", "a\nb\n c"}}));
  EXPECT_EQ(all_of("data\n\ndata\ndata\n\ndata:"), (std::vector<Event>{{"message", ""}, {"message", "\n"}}));
  EXPECT_EQ(all_of("\xEF\xBB\xBF"
                   "data: x\r\n\r\n"),
            (std::vector<Event>{{"message", "x"}}));
  EXPECT_EQ(all_of("data: x\r\rdata: y\n\r\n"), (std::vector<Event>{{"message", "x"}, {"message", "y"}}));
  EXPECT_EQ(all_of("event: a\n\ndata: x\n\n"), (std::vector<Event>{{"message", "x"}}));
  EXPECT_EQ(all_of("event: a\nevent: b\nother: c\n: comment\ndata: x\n\n"), (std::vector<Event>{{"b", "x"}}));
  EXPECT_TRUE(all_of("data: not ended yet\n").empty());
  EXPECT_TRUE(all_of("").empty());
}

TEST(EventParser, InWhateverPieces) {
  const std::string text =
      "\xEF\xBB\xBFretry: 2000\r\n\r\nevent: node\r\nid: 1\r\ndata: {\"x\":\r\ndata: 2}\r\n\r\n:\n\n"
      "event: now\rdata: {}\r\rdata: last\n\n";
  const auto whole = all_of(text);
  ASSERT_EQ(whole, (std::vector<Event>{{"node", "{\"x\":\n2}"}, {"now", "{}"}, {"message", "last"}}));
  const auto cut_at = [&](std::size_t first, std::size_t second) {
    EventParser parser;
    std::vector<Event> events;
    for (const auto& [from, to] :
         {std::pair{std::size_t{0}, first}, {first, second}, {second, text.size()}}) {
      const auto some = parser.take(std::string_view(text).substr(from, to - from));
      EXPECT_TRUE(some);
      if (some) events.insert(events.end(), some->begin(), some->end());
    }
    return events;
  };
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second)
      ASSERT_EQ(cut_at(first, second), whole) << first << " " << second;
  }
  EventParser byte_by_byte;
  std::vector<Event> events;
  for (const char byte : text) {
    const auto some = byte_by_byte.take({&byte, 1});
    ASSERT_TRUE(some);
    events.insert(events.end(), some->begin(), some->end());
  }
  EXPECT_EQ(events, whole);
}

TEST(EventParser, WhatNeverEndsIsGivenUp) {
  const std::string piece(1u << 20, 'x');
  for (const std::string head : {"data: ", ": "}) {
    EventParser parser;
    ASSERT_TRUE(parser.take(head));
    std::size_t taken = 0;
    while (taken <= 2 * kMaxEventBytes && parser.take(piece)) taken += piece.size();
    EXPECT_LE(taken, kMaxEventBytes);
  }
  EventParser lines;
  std::size_t taken = 0;
  while (taken <= 2 * kMaxEventBytes && lines.take("data: " + piece + "\n")) taken += piece.size();
  EXPECT_LE(taken, kMaxEventBytes);
}

}  // namespace
}  // namespace gpulet::web
