#include "web/site.h"

#include <gtest/gtest.h>

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

const std::string kLong(5000, 'x');

Pages pages(bool healthy, bool ready) {
  return {.healthy = healthy,
          .health_text = healthy ? "" : "the driver hangs",
          .ready = ready,
          .ready_text = ready ? "" : "not registered: nvidia.com/gpu\nsecond line",
          .metrics = "m 1\n",
          .open_metrics = "m 1\n# EOF\n",
          .node = "{\"gpus\":[\"" + kLong + "\"]}\n",
          .now = "{\"at\":1}\n",
          .use = "{\"at\":1,\"devices\":{}}\n"};
}
Frame frame(bool healthy, bool ready) { return frame_of(pages(healthy, ready), 10s); }

Answer get(const Site& site, std::string_view target, Time now, std::string_view accept = {},
           std::string_view encoding = {}) {
  return site.answer({.method = "GET", .target = target, .accept = accept, .accept_encoding = encoding}, now);
}

TEST(Site, SaysWhatIsWrong) {
  Site site;
  const Time now{};
  site.publish(frame(false, false), now);
  EXPECT_EQ(get(site, "/healthz", now).status, 503);
  EXPECT_EQ(*get(site, "/healthz", now).body, "the driver hangs\n");
  EXPECT_EQ(get(site, "/readyz", now).status, 503);
  EXPECT_EQ(*get(site, "/readyz", now).body, "not registered: nvidia.com/gpu\nsecond line\n");
  site.publish(frame(true, true), now);
  EXPECT_EQ(get(site, "/healthz", now).status, 200);
  EXPECT_EQ(*get(site, "/healthz?verbose=1", now).body, "ok\n");
  EXPECT_EQ(site.answer({.method = "HEAD", .target = "/readyz"}, now).status, 200);
}

