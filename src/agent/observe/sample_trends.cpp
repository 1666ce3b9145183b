#include "agent/observe/sample_trends.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gpulet::agent {
namespace {

using metrics::Field;

// A value of a point is the number divided by `unit`, so that it fits 16 bits: a terabyte of memory does.
struct TrendSeries {
  const char* key;
  Field field;
  unsigned unit;
};
constexpr std::array<TrendSeries, 4> kTrendSeries = {{{"util", Field::kGpuUtil, 1},
                                                      {"memory", Field::kFbUsed, 16},
                                                      {"power", Field::kPower, 1},
                                                      {"temperature", Field::kGpuTemp, 1}}};

constexpr std::size_t first_point(std::size_t ring) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < ring; ++i) first += kTrendRings[i].buckets;
  return first;
}

std::size_t point_of(std::size_t ring, std::int64_t number) {
  return first_point(ring) + static_cast<std::size_t>(number) % kTrendRings[ring].buckets;
}

std::int64_t bucket_number(WallTime at, std::chrono::seconds step) {
  return std::max<std::int64_t>(unix_milliseconds(at), 0) /
         std::chrono::duration_cast<std::chrono::milliseconds>(step).count();
}

constexpr std::chrono::seconds kLongestRange = kTrendRings.back().step * kTrendRings.back().buckets;

}  // namespace

SampleTrends::Gpu::Gpu() {
  Point unknown;
  unknown.fill(kUnknown);
  points.fill(unknown);
}

// Ends the current bucket of the ring; `number` is the bucket that begins.
void SampleTrends::complete_buckets(std::size_t ring, std::int64_t number) {
  const std::int64_t current = *current_[ring];
  const auto size = static_cast<std::int64_t>(kTrendRings[ring].buckets);
  for (auto& [uuid, gpu] : gpus_) {
    Sum& sum = gpu.sums[ring];
    Point& point = gpu.points[point_of(ring, current)];
    for (std::size_t i = 0; i < kSeries; ++i) {
      point[i] = kUnknown;
      if (sum.count[i] == 0) continue;
      const double mean = sum.total[i] / static_cast<double>(sum.count[i]);
      point[i] = static_cast<std::uint16_t>(std::clamp(std::round(mean), 0.0, double{kUnknown - 1}));
    }
    sum = {};
    // Buckets without any sample.
    for (std::int64_t empty = std::max(current + 1, number - size); empty < number; ++empty)
      gpu.points[point_of(ring, empty)].fill(kUnknown);
  }
}

bool SampleTrends::add_sample(const metrics::Sample& sample, WallTime at) {
  bool completed = false;
  for (std::size_t ring = 0; ring < kTrendRings.size(); ++ring) {
    const std::int64_t number = bucket_number(at, kTrendRings[ring].step);
    auto& current = current_[ring];
    if (current && number < *current - 1) {  // the clock was set back
      gpus_.clear();
      current_.fill(std::nullopt);
      return add_sample(sample, at);
    }
    if (current && number > *current) {
      complete_buckets(ring, number);
      completed = completed || ring == 0;
    }
    current = std::max(number, current.value_or(number));
  }
  for (const auto& read : sample.gpus) {
    if (gpus_.size() >= kMaxTrendGpus && !gpus_.contains(read.uuid)) continue;
    Gpu& gpu = gpus_[read.uuid];
    gpu.seen = at;
    if (read.error) continue;
    for (std::size_t i = 0; i < kSeries; ++i) {
      const auto value = numeric_field(read.values, kTrendSeries[i].field);
      if (!value || !std::isfinite(*value)) continue;
      for (auto& sum : gpu.sums) {
        if (sum.count[i] == 0xFFFF) continue;
        sum.total[i] += static_cast<float>(*value / kTrendSeries[i].unit);
        ++sum.count[i];
      }
    }
  }
  std::erase_if(gpus_, [&](const auto& one) { return at - one.second.seen > kLongestRange; });
  return completed;
}

void SampleTrends::append_gpu(std::string& text, const Gpu& gpu, std::size_t ring) const {
  const auto size = static_cast<std::int64_t>(kTrendRings[ring].buckets);
  // The bucket at `current` is not complete; its place has the oldest one, which is out of range.
  const std::int64_t end = *current_[ring];
  const auto is_known = [&](std::int64_t number) {
    return std::ranges::any_of(gpu.points[point_of(ring, number)],
                               [](std::uint16_t value) { return value != kUnknown; });
  };
  std::int64_t begin = std::max<std::int64_t>(0, end - size + 1);
  while (begin < end && !is_known(begin)) ++begin;
  text += '{';
  for (std::size_t i = 0; i < kSeries; ++i) {
    text += (i > 0 ? ",\"" : "\"") + std::string(kTrendSeries[i].key) + "\":[";
    for (std::int64_t number = begin; number < end; ++number) {
      const std::uint16_t value = gpu.points[point_of(ring, number)][i];
      if (number > begin) text += ',';
      text += value == kUnknown ? "null" : std::to_string(value * kTrendSeries[i].unit);
    }
    text += ']';
  }
  text += '}';
}

std::string SampleTrends::trends_json(WallTime at) const {
  std::string text = "{\"at\":" + std::to_string(unix_milliseconds(at)) + ",\"rings\":[";
  text.reserve(gpus_.size() * kTrendJsonBytesPerGpu);
  for (std::size_t ring = 0; ring < kTrendRings.size() && current_[ring]; ++ring) {
    if (ring > 0) text += ',';
    const std::int64_t step = kTrendRings[ring].step.count();
    text += "{\"step\":" + std::to_string(step) +
            ",\"last\":" + std::to_string((*current_[ring] - 1) * step * 1000) + ",\"gpus\":{";
    bool first = true;
    for (const auto& [uuid, gpu] : gpus_) {
      if (!std::exchange(first, false)) text += ',';
      text += nlohmann::json(uuid.str()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ':';
      append_gpu(text, gpu, ring);
    }
    text += "}}";
  }
  text += "]}";
  text.shrink_to_fit();
  return text;
}

}  // namespace gpulet::agent
