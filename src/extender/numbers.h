// What the extender counts of itself, and how it is written for Prometheus.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/loop.h"
#include "scheduler/filter.h"

namespace gpulet::extender {

// Upper bounds of the histogram, in microseconds.
inline constexpr std::array<std::uint64_t, 12> kBuckets = {50,    100,    250,    500,    1'000,   2'500,
                                                           5'000, 10'000, 25'000, 50'000, 100'000, 250'000};

class Histogram {
 public:
  void add(Duration took);
  // Its samples with `labels` ("verb=\"filter\""), by the family's name.
  std::string text(const std::string& family, const std::string& labels) const;

 private:
  std::array<std::uint64_t, kBuckets.size()> counts_{};  // each by its own bucket
  std::uint64_t count_ = 0;
  std::chrono::duration<double> sum_{};
};

struct Numbers {
  Histogram filter, prioritize;
  std::uint64_t passed = 0, unpublished = 0, left_out = 0;  // nodes
  std::map<scheduler::Refusal, std::uint64_t> refused;  // nodes
  std::uint64_t nowhere = 0;                            // questions of which no node passed
  std::uint64_t bad_requests = 0, malformed = 0, events = 0;
};

struct Sizes {
  std::size_t nodes = 0, pods = 0, pools = 0, kinds = 0;
  std::uint64_t lists = 0, objects_refused = 0;
  bool ready = false;
};

// Prometheus' text format 0.0.4.
std::string page_of(const Numbers& numbers, const Sizes& sizes);

}  // namespace gpulet::extender
