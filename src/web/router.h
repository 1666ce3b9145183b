// Routes the listener's requests: the node page, and the pages that the agent published last. Pure: the
// caller passes the time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "http/message.h"
#include "web/ipc_messages.h"

namespace gpulet::web {

inline constexpr Duration kHistoryLength = std::chrono::minutes(15);
// Younger documents are all kept, older ones at most one per kThinnedInterval.
inline constexpr Duration kFullHistoryLength = std::chrono::minutes(2);
inline constexpr Duration kThinnedInterval = std::chrono::seconds(5);
// Requests for /metrics that wait for the agent; further ones get 503.
inline constexpr std::size_t kMaxWaitingRequests = 512;
// Of all documents; beyond, every other one is dropped.
inline constexpr std::size_t kMaxHistoryBytes = 1u << 20;

// The `now` documents of the last 15 minutes, thinned with age, for the charts of the node page. They are
// JSON texts that are joined, never parsed.
class SampleHistory {
 public:
  void add_document(http::SharedText now_document, Time now);
  // {"samples":[…]}, oldest first.
  std::string history_json() const;
  std::size_t size() const { return samples_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Sample {
    Time at;
    http::SharedText text;
  };
  void drop_sample(std::size_t index);

  std::deque<Sample> samples_;  // by time
  std::size_t thinned_ = 0;     // number of the oldest that are thinned already
  std::size_t bytes_ = 0;
};

//
//   /            the node page, with its files (page_files.h)
//   /healthz /readyz   200, or 503 with the reasons
//   /metrics     Prometheus text 0.0.4 or OpenMetrics 1.0, by Accept; the agent writes it when asked
//   /api/node    JSON: what changes rarely         /api/now      JSON: the values of the last sample
//   /api/use     JSON: usage by owner in it; names of processes only for authenticated clients, as in `node`
//   /api/history JSON: {"samples":[now, …]}, oldest first, of the last 15 minutes
//   /api/trends  JSON: means of the samples of the last hour, six hours and day
//   /api/usage   JSON: what Pods and namespaces have used (agent/observe/usage_json.h)
//   /api/events  server-sent events `node`, `now` and `use`, each with such a document; all of them on
//   connecting
class Router final : public http::RequestHandler {
 public:
  // Stores the texts of the message, and publishes what changed to the subscribers.
  void publish_message(PagesMessage frame, Time now);

  // Ignores the query of the target. 200 or 503 by the pages, 404 for other paths, 405 for methods other
  // than GET and HEAD.
  http::Response route_request(const http::Request& request, Time now) const;

  // As route_request(), but a request for /metrics waits while the pages have none.
  void handle_request(const http::Request& request, Time now, const http::ResponseCallback& reply) override;
  // Called when a request begins to wait for metrics; set before the first request.
  std::function<void()> on_metrics_wanted;
  // Answers those that wait with 503, as the agent does not write the metrics.
  void give_up_on_metrics();
  bool waits_for_metrics() const { return !waiting_.empty(); }
  http::Subscribers* event_subscribers() override { return &subscribers_; }

  http::Subscribers& subscribers() const { return subscribers_; }
  // An empty event sent at an interval, so that proxies do not close a silent connection.
  static http::SharedText heartbeat_event();

 private:
  // With and without names of processes.
  struct Documents {
    http::Document all, open;
    const http::Document& for_client(bool is_authenticated) const { return is_authenticated ? all : open; }
  };

  http::Response document_response(std::string_view path, const http::Request& request) const;
  http::Response metrics_response(const http::Request& request) const;
  http::Response events_response(bool is_authenticated) const;
  // A request for /metrics that waits, with what its response depends on.
  struct WaitingRequest {
    std::string method, accept, accept_encoding;
    http::ResponseCallback reply;
  };

  void answer_waiting(Time now);
  // Why the pages cannot be believed; empty when they can.
  std::string staleness_reason(Time now) const;

  bool published_ = false;
  bool healthy_ = false, ready_ = false, has_metrics_ = false;
  std::vector<WaitingRequest> waiting_;
  std::string health_text_, ready_text_;
  http::Document metrics_, open_metrics_, now_;
  http::Document trends_{"{\"at\":0,\"rings\":[]}"};  // before the first: none
  http::Document usage_{"{\"since\":0,\"pods\":[],\"namespaces\":[]}"};
  Documents node_, use_;
  SampleHistory history_;
  mutable std::shared_ptr<const http::Document> history_document_;  // null until asked for after a change
  std::uint64_t event_ = 0;
  Time when_{};
  Duration fresh_{};
  mutable http::Subscribers subscribers_;
};

}  // namespace gpulet::web
