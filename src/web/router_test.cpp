#include <zlib.h>

#include <gtest/gtest.h>

#include "http/message.h"
#include "web/router.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

std::string unpacked(const std::string& packed, std::size_t size) {
  z_stream stream{};
  EXPECT_EQ(::inflateInit2(&stream, 15 + 16), Z_OK);
  std::string text(size + 1, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(::inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  ::inflateEnd(&stream);
  return text;
}

TEST(Document, IsCompressedOnceIfThatSavesBytes) {
  std::string metrics;
  for (int i = 0; i < 2000; ++i) metrics += "gpulet_metric{gpu=\"" + std::to_string(i) + "\"} 1\n";
  const http::Document document(metrics);
  const http::SharedText packed = document.gzipped();
  ASSERT_TRUE(packed);
  EXPECT_LT(packed->size(), metrics.size() / 4);
  EXPECT_EQ(unpacked(*packed, metrics.size()), metrics);
  EXPECT_EQ(document.gzipped(), packed);
  EXPECT_FALSE(http::Document("short").gzipped());
  EXPECT_FALSE(http::Document().gzipped());
}

http::SharedText sample_document(int number, std::size_t size = 0) {
  return std::make_shared<const std::string>("{\"n\":" + std::to_string(number) + std::string(size, ' ') +
                                             "}");
}

TEST(History, KeepsNewSamplesAndThinsOlderOnes) {
  SampleHistory history;
  EXPECT_EQ(history.history_json(), "{\"samples\":[]}\n");
  for (int second = 0; second < 3600; ++second)
    history.add_document(sample_document(second), Time{} + second * 1s);
  // Two minutes of every second, thirteen of every fifth.
  EXPECT_NEAR(static_cast<double>(history.size()), 120 + 13 * 12, 3);
  const std::string text = history.history_json();
  EXPECT_EQ(text.find("{\"n\":2698}"), std::string::npos);  // older than 15 minutes
  for (int second = 3480; second < 3600; ++second) {
    EXPECT_NE(text.find("{\"n\":" + std::to_string(second) + "}"), std::string::npos) << second;
  }
  EXPECT_LT(text.find("{\"n\":3500}"), text.find("{\"n\":3501}"));
}

TEST(History, KeepsAllInfrequentSamples) {
  SampleHistory history;
  for (int i = 0; i < 200; ++i) history.add_document(sample_document(i), Time{} + i * 15s);
  EXPECT_EQ(history.size(), 61u);
}

TEST(History, SizeIsBounded) {
  SampleHistory history;
  for (int i = 0; i < 2000; ++i) {
    history.add_document(sample_document(i, 60'000), Time{} + i * 1s);
    ASSERT_LE(history.bytes(), kMaxHistoryBytes + 60'100);
  }
  EXPECT_GE(history.size(), 4u);
  EXPECT_NE(history.history_json().find("\"n\":1999"), std::string::npos);
  const auto before = history.size();
  history.add_document(sample_document(1, kMaxHistoryBytes), Time{} + 2000s);
  EXPECT_EQ(history.size(), before);
}

TEST(Document, DecompressionIsBounded) {
  const std::string text = std::string(100'000, 'a') + "end";
  const std::string packed = http::gzip(text);
  EXPECT_EQ(http::gunzip(packed, text.size()), text);
  EXPECT_EQ(http::gunzip(packed, text.size() - 1), "");
  EXPECT_EQ(http::gunzip(packed.substr(0, packed.size() - 1), text.size()), "");
  EXPECT_EQ(http::gunzip("no gzip", 100), "");
  EXPECT_EQ(http::gunzip("", 100), "");
}

}  // namespace

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
          .use = "{\"at\":1,\"devices\":{}}\n",
          .public_node = "{\"gpus\":[\"public\"]}\n",
          .public_use = "{\"at\":1,\"devices\":\"public\"}\n",
          .trends = "{\"at\":1,\"rings\":[]}\n",
          .usage = "{\"since\":1,\"pods\":[],\"namespaces\":[]}\n"};
}
PagesMessage frame(bool healthy, bool ready) { return make_pages_message(pages(healthy, ready), 10s); }

http::Response get(const Router& site, std::string_view target, Time now, std::string_view accept = {},
                   std::string_view encoding = {}) {
  return site.route_request({.method = "GET",
                             .target = target,
                             .accept = accept,
                             .accept_encoding = encoding,
                             .is_authenticated = true},
                            now);
}

TEST(Site, ReportsProblems) {
  Router site;
  const Time now{};
  site.publish_message(frame(false, false), now);
  EXPECT_EQ(get(site, "/healthz", now).status, 503);
  EXPECT_EQ(*get(site, "/healthz", now).body, "the driver hangs\n");
  EXPECT_EQ(get(site, "/readyz", now).status, 503);
  EXPECT_EQ(*get(site, "/readyz", now).body, "not registered: nvidia.com/gpu\nsecond line\n");
  site.publish_message(frame(true, true), now);
  EXPECT_EQ(get(site, "/healthz", now).status, 200);
  EXPECT_EQ(*get(site, "/healthz?verbose=1", now).body, "ok\n");
  EXPECT_EQ(site.route_request({.method = "HEAD", .target = "/readyz"}, now).status, 200);
}

TEST(Site, HealthOfTheProcessNeedsNothingElse) {
  Router site;
  const Time now{};
  EXPECT_EQ(get(site, "/health", now).status, 200);
  EXPECT_EQ(*get(site, "/health", now).body, "OK\n");
  site.publish_message(frame(false, false), now);
  EXPECT_EQ(get(site, "/health", now + 1h).status, 200);
}

TEST(Site, MetricsFormatFollowsTheAcceptHeader) {
  Router site;
  const Time now{};
  site.publish_message(frame(true, true), now);
  EXPECT_EQ(*get(site, "/metrics", now).body, "m 1\n");
  EXPECT_EQ(get(site, "/metrics", now).content_type, "text/plain; version=0.0.4; charset=utf-8");
  const auto open = get(site, "/metrics", now, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
  EXPECT_EQ(*open.body, "m 1\n# EOF\n");
  EXPECT_EQ(open.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_NE(http::response_head(open, true).find("\r\nVary: Accept, Accept-Encoding\r\n"), std::string::npos);

  Pages only_text = pages(true, true);
  only_text.open_metrics.clear();
  site.publish_message(make_pages_message(only_text, 10s), now);
  EXPECT_EQ(*get(site, "/metrics", now, "application/openmetrics-text").body, "m 1\n");
}

// Pages without metrics: requests for them wait, all others are answered.
class WaitingForMetrics : public testing::Test {
 protected:
  WaitingForMetrics() {
    site_.on_metrics_wanted = [this] { ++wanted_; };
    Pages without = pages(true, true);
    without.has_metrics = false;
    site_.publish_message(make_pages_message(without, 10s), Time{});
  }
  void request(std::string_view target, std::string_view accept = {}, Time now = {}) {
    // Views of what is gone after the call.
    const std::string copy(accept);
    site_.handle_request({.method = "GET", .target = target, .accept = copy}, now,
                         [this](const http::Response& response) {
                           answers_.push_back(std::to_string(response.status) + " " + *response.body);
                         });
  }

  Router site_;
  int wanted_ = 0;
  std::vector<std::string> answers_;
};

TEST_F(WaitingForMetrics, AreAnsweredTogetherEachInItsFormat) {
  request("/healthz");
  request("/api/now");
  EXPECT_EQ(answers_, (std::vector<std::string>{"200 ok\n", "200 {\"at\":1}\n"}));
  answers_.clear();
  request("/metrics?a=b");
  request("/metrics", "application/openmetrics-text");
  EXPECT_EQ(wanted_, 1);
  EXPECT_TRUE(answers_.empty());
  // A sample in between has no metrics either.
  site_.publish_message({.healthy = true, .ready = true, .valid_for = 10s, .texts = {}, .has_metrics = false},
                        Time{} + 1s);
  EXPECT_TRUE(answers_.empty());
  EXPECT_TRUE(site_.waits_for_metrics());
  site_.publish_message(frame(true, true), Time{} + 1s);
  EXPECT_EQ(answers_, (std::vector<std::string>{"200 m 1\n", "200 m 1\n# EOF\n"}));
  EXPECT_FALSE(site_.waits_for_metrics());
  request("/metrics", {}, Time{} + 1s);
  EXPECT_EQ(answers_.size(), 3u);
  EXPECT_EQ(wanted_, 1);
}

TEST_F(WaitingForMetrics, GetAnErrorWhenTheAgentDoesNotWriteThem) {
  request("/metrics");
  site_.give_up_on_metrics();
  EXPECT_EQ(answers_, (std::vector<std::string>{"503 the agent has not written its metrics in time\n"}));
  request("/metrics");
  EXPECT_EQ(wanted_, 2);  // asked again
  request("/metrics", {}, Time{} + 11s);
  EXPECT_EQ(answers_.back(), "503 no data from the agent for 11.0 s\n");
}

TEST_F(WaitingForMetrics, AreLimited) {
  for (std::size_t i = 0; i < kMaxWaitingRequests; ++i) request("/metrics");
  EXPECT_TRUE(answers_.empty());
  request("/metrics");
  EXPECT_EQ(answers_.size(), 1u);
  site_.publish_message(frame(true, true), Time{});
  EXPECT_EQ(answers_.size(), kMaxWaitingRequests + 1);
}

TEST(Site, CompressesOncePerPublishAndOnlyOnRequest) {
  Router site;
  const Time now{};
  site.publish_message(frame(true, true), now);
  const auto packed = get(site, "/api/node", now, "", "gzip");
  EXPECT_TRUE(packed.gzipped);
  EXPECT_NE(http::response_head(packed, true).find("\r\nContent-Encoding: gzip\r\n"), std::string::npos);
  EXPECT_LT(packed.body->size(), 200u);
  EXPECT_EQ(get(site, "/api/node", now, "", "br, gzip").body, packed.body);
  EXPECT_FALSE(get(site, "/api/node", now, "", "gzip;q=0").gzipped);
  EXPECT_EQ(get(site, "/api/node", now).body->size(), kLong.size() + 14);
  EXPECT_FALSE(get(site, "/metrics", now, "", "gzip").gzipped);  // too short to benefit
  // An unchanged page keeps its compressed form.
  PagesMessage unchanged{.healthy = true, .ready = true, .valid_for = 10s, .texts = {}};
  site.publish_message(unchanged, now + 1s);
  EXPECT_EQ(get(site, "/api/node", now + 1s, "", "gzip").body, packed.body);
}

TEST(Site, StaleOrMissingPagesAreUnavailable) {
  Router site;
  const Time start{};
  const std::string_view kPaths[] = {"/healthz", "/readyz",      "/metrics",    "/api/node", "/api/now",
                                     "/api/use", "/api/history", "/api/trends", "/api/usage"};
  for (const auto path : kPaths) {
    EXPECT_EQ(get(site, path, start).status, 503);
    EXPECT_EQ(*get(site, path, start).body, "the agent has not published anything yet\n");
  }
  site.publish_message(frame(true, true), start);
  for (const auto path : kPaths) {
    EXPECT_EQ(get(site, path, start + 10s).status, 200);
    EXPECT_EQ(get(site, path, start + 10s + 1ns).status, 503);
    EXPECT_EQ(*get(site, path, start + 12300ms).body, "no data from the agent for 12.3 s\n");
  }
  EXPECT_EQ(get(site, "/", start + 1h).status, 200);
  site.publish_message(frame(true, true), start + 1h);
  EXPECT_EQ(get(site, "/healthz", start + 1h).status, 200);
}

TEST(Site, HistoryHasEachSampleOnce) {
  Router site;
  Pages published = pages(true, true);
  site.publish_message(make_pages_message(published, 10s), Time{});
  PagesMessage same{.healthy = true, .ready = true, .valid_for = 10s, .texts = {}};
  site.publish_message(same, Time{} + 1s);
  published.now = "{\"at\":2}\n";
  site.publish_message(make_pages_message(published, 10s), Time{} + 2s);
  EXPECT_EQ(*get(site, "/api/history", Time{} + 2s).body, "{\"samples\":[{\"at\":1}\n,{\"at\":2}\n]}\n");
  EXPECT_EQ(get(site, "/api/history", Time{} + 2s).body, get(site, "/api/history", Time{} + 3s).body);
}

TEST(Site, SubscribersGetChanges) {
  Router site;
  Pages published = pages(true, true);
  published.node = "{\"a\":1}";
  site.publish_message(make_pages_message(published, 10s), Time{});
  const auto first = get(site, "/api/events", Time{});
  EXPECT_TRUE(first.is_event_stream);
  EXPECT_EQ(first.content_type, "text/event-stream");
  EXPECT_EQ(*first.body,
            "retry: 2000\n\nevent: node\nid: 3\ndata: {\"a\":1}\n\nevent: now\nid: 3\ndata: {\"at\":1}\n\n"
            "event: use\nid: 3\ndata: {\"at\":1,\"devices\":{}}\n\n");
  EXPECT_EQ(http::response_head(first, false).find("Content-Length"), std::string::npos);

  std::vector<std::string> heard;
  unsigned counted = 0;
  site.subscribers().on_count_changed = [&] { ++counted; };
  auto watching =
      site.subscribers().subscribe([&](const http::SharedText& text) { heard.push_back(*text); }, true, 1);
  EXPECT_TRUE(watching);
  EXPECT_FALSE(site.subscribers().subscribe([](const http::SharedText&) {}, true, 1));
  PagesMessage change{.healthy = true, .ready = true, .valid_for = 10s, .texts = {}};
  site.publish_message(change, Time{} + 1s);
  EXPECT_TRUE(heard.empty());
  change[PageText::kNow] = "{\"at\":2}\n";
  change[PageText::kUse] = "{\"at\":2}";
  site.publish_message(change, Time{} + 2s);
  change[PageText::kNow].reset();
  change[PageText::kUse].reset();
  change[PageText::kNode] = "{\"a\":2}";
  site.publish_message(change, Time{} + 3s);
  EXPECT_EQ(heard, (std::vector<std::string>{"event: now\nid: 4\ndata: {\"at\":2}\n\n"
                                             "event: use\nid: 5\ndata: {\"at\":2}\n\n",
                                             "event: node\nid: 6\ndata: {\"a\":2}\n\n"}));
  watching.reset();
  site.subscribers().publish_event(Router::heartbeat_event(), Router::heartbeat_event());
  EXPECT_EQ(heard.size(), 2u);
  EXPECT_EQ(counted, 2u);
}

// Documents without names of processes, and the events of each change.
TEST(Site, ServesOthersTheirOwnDocuments) {
  Router site;
  const Time now{};
  site.publish_message(frame(true, true), now);
  const auto served = [&](std::string_view target) {
    return *site.route_request({.method = "GET", .target = target}, now).body;
  };
  EXPECT_EQ(served("/api/node"), "{\"gpus\":[\"public\"]}\n");
  EXPECT_EQ(served("/api/use"), "{\"at\":1,\"devices\":\"public\"}\n");
  EXPECT_EQ(served("/api/now"), *get(site, "/api/now", now).body);
  EXPECT_EQ(served("/api/events"),
            "retry: 2000\n\nevent: node\nid: 3\ndata: {\"gpus\":[\"public\"]}\n\nevent: now\nid: 3\n"
            "data: {\"at\":1}\n\nevent: use\nid: 3\ndata: {\"at\":1,\"devices\":\"public\"}\n\n");
  std::string heard, public_heard;
  auto known = site.subscribers().subscribe([&](const http::SharedText& text) { heard += *text; }, true, 2);
  auto stranger =
      site.subscribers().subscribe([&](const http::SharedText& text) { public_heard += *text; }, false, 2);
  PagesMessage change{.healthy = true, .ready = true, .valid_for = 10s, .texts = {}};
  change[PageText::kUse] = "{\"name\":1}";
  change[PageText::kPublicUse] = "{}";
  site.publish_message(change, now);
  EXPECT_EQ(heard, "event: use\nid: 4\ndata: {\"name\":1}\n\n");
  EXPECT_EQ(public_heard, "event: use\nid: 4\ndata: {}\n\n");
  // A public document that does not come is not replaced by the other.
  Router incomplete;
  change[PageText::kPublicUse].reset();
  incomplete.publish_message(change, now);
  EXPECT_EQ(incomplete.route_request({.method = "GET", .target = "/api/use"}, now).status, 503);
}

TEST(Site, UsageIsNotInTheHistory) {
  Router site;
  site.publish_message(frame(true, true), Time{});
  EXPECT_EQ(*get(site, "/api/use", Time{}).body, "{\"at\":1,\"devices\":{}}\n");
  EXPECT_EQ(*get(site, "/api/history", Time{}).body, "{\"samples\":[{\"at\":1}\n]}\n");
}

TEST(Site, TrendsAndUsageAreNoEvents) {
  Router site;
  Pages none = pages(true, true);
  none.trends.clear();
  none.usage.clear();
  site.publish_message(make_pages_message(none, 10s), Time{});
  EXPECT_EQ(*get(site, "/api/trends", Time{}).body, "{\"at\":0,\"rings\":[]}");
  EXPECT_EQ(*get(site, "/api/usage", Time{}).body, "{\"since\":0,\"pods\":[],\"namespaces\":[]}");
  site.publish_message(frame(true, true), Time{});
  EXPECT_EQ(*get(site, "/api/trends", Time{}).body, "{\"at\":1,\"rings\":[]}\n");
  EXPECT_EQ(*get(site, "/api/usage", Time{}).body, "{\"since\":1,\"pods\":[],\"namespaces\":[]}\n");
  std::string heard;
  auto watching =
      site.subscribers().subscribe([&](const http::SharedText& text) { heard += *text; }, true, 1);
  PagesMessage change{.healthy = true, .ready = true, .valid_for = 10s, .texts = {}};
  change[PageText::kTrends] = "{\"at\":2,\"rings\":[]}";
  change[PageText::kUsage] = "{\"since\":2}";
  site.publish_message(change, Time{});
  EXPECT_EQ(*get(site, "/api/trends", Time{}).body, "{\"at\":2,\"rings\":[]}");
  EXPECT_EQ(*get(site, "/api/usage", Time{}).body, "{\"since\":2}");
  EXPECT_EQ(heard, "");
}

// What the node page links from a fault: a section per class and a row per XID.
TEST(Site, HasTheRunbookOfTheDocs) {
  const Router site;
  const std::string runbook = *get(site, "/runbook.md", Time{}).body;
  EXPECT_TRUE(runbook.starts_with("## Runbook\n"));
  EXPECT_NE(runbook.find("\n### xid-reboot\n"), std::string::npos);
  EXPECT_EQ(runbook.find("\n## "), std::string::npos) << "it has another section of the page";
  EXPECT_NE(get(site, "/xids.md", Time{}).body->find("\n| 79 | GPU_HAS_FALLEN_OFF_THE_BUS |"),
            std::string::npos);
}

TEST(Site, SubscriberMayLeaveDuringAnEvent) {
  http::Subscribers watchers;
  std::vector<Subscription> all(3);
  int told = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = watchers.subscribe(
        [&](const http::SharedText&) {
          ++told;
          for (auto& one : all) one.reset();
        },
        true, 10);
  }
  watchers.publish_event(Router::heartbeat_event(), Router::heartbeat_event());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(watchers.subscriber_count(), 0u);
}

TEST(Site, PageIsServedWithARestrictiveContentSecurityPolicy) {
  const Router site;
  const std::vector<std::pair<const char*, const char*>> parts = {
      {"/", "text/html; charset=utf-8"},
      {"/page.css", "text/css; charset=utf-8"},
      {"/page.js", "text/javascript; charset=utf-8"},
      {"/chinese.json", "application/json"},
      {"/icon.svg", "image/svg+xml"},
      {"/runbook.md", "text/markdown; charset=utf-8"},
      {"/xids.md", "text/markdown; charset=utf-8"}};
  for (const auto& [path, type] : parts) {
    const auto answer = get(site, path, Time{}, "", "gzip");
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.content_type, type);
    const std::string head = http::response_head(answer, true);
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

TEST(Site, ConfiguredHeadersReplaceTheDefaults) {
  const std::string head =
      http::response_head({.body = Router::heartbeat_event()}, true,
                          {{"x-frame-options", "SAMEORIGIN"}, {"Strict-Transport-Security", "max-age=1"}});
  EXPECT_EQ(head.find("DENY"), std::string::npos);
  EXPECT_NE(head.find("\r\nx-frame-options: SAMEORIGIN\r\nStrict-Transport-Security: max-age=1\r\n"),
            std::string::npos);
}

TEST(Site, OtherPathsAndMethods) {
  Router site;
  site.publish_message(frame(true, true), Time{});
  for (const char* path : {"/healthz/", "/metrics2", "", "*", "/../etc/passwd", "http://host/healthz", "/api",
                           "/api/", "/page.html", "/api/node/"}) {
    EXPECT_EQ(get(site, path, Time{}).status, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", "X"}) {
    for (const char* path : {"/healthz", "/", "/api/node", "/api/events"}) {
      EXPECT_EQ(site.route_request({.method = method, .target = path}, Time{}).status, 405) << method;
    }
  }
  EXPECT_NE(http::response_head(site.route_request({.method = "POST", .target = "/"}, Time{}), true)
                .find("\r\nAllow: GET, HEAD\r\n"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::web
