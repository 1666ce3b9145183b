#include "web/event_parser.h"

#include <utility>

namespace gpulet::web {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

Result<std::vector<Event>> EventParser::take(std::string_view bytes) {
  std::vector<Event> events;
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const auto end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kMaxEventBytes) {
      return fail(Code::kInvalidArgument,
                  "an event of more than " + std::to_string(kMaxEventBytes >> 20) + " MiB");
    }
    if (end == std::string_view::npos) break;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(events);
  }
  return events;
}

void EventParser::end_line(std::vector<Event>& events) {
  std::string_view line = line_;
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark))
    line.remove_prefix(kByteOrderMark.size());
  if (line.empty()) {
    if (has_data_) {
      if (name_.empty()) name_ = "message";
      events.push_back({std::move(name_), std::move(data_)});
    }
    name_.clear();
    data_.clear();
    has_data_ = false;
  } else {
    const auto colon = line.find(':');
    const auto field = line.substr(0, colon);
    auto value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "event") name_ = value;
    if (field == "data") {
      if (std::exchange(has_data_, true)) data_ += '\n';
      data_ += value;
    }
  }
  line_.clear();
}

}  // namespace gpulet::web
