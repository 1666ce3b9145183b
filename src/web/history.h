// The `now` documents of the last 15 minutes, thinned with age, for the lines of the node page. Pure: time is
// handed in. It reads none of them: they are JSON texts to be joined.
#pragma once

#include <deque>

#include "base/loop.h"
#include "web/document.h"

namespace gpulet::web {

inline constexpr Duration kHistory = std::chrono::minutes(15);
// Each document is kept while it is younger than this, then one in kThinned.
inline constexpr Duration kHistoryWhole = std::chrono::minutes(2);
inline constexpr Duration kThinned = std::chrono::seconds(5);
// All of them; where they are more, every other one goes.
inline constexpr std::size_t kMaxHistoryBytes = 1u << 20;

class History {
 public:
  void add(SharedText now_document, Time now);
  // {"samples":[…]}, oldest first.
  std::string text() const;
  std::size_t size() const { return samples_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Sample {
    Time at;
    SharedText text;
  };
  void drop(std::size_t index);

  std::deque<Sample> samples_;  // by time
  std::size_t settled_ = 0;     // so many of the oldest are thinned already
  std::size_t bytes_ = 0;
};

}  // namespace gpulet::web
