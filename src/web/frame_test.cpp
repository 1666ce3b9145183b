#include "web/frame.h"

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
          .use = texts[6]};
}

bool same(const Frame& a, const Frame& b) {
  return a.healthy == b.healthy && a.ready == b.ready && a.fresh == b.fresh && a.texts == b.texts;
}

// The messages of `bytes`, given in random steps.
std::vector<Message> read_in_pieces(const std::string& bytes) {
  FrameReader reader;
  std::vector<Message> messages;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto step = *rc::gen::inRange<std::size_t>(1, 40);
    reader.append(std::string_view(bytes).substr(at, step));
    at += step;
    for (;;) {
      auto next = reader.next();
      RC_ASSERT(next.has_value());
      if (!*next) break;
      messages.push_back(std::move(**next));
    }
  }
  return messages;
}

RC_GTEST_PROP(Frame, ComesBackHoweverItsBytesAreCut, (bool healthy, bool ready)) {
  const auto texts = *rc::gen::container<std::vector<std::string>>(kTexts, rc::gen::arbitrary<std::string>());
  const Pages pages = pages_of(healthy, ready, texts);
  const std::string whole = encode(pages, 1234ms, nullptr);
  const auto messages = read_in_pieces(whole + encode_frame(Access{}) + whole);
  RC_ASSERT(messages.size() == 3u);
  for (const std::size_t at : {0u, 2u}) {
    RC_ASSERT(same(std::get<Frame>(messages[at]), frame_of(pages, 1234ms)));
  }
  RC_ASSERT(std::get<Access>(messages[1]) == Access{});
}

RC_GTEST_PROP(Frame, OnlyWhatDiffersIsSent, ()) {
  const auto text = rc::gen::element<std::string>("", "a", "b");
  const auto before = *rc::gen::container<std::vector<std::string>>(kTexts, text);
  const auto after = *rc::gen::container<std::vector<std::string>>(kTexts, text);
  const Pages old = pages_of(true, true, before), now = pages_of(false, true, after);
  const auto messages = read_in_pieces(encode(now, 5ms, &old));
  RC_ASSERT(messages.size() == 1u);
  const auto& frame = std::get<Frame>(messages[0]);
  for (std::size_t i = 0; i < kTexts; ++i) {
    RC_ASSERT(frame.texts[i] == (before[i] == after[i] ? std::nullopt : std::optional(after[i])));
  }
}

RC_GTEST_PROP(Frame, AnAccessComesBack, (const std::string& one, const std::string& two, bool prefer)) {
  Access access;
  access.users = {{one, two}, {two, one}};
  access.headers = {{two, two}};
  access.tls = Tls{.certificate = one,
                   .key = two,
                   .clients = ClientCertificates::kVerifyIfGiven,
                   .client_names = {one, two, one},
                   .ciphers = two,
                   .prefer_server_ciphers = prefer};
  const auto messages = read_in_pieces(encode_frame(access));
  RC_ASSERT(messages.size() == 1u && std::get<Access>(messages[0]) == access);
}

RC_GTEST_PROP(Frame, NoBytesWhateverHarmIt, (const std::string& bytes, std::uint8_t at, std::uint8_t value)) {
  FrameReader reader;
  reader.append(bytes);
  static_cast<void>(reader.next());
  std::string damaged =
      encode_frame({.users = {{"name", "hash"}}}) + encode({.metrics = "m 1\n"}, 1s, nullptr);
  damaged[at % damaged.size()] = static_cast<char>(value);
  FrameReader other;
  other.append(damaged);
  for (auto next = other.next(); next && *next; next = other.next()) continue;
}

TEST(Frame, BytesThatAreNoneAreRefused) {
  FrameReader reader;
  reader.append(std::string(64, '\xff'));
  EXPECT_EQ(reader.next().error().code(), Code::kInvalidArgument);
}

TEST(Frame, OnlySmallNumbersAreWatchers) {
  EXPECT_EQ(watchers_of(watchers_byte(0)), 0u);
  constexpr auto kMost = kMaxWatchers + kMaxLocalWatchers;
  EXPECT_EQ(watchers_of(watchers_byte(kMost)), kMost);
  EXPECT_FALSE(watchers_of(watchers_byte(kMost + 1)));
  EXPECT_FALSE(watchers_of('c'));
  EXPECT_FALSE(watchers_of('\xff'));
}

}  // namespace
}  // namespace gpulet::web
