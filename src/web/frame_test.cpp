#include "web/frame.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

bool same(const Frame& a, const Frame& b) {
  return a.pages.healthy == b.pages.healthy && a.pages.health_text == b.pages.health_text &&
         a.pages.ready == b.pages.ready && a.pages.ready_text == b.pages.ready_text &&
         a.pages.metrics == b.pages.metrics && a.fresh == b.fresh;
}

RC_GTEST_PROP(Frame, ComesBackHoweverItsBytesAreCut,
              (bool healthy, bool ready, const std::string& one, const std::string& two, const std::string& three)) {
  const Frame frame{{healthy, one, ready, two, three}, 1234ms};
  const std::string bytes = encode(frame) + encode(frame);
  FrameReader reader;
  std::size_t frames = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto step = *rc::gen::inRange<std::size_t>(1, 40);
    reader.append(std::string_view(bytes).substr(at, step));
    at += step;
    for (;;) {
      const auto next = reader.next();
      RC_ASSERT(next.has_value());
      if (!*next) break;
      RC_ASSERT(same(**next, frame));
      ++frames;
    }
  }
  RC_ASSERT(frames == 2u);
}

TEST(Frame, BytesThatAreNoneAreRefused) {
  FrameReader reader;
  reader.append(std::string(64, '\xff'));
  EXPECT_EQ(reader.next().error().code(), Code::kInvalidArgument);

  std::string bytes = encode({{true, "a", true, "b", "c"}, 1s});
  ++bytes[0];  // its size is no longer that of its texts
  FrameReader other;
  other.append(bytes);
  EXPECT_FALSE(other.next());
}

}  // namespace
}  // namespace gpulet::web
