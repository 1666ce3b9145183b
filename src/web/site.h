// Which answer a request gets, out of the pages that the agent published last and how old they are; and what
// those who watch are told. Pure: time is handed in.
//
//   /            the node page, with /page.css, /page.js and /icon.svg
//   /healthz /readyz   200 or 503, with what is wrong
//   /metrics     Prometheus text 0.0.4 or OpenMetrics 1.0, by Accept
//   /api/node    JSON: what changes rarely         /api/now      JSON: the numbers of the last sample
//   /api/history JSON: {"samples":[now, …]}, oldest first, of the last 15 minutes
//   /api/events  server-sent events `node` and `now`, each with such a document; both at once after
//   connecting
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "web/document.h"
#include "web/frame.h"
#include "web/history.h"
#include "web/watchers.h"

namespace gpulet::web {

// A request as far as an answer depends on it; fields that are not there are empty.
struct Request {
  std::string_view method, target;
  std::string_view accept = {}, accept_encoding = {};
};

struct Answer {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  SharedText body;       // shared: connections that read slowly do not copy a page
  bool gzipped = false;  // the body is
  bool varies = false;   // by the request's Accept fields
  bool events = false;   // the body is only the first of what is told from now on
};

class Site {
 public:
  // Remembers what the frame has, and tells the watchers.
  void publish(Frame frame, Time now);

  // `target` as the request has it; a query is ignored. 200 and 503 by the pages, 404 for other paths, 405
  // for methods other than GET and HEAD.
  Answer answer(const Request& request, Time now) const;

  Watchers& watchers() const { return watchers_; }
  // Keeps proxies from ending what is silent: told now and then, and means nothing.
  static SharedText heartbeat();

 private:
  Answer document_answer(std::string_view path, const Request& request) const;
  Answer metrics_answer(const Request& request) const;
  Answer events_answer() const;
  // Why the pages cannot be believed; empty when they can.
  std::string staleness(Time now) const;

  bool published_ = false;
  bool healthy_ = false, ready_ = false;
  std::string health_text_, ready_text_;
  Document metrics_, open_metrics_, node_, now_;
  History history_;
  mutable std::shared_ptr<const Document> history_document_;  // null until asked for after a change
  std::uint64_t event_ = 0;
  Time when_{};
  Duration fresh_{};
  mutable Watchers watchers_;
};

using Headers = std::vector<std::pair<std::string, std::string>>;
// The head of an answer, to the empty line; `keep_alive` says whether the connection stays open after it.
// `headers` come in place of ours of the same name.
std::string head_of(const Answer& answer, bool keep_alive, const Headers& headers = {});

}  // namespace gpulet::web
