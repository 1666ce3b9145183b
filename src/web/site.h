// Which answer a request gets, out of the pages that the agent published last and how old they are; and what
// those who watch are told. Pure: time is handed in.
//
//   /            the node page, with /page.css, /page.js and /icon.svg
//   /healthz /readyz   200 or 503, with what is wrong
//   /metrics     Prometheus text 0.0.4 or OpenMetrics 1.0, by Accept
//   /api/node    JSON: what changes rarely         /api/now      JSON: the numbers of the last sample
//   /api/use     JSON: who used what in it
//   /api/history JSON: {"samples":[now, …]}, oldest first, of the last 15 minutes
//   /api/events  server-sent events `node`, `now` and `use`, each with such a document; all at once after
//   connecting
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "web/document.h"
#include "web/frame.h"
#include "web/history.h"
#include "web/service.h"
#include "web/watchers.h"

namespace gpulet::web {

class Site final : public Service {
 public:
  // Remembers what the frame has, and tells the watchers.
  void publish(Frame frame, Time now);

  // `target` as the request has it; a query is ignored. 200 and 503 by the pages, 404 for other paths, 405
  // for methods other than GET and HEAD.
  Answer answer(const Request& request, Time now) const;

  void serve(const Request& request, Time now, const Reply& reply) override { reply(answer(request, now)); }
  Watchers* live() override { return &watchers_; }

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
  Document metrics_, open_metrics_, node_, now_, use_;
  History history_;
  mutable std::shared_ptr<const Document> history_document_;  // null until asked for after a change
  std::uint64_t event_ = 0;
  Time when_{};
  Duration fresh_{};
  mutable Watchers watchers_;
};

}  // namespace gpulet::web
