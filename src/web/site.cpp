#include "web/site.h"

namespace gpulet::web {
namespace {

constexpr std::string_view kIndex =
    "gpulet\n"
    "\n"
    "/healthz  200 while the agent works, else 503 and what is wrong\n"
    "/readyz   200 while the kubelet is served, else 503 and what is wrong\n"
    "/metrics  Prometheus text format\n";

Answer text(int status, std::string body) {
  if (body.empty() || body.back() != '\n') body += '\n';
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

std::string_view phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    default: return "Service Unavailable";
  }
}

}  // namespace

void Site::publish(Frame frame, Time now) {
  published_ = true;
  healthy_ = frame.pages.healthy;
  ready_ = frame.pages.ready;
  health_text_ = std::move(frame.pages.health_text);
  ready_text_ = std::move(frame.pages.ready_text);
  metrics_ = std::make_shared<const std::string>(std::move(frame.pages.metrics));
  when_ = now;
  fresh_ = frame.fresh;
}

std::string Site::staleness(Time now) const {
  if (!published_) return "the agent has not said anything yet";
  const Duration age = now - when_;
  if (age <= fresh_) return {};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return "no news from the agent for " + std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

Answer Site::answer(std::string_view method, std::string_view target, Time now) const {
  if (method != "GET" && method != "HEAD") return text(405, "only GET and HEAD");
  const std::string_view path = target.substr(0, target.find('?'));
  if (path == "/") return text(200, std::string(kIndex));
  if (path != "/healthz" && path != "/readyz" && path != "/metrics") {
    return text(404, "no such page; / lists what there is");
  }
  if (auto stale = staleness(now); !stale.empty()) return text(503, std::move(stale));
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_};
  }
  const bool good = path == "/healthz" ? healthy_ : ready_;
  const std::string& what = path == "/healthz" ? health_text_ : ready_text_;
  if (good) return text(200, what.empty() ? "ok" : what);
  return text(503, what.empty() ? (path == "/healthz" ? "not healthy" : "not ready") : what);
}

std::string head_of(const Answer& answer, bool keep_alive) {
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " ";
  head.append(phrase(answer.status)).append("\r\nContent-Type: ").append(answer.content_type);
  head.append("\r\nContent-Length: ").append(std::to_string(answer.body->size()));
  head.append("\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff");
  if (answer.status == 405) head.append("\r\nAllow: GET, HEAD");
  head.append(keep_alive ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n");
  return head;
}

}  // namespace gpulet::web
