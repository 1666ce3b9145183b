// Which answer a request gets, out of the pages that the agent published last and how old they are. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "web/frame.h"

namespace gpulet::web {

struct Answer {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  // shared: connections that read slowly do not copy a page
};

class Site {
 public:
  void publish(Frame frame, Time now);

  // `target` as the request has it; a query is ignored. 200 and 503 by the pages, 404 for other paths, 405
  // for methods other than GET and HEAD.
  Answer answer(std::string_view method, std::string_view target, Time now) const;

 private:
  // Why the pages cannot be believed; empty when they can.
  std::string staleness(Time now) const;

  bool published_ = false;
  bool healthy_ = false, ready_ = false;
  std::string health_text_, ready_text_;
  std::shared_ptr<const std::string> metrics_;
  Time when_{};
  Duration fresh_{};
};

// The head of an answer, to the empty line; `keep_alive` says whether the connection stays open after it.
std::string head_of(const Answer& answer, bool keep_alive);

}  // namespace gpulet::web
