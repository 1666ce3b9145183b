#include "web/site.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "web/accept.h"
#include "web/page.h"

namespace gpulet::web {
namespace {

constexpr std::string_view kJson = "application/json";
// A browser that lost the connection comes again after so long.
constexpr std::string_view kRetry = "retry: 2000\n\n";

Answer text(int status, std::string body) {
  if (body.empty() || body.back() != '\n') body += '\n';
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

Answer answer_of(const Document& document, std::string_view content_type, const Request& request) {
  Answer answer{.content_type = content_type, .body = document.plain(), .varies = true};
  if (takes_gzip(request.accept_encoding) && document.gzipped()) {
    answer.body = document.gzipped();
    answer.gzipped = true;
  }
  return answer;
}

// A JSON document has no line breaks of its own but perhaps one at its end; each line of it is a data field.
std::string event_of(std::string_view name, std::uint64_t id, std::string_view document) {
  std::string event = "event: " + std::string(name) + "\nid: " + std::to_string(id) + "\n";
  for (const auto& line : text::split(text::trim(document), '\n')) event += "data: " + line + "\n";
  return event + "\n";
}

const Document* page_of(std::string_view path, std::string_view& content_type) {
  // Made at the first request, and compressed once in a child's life.
  static const std::array<Document, 4> documents = {
      Document(std::string(page::html())), Document(std::string(page::css())),
      Document(std::string(page::js())), Document(std::string(page::icon()))};
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPaths = {{
      {"/", "text/html; charset=utf-8"},
      {"/page.css", "text/css; charset=utf-8"},
      {"/page.js", "text/javascript; charset=utf-8"},
      {"/icon.svg", "image/svg+xml"},
  }};
  for (std::size_t i = 0; i < kPaths.size(); ++i) {
    if (path != kPaths[i].first) continue;
    content_type = kPaths[i].second;
    return &documents[i];
  }
  return nullptr;
}

}  // namespace

void Site::publish(Frame frame, Time now) {
  published_ = true;
  healthy_ = frame.healthy;
  ready_ = frame.ready;
  when_ = now;
  fresh_ = frame.fresh;
  if (auto& text = frame[Text::kHealth]) health_text_ = std::move(*text);
  if (auto& text = frame[Text::kReady]) ready_text_ = std::move(*text);
  if (auto& text = frame[Text::kMetrics]) metrics_ = Document(std::move(*text));
  if (auto& text = frame[Text::kOpenMetrics]) open_metrics_ = Document(std::move(*text));
  std::string news;
  if (auto& text = frame[Text::kNode]) {
    node_ = Document(std::move(*text));
    if (!node_.plain()->empty()) news += event_of("node", ++event_, *node_.plain());
  }
  if (auto& text = frame[Text::kNow]) {
    now_ = Document(std::move(*text));
    if (!now_.plain()->empty()) {
      history_.add(now_.plain(), now);
      history_document_.reset();
      news += event_of("now", ++event_, *now_.plain());
    }
  }
  if (auto& text = frame[Text::kUse]) {
    use_ = Document(std::move(*text));
    if (!use_.plain()->empty()) news += event_of("use", ++event_, *use_.plain());
  }
  if (!news.empty() && watchers_.count() > 0)
    watchers_.tell(std::make_shared<const std::string>(std::move(news)));
}

std::string Site::staleness(Time now) const {
  if (!published_) return "the agent has not said anything yet";
  const Duration age = now - when_;
  if (age <= fresh_) return {};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return "no news from the agent for " + std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) +
         " s";
}

SharedText Site::heartbeat() {
  static const auto text = std::make_shared<const std::string>(":\n\n");
  return text;
}

Answer Site::metrics_answer(const Request& request) const {
  if (!open_metrics_.plain()->empty() && prefers_open_metrics(request.accept)) {
    return answer_of(open_metrics_, "application/openmetrics-text; version=1.0.0; charset=utf-8", request);
  }
  return answer_of(metrics_, "text/plain; version=0.0.4; charset=utf-8", request);
}

Answer Site::events_answer() const {
  std::string first(kRetry);
  if (!node_.plain()->empty()) first += event_of("node", event_, *node_.plain());
  if (!now_.plain()->empty()) first += event_of("now", event_, *now_.plain());
  if (!use_.plain()->empty()) first += event_of("use", event_, *use_.plain());
  return {.content_type = "text/event-stream",
          .body = std::make_shared<const std::string>(std::move(first)),
          .events = true};
}

Answer Site::document_answer(std::string_view path, const Request& request) const {
  if (path == "/api/history") {
    if (!history_document_) history_document_ = std::make_shared<const Document>(history_.text());
    return answer_of(*history_document_, kJson, request);
  }
  if (path == "/api/events") return events_answer();
  const Document& document = path == "/api/node" ? node_ : path == "/api/now" ? now_ : use_;
  if (document.plain()->empty()) return text(503, "the agent has not said anything of it yet");
  return answer_of(document, kJson, request);
}

Answer Site::answer(const Request& request, Time now) const {
  if (request.method != "GET" && request.method != "HEAD") return text(405, "only GET and HEAD");
  const std::string_view path = request.target.substr(0, request.target.find('?'));
  std::string_view content_type;
  if (const Document* page = page_of(path, content_type)) return answer_of(*page, content_type, request);
  static constexpr std::string_view kApi[] = {"/api/node", "/api/now", "/api/use", "/api/history",
                                              "/api/events"};
  const bool api = std::ranges::find(kApi, path) != std::end(kApi);
  if (!api && path != "/healthz" && path != "/readyz" && path != "/metrics") {
    return text(
        404,
        "no such page; there are / /healthz /readyz /metrics /api/node /api/now /api/use /api/history "
        "/api/events");
  }
  // Those who watch stay, and see by the samples' times that none come.
  if (auto stale = staleness(now); !stale.empty() && path != "/api/events")
    return text(503, std::move(stale));
  if (api) return document_answer(path, request);
  if (path == "/metrics") return metrics_answer(request);
  const bool good = path == "/healthz" ? healthy_ : ready_;
  const std::string& what = path == "/healthz" ? health_text_ : ready_text_;
  if (good) return text(200, what.empty() ? "ok" : what);
  return text(503, what.empty() ? (path == "/healthz" ? "not healthy" : "not ready") : what);
}

}  // namespace gpulet::web
