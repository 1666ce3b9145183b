#include "web/ipc_messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

Pages pages_of(bool healthy, bool ready, const std::vector<std::string>& texts) {
  return {.healthy = healthy,
          .health_text = texts[0],
          .ready = ready,
          .ready_text = texts[1],
          .metrics = texts[2],
          .open_metrics = texts[3],
          .node = texts[4],
          .now = texts[5],
          .use = texts[6],
          .public_node = texts[7],
          .public_use = texts[8],
          .trends = texts[9],
          .usage = texts[10]};
}

bool same(const PagesMessage& a, const PagesMessage& b) {
  return a.healthy == b.healthy && a.ready == b.ready && a.valid_for == b.valid_for && a.texts == b.texts &&
         a.has_metrics == b.has_metrics;
}

// The messages of `bytes`, appended in random pieces.
std::vector<Message> read_in_pieces(const std::string& bytes) {
  MessageReader reader;
  std::vector<Message> messages;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto step = *rc::gen::inRange<std::size_t>(1, 40);
    reader.append_bytes(std::string_view(bytes).substr(at, step));
    at += step;
    for (;;) {
      auto next = reader.next_message();
      RC_ASSERT(next.has_value());
      if (!*next) break;
      messages.push_back(std::move(**next));
    }
  }
  return messages;
}

RC_GTEST_PROP(PagesMessage, RoundTripsInAnyPieces, (bool healthy, bool ready)) {
  const auto texts =
      *rc::gen::container<std::vector<std::string>>(kPageTexts, rc::gen::arbitrary<std::string>());
  const Pages pages = pages_of(healthy, ready, texts);
  const std::string whole = encode_pages(pages, 1234ms, nullptr);
  const auto messages = read_in_pieces(whole + encode_access_message(http::AccessRules{}) + whole);
  RC_ASSERT(messages.size() == 3u);
  for (const std::size_t at : {0u, 2u}) {
    RC_ASSERT(same(std::get<PagesMessage>(messages[at]), make_pages_message(pages, 1234ms)));
  }
  RC_ASSERT(std::get<http::AccessRules>(messages[1]) == http::AccessRules{});
}

RC_GTEST_PROP(PagesMessage, OnlyChangedTextsAreSent, ()) {
  const auto text = rc::gen::element<std::string>("", "a", "b");
  const auto before = *rc::gen::container<std::vector<std::string>>(kPageTexts, text);
  const auto after = *rc::gen::container<std::vector<std::string>>(kPageTexts, text);
  const Pages old = pages_of(true, true, before), now = pages_of(false, true, after);
  const auto messages = read_in_pieces(encode_pages(now, 5ms, &old));
  RC_ASSERT(messages.size() == 1u);
  const auto& frame = std::get<PagesMessage>(messages[0]);
  for (std::size_t i = 0; i < kPageTexts; ++i) {
    RC_ASSERT(frame.texts[i] == (before[i] == after[i] ? std::nullopt : std::optional(after[i])));
  }
}

// Whatever was published before, with metrics or without: a child that is told that it has metrics has those
// last published.
RC_GTEST_PROP(PagesMessage, MetricsAreSentOnlyWhereTheyAreWritten, ()) {
  std::optional<Pages> before;
  std::string metrics;
  const auto count = *rc::gen::inRange(1, 8);
  for (int i = 0; i < count; ++i) {
    Pages now{.metrics = *rc::gen::element<std::string>("", "a", "b")};
    now.has_metrics = *rc::gen::arbitrary<bool>();
    if (!now.has_metrics) now.metrics.clear();
    const auto messages = read_in_pieces(encode_pages(now, 5ms, before ? &*before : nullptr));
    const auto& message = std::get<PagesMessage>(messages.at(0));
    RC_ASSERT(message.has_metrics == now.has_metrics);
    RC_ASSERT(now.has_metrics || !message[PageText::kMetrics]);
    metrics = message[PageText::kMetrics].value_or(metrics);
    RC_ASSERT(!now.has_metrics || metrics == now.metrics);
    before = now;
  }
}

RC_GTEST_PROP(PagesMessage, AccessRulesRoundTrip,
              (const std::string& one, const std::string& two, bool prefer)) {
  http::AccessRules access;
  access.users = {{one, two}, {two, one}};
  access.headers = {{two, two}};
  access.tls = http::TlsServerConfig{.certificate = one,
                                     .key = two,
                                     .clients = http::ClientAuthType::kVerifyIfGiven,
                                     .client_names = {one, two, one},
                                     .ciphers = two,
                                     .prefer_server_ciphers = prefer};
  const auto messages = read_in_pieces(encode_access_message(access));
  RC_ASSERT(messages.size() == 1u && std::get<http::AccessRules>(messages[0]) == access);
}

RC_GTEST_PROP(PagesMessage, ArbitraryBytesAreHarmless,
              (const std::string& bytes, std::uint8_t at, std::uint8_t value)) {
  MessageReader reader;
  reader.append_bytes(bytes);
  static_cast<void>(reader.next_message());
  std::string damaged =
      encode_access_message({.users = {{"name", "hash"}}}) + encode_pages({.metrics = "m 1\n"}, 1s, nullptr);
  damaged[at % damaged.size()] = static_cast<char>(value);
  MessageReader other;
  other.append_bytes(damaged);
  for (auto next = other.next_message(); next && *next; next = other.next_message()) continue;
}

TEST(Frame, InvalidBytesAreRejected) {
  MessageReader reader;
  reader.append_bytes(std::string(64, '\xff'));
  EXPECT_EQ(reader.next_message().error().code(), Code::kInvalidArgument);
}

TEST(Frame, OnlySmallNumbersAreSubscriberCounts) {
  EXPECT_EQ(decode_subscriber_count(encode_subscriber_count(0)), 0u);
  EXPECT_FALSE(decode_subscriber_count(kMetricsWanted));
  constexpr auto kMost = http::kMaxSubscribers + http::kMaxLocalSubscribers;
  EXPECT_EQ(decode_subscriber_count(encode_subscriber_count(kMost)), kMost);
  EXPECT_FALSE(decode_subscriber_count(encode_subscriber_count(kMost + 1)));
  EXPECT_FALSE(decode_subscriber_count('c'));
  EXPECT_FALSE(decode_subscriber_count('\xff'));
}

}  // namespace
}  // namespace gpulet::web
