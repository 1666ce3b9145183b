#include "web/router.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "http/message.h"
#include "web/page_files.h"

namespace gpulet::web {

void SampleHistory::drop_sample(std::size_t index) {
  bytes_ -= samples_[index].text->size();
  samples_.erase(samples_.begin() + static_cast<std::ptrdiff_t>(index));
}

void SampleHistory::add_document(http::SharedText now_document, Time now) {
  if (now_document->size() > kMaxHistoryBytes / 2) return;
  bytes_ += now_document->size();
  samples_.push_back({now, std::move(now_document)});
  while (now - samples_.front().at > kHistoryLength) {
    drop_sample(0);
    if (thinned_ > 0) --thinned_;
  }
  // Thins samples that are old enough, each compared with the last kept one.
  while (thinned_ + 1 < samples_.size() && now - samples_[thinned_].at > kFullHistoryLength) {
    if (thinned_ > 0 && samples_[thinned_].at - samples_[thinned_ - 1].at < kThinnedInterval) {
      drop_sample(thinned_);
    } else {
      ++thinned_;
    }
  }
  if (bytes_ <= kMaxHistoryBytes) return;
  for (std::size_t i = 1; i + 1 < samples_.size(); ++i) drop_sample(i);
  thinned_ = 0;
}

std::string SampleHistory::history_json() const {
  std::string text = "{\"samples\":[";
  text.reserve(bytes_ + samples_.size() + 16);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (i > 0) text += ',';
    text += *samples_[i].text;
  }
  text += "]}\n";
  return text;
}

namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kMetricsPath = "/metrics";
constexpr std::string_view kNoMetrics = "the agent has not written its metrics in time";
// A browser that lost the connection reconnects after this time.
constexpr std::string_view kRetry = "retry: 2000\n\n";

std::string_view path_of(const http::Request& request) {
  return request.target.substr(0, request.target.find('?'));
}

http::Response text_response(int status, std::string body) {
  if (body.empty() || body.back() != '\n') body += '\n';
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

// A JSON document has at most one line break, at its end; each line becomes a data field.
std::string make_event(std::string_view name, std::uint64_t id, std::string_view document) {
  std::string event = "event: " + std::string(name) + "\nid: " + std::to_string(id) + "\n";
  for (const auto& line : text::split(text::trim(document), '\n')) event += "data: " + line + "\n";
  return event + "\n";
}

}  // namespace

void Router::publish_message(PagesMessage frame, Time now) {
  published_ = true;
  healthy_ = frame.healthy;
  ready_ = frame.ready;
  has_metrics_ = frame.has_metrics;
  when_ = now;
  fresh_ = frame.valid_for;
  if (auto& text = frame[PageText::kHealth]) health_text_ = std::move(*text);
  if (auto& text = frame[PageText::kReady]) ready_text_ = std::move(*text);
  if (auto& text = frame[PageText::kMetrics]) metrics_ = http::Document(std::move(*text));
  if (auto& text = frame[PageText::kOpenMetrics]) open_metrics_ = http::Document(std::move(*text));
  if (auto& text = frame[PageText::kTrends]; text && !text->empty())
    trends_ = http::Document(std::move(*text));
  if (auto& text = frame[PageText::kUsage]; text && !text->empty()) usage_ = http::Document(std::move(*text));
  std::string events, public_events;
  const auto set_document = [&](const char* name, std::optional<std::string>& text,
                                std::optional<std::string>& public_text, Documents& documents) {
    if (public_text) documents.open = http::Document(std::move(*public_text));
    if (!text) return;
    documents.all = http::Document(std::move(*text));
    if (documents.all.plain_text()->empty()) return;
    ++event_;
    events += make_event(name, event_, *documents.all.plain_text());
    public_events += make_event(name, event_, *documents.open.plain_text());
  };
  set_document("node", frame[PageText::kNode], frame[PageText::kPublicNode], node_);
  if (auto& text = frame[PageText::kNow]) {
    now_ = http::Document(std::move(*text));
    if (!now_.plain_text()->empty()) {
      history_.add_document(now_.plain_text(), now);
      history_document_.reset();
      events += make_event("now", ++event_, *now_.plain_text());
      public_events += make_event("now", event_, *now_.plain_text());
    }
  }
  set_document("use", frame[PageText::kUse], frame[PageText::kPublicUse], use_);
  if (!events.empty() && subscribers_.subscriber_count() > 0) {
    subscribers_.publish_event(std::make_shared<const std::string>(std::move(events)),
                               std::make_shared<const std::string>(std::move(public_events)));
  }
  if (has_metrics_) answer_waiting(now);
}

