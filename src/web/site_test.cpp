#include "web/site.h"

#include <gtest/gtest.h>

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

Frame frame(bool healthy, bool ready) {
  return {{healthy, healthy ? "" : "the driver hangs", ready,
           ready ? "" : "not registered: nvidia.com/gpu\nsecond line", "m 1\n"}, 10s};
}

TEST(Site, SaysWhatIsWrong) {
  Site site;
  const Time now{};
  site.publish(frame(false, false), now);
  EXPECT_EQ(site.answer("GET", "/healthz", now).status, 503);
  EXPECT_EQ(*site.answer("GET", "/healthz", now).body, "the driver hangs\n");
  EXPECT_EQ(site.answer("GET", "/readyz", now).status, 503);
  EXPECT_EQ(*site.answer("GET", "/readyz", now).body, "not registered: nvidia.com/gpu\nsecond line\n");
  site.publish(frame(true, true), now);
  EXPECT_EQ(site.answer("GET", "/healthz", now).status, 200);
  EXPECT_EQ(*site.answer("GET", "/healthz?verbose=1", now).body, "ok\n");
  EXPECT_EQ(site.answer("HEAD", "/readyz", now).status, 200);
  EXPECT_EQ(*site.answer("GET", "/metrics", now).body, "m 1\n");
  EXPECT_EQ(site.answer("GET", "/metrics", now).content_type, "text/plain; version=0.0.4; charset=utf-8");
}

TEST(Site, OldPagesAndNoPagesAreNotBelieved) {
  Site site;
  const Time start{};
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_EQ(site.answer("GET", path, start).status, 503);
    EXPECT_EQ(*site.answer("GET", path, start).body, "the agent has not said anything yet\n");
  }
  site.publish(frame(true, true), start);
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_EQ(site.answer("GET", path, start + 10s).status, 200);
    EXPECT_EQ(site.answer("GET", path, start + 10s + 1ns).status, 503);
    EXPECT_EQ(*site.answer("GET", path, start + 12300ms).body, "no news from the agent for 12.3 s\n");
  }
  EXPECT_EQ(site.answer("GET", "/", start + 1h).status, 200);
  site.publish(frame(true, true), start + 1h);
  EXPECT_EQ(site.answer("GET", "/healthz", start + 1h).status, 200);
}

TEST(Site, OtherPathsAndMethods) {
  Site site;
  site.publish(frame(true, true), Time{});
  for (const char* path : {"/healthz/", "/metrics2", "", "*", "/../etc/passwd", "http://host/healthz"}) {
    EXPECT_EQ(site.answer("GET", path, Time{}).status, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", "X"}) {
    EXPECT_EQ(site.answer(method, "/healthz", Time{}).status, 405) << method;
  }
  EXPECT_NE(head_of(site.answer("POST", "/", Time{}), true).find("\r\nAllow: GET, HEAD\r\n"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::web
