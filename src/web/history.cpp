#include "web/history.h"

namespace gpulet::web {

void History::drop(std::size_t index) {
  bytes_ -= samples_[index].text->size();
  samples_.erase(samples_.begin() + static_cast<std::ptrdiff_t>(index));
}

void History::add(SharedText now_document, Time now) {
  if (now_document->size() > kMaxHistoryBytes / 2) return;
  bytes_ += now_document->size();
  samples_.push_back({now, std::move(now_document)});
  while (now - samples_.front().at > kHistory) {
    drop(0);
    if (settled_ > 0) --settled_;
  }
  // Those that have grown old enough, each against the last of the thinned ones.
  while (settled_ + 1 < samples_.size() && now - samples_[settled_].at > kHistoryWhole) {
    if (settled_ > 0 && samples_[settled_].at - samples_[settled_ - 1].at < kThinned) {
      drop(settled_);
    } else {
      ++settled_;
    }
  }
  if (bytes_ <= kMaxHistoryBytes) return;
  for (std::size_t i = 1; i + 1 < samples_.size(); ++i) drop(i);
  settled_ = 0;
}

std::string History::text() const {
  std::string text = "{\"samples\":[";
  text.reserve(bytes_ + samples_.size() + 16);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (i > 0) text += ',';
    text += *samples_[i].text;
  }
  text += "]}\n";
  return text;
}

}  // namespace gpulet::web