std::string Router::staleness_reason(Time now) const {
  if (!published_) return "the agent has not published anything yet";
  const Duration age = now - when_;
  if (age <= fresh_) return {};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return "no data from the agent for " + std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) +
         " s";
}

http::SharedText Router::heartbeat_event() {
  static const auto text = std::make_shared<const std::string>(":\n\n");
  return text;
}

http::Response Router::metrics_response(const http::Request& request) const {
  if (!open_metrics_.plain_text()->empty() && http::prefers_open_metrics(request.accept)) {
    return document_body_response(open_metrics_, "application/openmetrics-text; version=1.0.0; charset=utf-8",
                                  request);
  }
  return document_body_response(metrics_, "text/plain; version=0.0.4; charset=utf-8", request);
}

http::Response Router::events_response(bool is_authenticated) const {
  std::string first(kRetry);
  const auto add = [&](const char* name, const http::Document& document) {
    if (!document.plain_text()->empty()) first += make_event(name, event_, *document.plain_text());
  };
  add("node", node_.for_client(is_authenticated));
  add("now", now_);
  add("use", use_.for_client(is_authenticated));
  return {.content_type = "text/event-stream",
          .body = std::make_shared<const std::string>(std::move(first)),
          .is_event_stream = true};
}

http::Response Router::document_response(std::string_view path, const http::Request& request) const {
  if (path == "/api/history") {
    if (!history_document_)
      history_document_ = std::make_shared<const http::Document>(history_.history_json());
    return document_body_response(*history_document_, kJson, request);
  }
  if (path == "/api/events") return events_response(request.is_authenticated);
  const http::Document& document =
      path == "/api/now"      ? now_
      : path == "/api/trends" ? trends_
      : path == "/api/usage"  ? usage_
                              : (path == "/api/node" ? node_ : use_).for_client(request.is_authenticated);
  if (document.plain_text()->empty()) return text_response(503, "the agent has not published it yet");
  return document_body_response(document, kJson, request);
}

void Router::handle_request(const http::Request& request, Time now, const http::ResponseCallback& reply) {
  const bool must_wait = (request.method == "GET" || request.method == "HEAD") &&
                         path_of(request) == kMetricsPath && !has_metrics_ && staleness_reason(now).empty();
  if (!must_wait) return reply(route_request(request, now));
  if (waiting_.size() == kMaxWaitingRequests) return reply(text_response(503, std::string(kNoMetrics)));
  waiting_.push_back({.method = std::string(request.method),
                      .accept = std::string(request.accept),
                      .accept_encoding = std::string(request.accept_encoding),
                      .reply = reply});
  if (waiting_.size() == 1 && on_metrics_wanted) on_metrics_wanted();
}

void Router::answer_waiting(Time now) {
  for (const auto& waiting : std::exchange(waiting_, {})) {
    waiting.reply(route_request({.method = waiting.method,
                                 .target = kMetricsPath,
                                 .accept = waiting.accept,
                                 .accept_encoding = waiting.accept_encoding},
                                now));
  }
}

void Router::give_up_on_metrics() {
  for (const auto& waiting : std::exchange(waiting_, {}))
    waiting.reply(text_response(503, std::string(kNoMetrics)));
}

http::Response Router::route_request(const http::Request& request, Time now) const {
  if (request.method != "GET" && request.method != "HEAD") return text_response(405, "only GET and HEAD");
  const std::string_view path = path_of(request);
  if (auto file = node_page_file(path, request)) return std::move(*file);
  static constexpr std::string_view kApi[] = {"/api/node",   "/api/now",   "/api/use",   "/api/history",
                                              "/api/trends", "/api/usage", "/api/events"};
  const bool api = std::ranges::find(kApi, path) != std::end(kApi);
  // dcgm-exporter's: whether there is a process to ask, also while its driver hangs.
  if (path == "/health") return text_response(200, "OK");
  if (!api && path != "/healthz" && path != "/readyz" && path != kMetricsPath) {
    return text_response(404,
                         "no such page; there are / /health /healthz /readyz /metrics /api/node /api/now "
                         "/api/use /api/history /api/trends /api/usage /api/events");
  }
  // Subscribers stay connected and see from the sample times that no new ones arrive.
  if (auto stale = staleness_reason(now); !stale.empty() && path != "/api/events")
    return text_response(503, std::move(stale));
  if (api) return document_response(path, request);
  if (path == kMetricsPath) return metrics_response(request);
  const bool good = path == "/healthz" ? healthy_ : ready_;
  const std::string& what = path == "/healthz" ? health_text_ : ready_text_;
  if (good) return text_response(200, what.empty() ? "ok" : what);
  return text_response(503, what.empty() ? (path == "/healthz" ? "not healthy" : "not ready") : what);
}

}  // namespace gpulet::web
