// The history of the samples for the long ranges of the node page: an hour, six hours and a day, each as a
// ring of means that is coarser the longer it reaches back. The last 15 minutes in full are the listener
// child's (web/router.h); this history is the agent's, so that it outlives a child. Memory is fixed for each
// GPU: kTrendBytesPerGpu. Pure: time is an argument.
//
// trends_json, one document for all ranges:
//   at      when it was written (ms since 1970)
//   rings   [{step: seconds of a bucket, last: begin of the newest bucket (ms), gpus {uuid: {util (percent),
//           memory (MiB), power (W), temperature (°C): [mean of a bucket, or null where it is unknown]}}}],
//           the finest first. Lists are oldest first and end with the bucket `last`; a list is shorter than
//           the ring where nothing older is known, and empty where nothing is.
// Only complete buckets are in the document.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/types.h"
#include "metrics/fields.h"

namespace gpulet::agent {

// Buckets begin at whole multiples of the step since 1970, so that those of two agents on a node agree.
struct TrendRing {
  std::chrono::seconds step;
  std::size_t buckets;
};
inline constexpr std::array<TrendRing, 3> kTrendRings = {
    {{std::chrono::seconds(60), 60}, {std::chrono::minutes(3), 120}, {std::chrono::minutes(10), 144}}};
// GPUs beyond these have no history.
inline constexpr std::size_t kMaxTrendGpus = 64;
// The document of this number of full GPUs has at most 7 KiB for each.
inline constexpr std::size_t kTrendJsonBytesPerGpu = 7u << 10;

class SampleTrends {
 public:
  // Adds the values of the GPUs that could be read. A clock that was set back by more than a bucket begins a
  // new history. A GPU that was not in a sample for the longest range is forgotten. Returns whether a bucket
  // of the finest ring was completed, so that trends_json() differs.
  // Cost: some ten nanoseconds per GPU and ring.
  bool add_sample(const metrics::Sample& sample, WallTime at);

  // Cost: linear in buckets, below a millisecond for 8 GPUs.
  std::string trends_json(WallTime at) const;

 private:
  static constexpr std::size_t kSeries = 4;
  static constexpr std::size_t kPoints =
      kTrendRings[0].buckets + kTrendRings[1].buckets + kTrendRings[2].buckets;
  static constexpr std::uint16_t kUnknown = 0xFFFF;
  using Point = std::array<std::uint16_t, kSeries>;  // in the units of kTrendSeries
  // Of the bucket that is not complete.
  struct Sum {
    std::array<float, kSeries> total{};
    std::array<std::uint16_t, kSeries> count{};
  };
  struct Gpu {
    Gpu();
    std::array<Point, kPoints> points;  // ring after ring; a bucket is at its number modulo the ring's size
    std::array<Sum, kTrendRings.size()> sums{};
    WallTime seen{};
  };

  void complete_buckets(std::size_t ring, std::int64_t number);
  void append_gpu(std::string& text, const Gpu& gpu, std::size_t ring) const;

  std::map<DeviceUuid, Gpu> gpus_;
  std::array<std::optional<std::int64_t>, kTrendRings.size()> current_;  // bucket number since 1970

 public:
  static constexpr std::size_t kTrendBytesPerGpu = sizeof(Gpu);
  static_assert(kTrendBytesPerGpu < 3u << 10);
};

}  // namespace gpulet::agent