TEST(Site, MetricsComeAsTheScraperWantsThem) {
  Site site;
  const Time now{};
  site.publish(frame(true, true), now);
  EXPECT_EQ(*get(site, "/metrics", now).body, "m 1\n");
  EXPECT_EQ(get(site, "/metrics", now).content_type, "text/plain; version=0.0.4; charset=utf-8");
  const auto open = get(site, "/metrics", now, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
  EXPECT_EQ(*open.body, "m 1\n# EOF\n");
  EXPECT_EQ(open.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_NE(head_of(open, true).find("\r\nVary: Accept, Accept-Encoding\r\n"), std::string::npos);

  Pages only_text = pages(true, true);
  only_text.open_metrics.clear();
  site.publish(frame_of(only_text, 10s), now);
  EXPECT_EQ(*get(site, "/metrics", now, "application/openmetrics-text").body, "m 1\n");
}

TEST(Site, CompressedOnceAPublishAndOnlyWhenTaken) {
  Site site;
  const Time now{};
  site.publish(frame(true, true), now);
  const auto packed = get(site, "/api/node", now, "", "gzip");
  EXPECT_TRUE(packed.gzipped);
  EXPECT_NE(head_of(packed, true).find("\r\nContent-Encoding: gzip\r\n"), std::string::npos);
  EXPECT_LT(packed.body->size(), 200u);
  EXPECT_EQ(get(site, "/api/node", now, "", "br, gzip").body, packed.body);
  EXPECT_FALSE(get(site, "/api/node", now, "", "gzip;q=0").gzipped);
  EXPECT_EQ(get(site, "/api/node", now).body->size(), kLong.size() + 14);
  EXPECT_FALSE(get(site, "/metrics", now, "", "gzip").gzipped);  // too short to win by it
  // A page in which nothing changed keeps what was made of it.
  Frame unchanged{.healthy = true, .ready = true, .fresh = 10s, .texts = {}};
  site.publish(unchanged, now + 1s);
  EXPECT_EQ(get(site, "/api/node", now + 1s, "", "gzip").body, packed.body);
}

TEST(Site, OldPagesAndNoPagesAreNotBelieved) {
  Site site;
  const Time start{};
  const std::string_view kPaths[] = {"/healthz", "/readyz",  "/metrics",    "/api/node",
                                     "/api/now", "/api/use", "/api/history"};
  for (const auto path : kPaths) {
    EXPECT_EQ(get(site, path, start).status, 503);
    EXPECT_EQ(*get(site, path, start).body, "the agent has not said anything yet\n");
  }
  site.publish(frame(true, true), start);
  for (const auto path : kPaths) {
    EXPECT_EQ(get(site, path, start + 10s).status, 200);
    EXPECT_EQ(get(site, path, start + 10s + 1ns).status, 503);
    EXPECT_EQ(*get(site, path, start + 12300ms).body, "no news from the agent for 12.3 s\n");
  }
  EXPECT_EQ(get(site, "/", start + 1h).status, 200);
  site.publish(frame(true, true), start + 1h);
  EXPECT_EQ(get(site, "/healthz", start + 1h).status, 200);
}

TEST(Site, HistoryHasEachSampleOnce) {
  Site site;
  Pages published = pages(true, true);
  site.publish(frame_of(published, 10s), Time{});
  Frame same{.healthy = true, .ready = true, .fresh = 10s, .texts = {}};
  site.publish(same, Time{} + 1s);
  published.now = "{\"at\":2}\n";
  site.publish(frame_of(published, 10s), Time{} + 2s);
  EXPECT_EQ(*get(site, "/api/history", Time{} + 2s).body, "{\"samples\":[{\"at\":1}\n,{\"at\":2}\n]}\n");
  EXPECT_EQ(get(site, "/api/history", Time{} + 2s).body, get(site, "/api/history", Time{} + 3s).body);
}

TEST(Site, WatchersHearWhatChanged) {
  Site site;
  Pages published = pages(true, true);
  published.node = "{\"a\":1}";
  site.publish(frame_of(published, 10s), Time{});
  const auto first = get(site, "/api/events", Time{});
  EXPECT_TRUE(first.events);
  EXPECT_EQ(first.content_type, "text/event-stream");
  EXPECT_EQ(*first.body,
            "retry: 2000\n\nevent: node\nid: 3\ndata: {\"a\":1}\n\nevent: now\nid: 3\ndata: {\"at\":1}\n\n"
            "event: use\nid: 3\ndata: {\"at\":1,\"devices\":{}}\n\n");
  EXPECT_EQ(head_of(first, false).find("Content-Length"), std::string::npos);

  std::vector<std::string> heard;
  unsigned counted = 0;
  site.watchers().on_count = [&] { ++counted; };
  auto watching = site.watchers().join([&](const SharedText& text) { heard.push_back(*text); }, 1);
  EXPECT_TRUE(watching);
  EXPECT_FALSE(site.watchers().join([](const SharedText&) {}, 1));
  Frame change{.healthy = true, .ready = true, .fresh = 10s, .texts = {}};
  site.publish(change, Time{} + 1s);
  EXPECT_TRUE(heard.empty());
  change[Text::kNow] = "{\"at\":2}\n";
  change[Text::kUse] = "{\"at\":2}";
  site.publish(change, Time{} + 2s);
  change[Text::kNow].reset();
  change[Text::kUse].reset();
  change[Text::kNode] = "{\"a\":2}";
  site.publish(change, Time{} + 3s);
  EXPECT_EQ(heard, (std::vector<std::string>{"event: now\nid: 4\ndata: {\"at\":2}\n\n"
                                             "event: use\nid: 5\ndata: {\"at\":2}\n\n",
                                             "event: node\nid: 6\ndata: {\"a\":2}\n\n"}));
  watching.reset();
  site.watchers().tell(Site::heartbeat());
  EXPECT_EQ(heard.size(), 2u);
  EXPECT_EQ(counted, 2u);
}

TEST(Site, WhoUsesWhatIsInNoHistory) {
  Site site;
  site.publish(frame(true, true), Time{});
  EXPECT_EQ(*get(site, "/api/use", Time{}).body, "{\"at\":1,\"devices\":{}}\n");
  EXPECT_EQ(*get(site, "/api/history", Time{}).body, "{\"samples\":[{\"at\":1}\n]}\n");
}

TEST(Site, AWatcherMayLeaveWhileItIsTold) {
  Watchers watchers;
  std::vector<Subscription> all(3);
  int told = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = watchers.join(
        [&](const SharedText&) {
          ++told;
          for (auto& one : all) one.reset();
        },
        10);
  }
  watchers.tell(Site::heartbeat());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(watchers.count(), 0u);
}

TEST(Site, ThePageComesWithItsPartsAndTellsTheBrowserToTrustNothingElse) {
  const Site site;
  const std::vector<std::pair<const char*, const char*>> parts = {
      {"/", "text/html; charset=utf-8"},
      {"/page.css", "text/css; charset=utf-8"},
      {"/page.js", "text/javascript; charset=utf-8"},
      {"/icon.svg", "image/svg+xml"}};
  for (const auto& [path, type] : parts) {
    const auto answer = get(site, path, Time{}, "", "gzip");
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.content_type, type);
    const std::string head = head_of(answer, true);
    for (const char* field :
         {"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self';",
          "frame-ancestors 'none'", "X-Content-Type-Options: nosniff\r\n", "Referrer-Policy: no-referrer\r\n",
          "Permissions-Policy: ", "Cross-Origin-Opener-Policy: same-origin\r\n"}) {
      EXPECT_NE(head.find(field), std::string::npos) << field;
    }
    EXPECT_EQ(head.find("unsafe"), std::string::npos);
  }
  const std::string html = *get(site, "/", Time{}).body;
  EXPECT_NE(html.find("<html lang=\"en\">"), std::string::npos);
  for (const char* foreign : {"http:", "//cdn", "style=\"", "<style", "onclick", "javascript:"}) {
    EXPECT_EQ(html.find(foreign), std::string::npos) << foreign;
  }
  EXPECT_EQ(html.find("https:"), std::string::npos);
}

TEST(Site, HeadersOfTheConfigTakeThePlaceOfOurs) {
  const std::string head =
      head_of({.body = Site::heartbeat()}, true,
              {{"x-frame-options", "SAMEORIGIN"}, {"Strict-Transport-Security", "max-age=1"}});
  EXPECT_EQ(head.find("DENY"), std::string::npos);
  EXPECT_NE(head.find("\r\nx-frame-options: SAMEORIGIN\r\nStrict-Transport-Security: max-age=1\r\n"),
            std::string::npos);
}

TEST(Site, OtherPathsAndMethods) {
  Site site;
  site.publish(frame(true, true), Time{});
  for (const char* path : {"/healthz/", "/metrics2", "", "*", "/../etc/passwd", "http://host/healthz", "/api",
                           "/api/", "/page.html", "/api/node/"}) {
    EXPECT_EQ(get(site, path, Time{}).status, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", "X"}) {
    for (const char* path : {"/healthz", "/", "/api/node", "/api/events"}) {
      EXPECT_EQ(site.answer({.method = method, .target = path}, Time{}).status, 405) << method;
    }
  }
  EXPECT_NE(
      head_of(site.answer({.method = "POST", .target = "/"}, Time{}), true).find("\r\nAllow: GET, HEAD\r\n"),
      std::string::npos);
}

}  // namespace
}  // namespace gpulet::web
