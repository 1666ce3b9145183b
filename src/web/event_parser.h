// Server-sent events out of the bytes of a body, as they come in whatever pieces. Pure.
// Source: the HTML standard, section 9.2.6 "Interpreting an event stream".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::web {

// No event is larger: the documents are a few MiB at most (listener.h).
inline constexpr std::size_t kMaxEventBytes = 16u << 20;

struct Event {
  std::string name;  // "message" where the server named none
  std::string data;  // lines joined by '\n'
  friend bool operator==(const Event&, const Event&) = default;
};

class EventParser {
 public:
  // The events that end in `bytes`, in order. Comments, ids and retry times mean nothing here; an event without
  // data is none. Errors: kInvalidArgument for one that is larger than kMaxEventBytes; the stream is then useless.
  Result<std::vector<Event>> take(std::string_view bytes);

 private:
  void end_line(std::vector<Event>& events);

  std::string line_, name_, data_;
  bool has_data_ = false;
  bool after_return_ = false;  // the last byte was a CR: an LF belongs to it
  bool first_line_ = true;
};

}  // namespace gpulet::web
