#include "web/frame.h"

#include <array>
#include <cstring>

namespace gpulet::web {
namespace {

struct Head {
  std::uint32_t size;  // of all texts
  std::uint32_t fresh_ms;
  std::uint8_t healthy, ready;
  std::array<std::uint8_t, 2> unused;
  std::array<std::uint32_t, 3> lengths;  // health, ready, metrics
};

}  // namespace

std::string encode(const Frame& frame) {
  const Pages& pages = frame.pages;
  Head head{};
  head.fresh_ms = static_cast<std::uint32_t>(frame.fresh.count());
  head.healthy = pages.healthy;
  head.ready = pages.ready;
  head.lengths = {static_cast<std::uint32_t>(pages.health_text.size()),
                  static_cast<std::uint32_t>(pages.ready_text.size()),
                  static_cast<std::uint32_t>(pages.metrics.size())};
  head.size = head.lengths[0] + head.lengths[1] + head.lengths[2];
  std::string bytes;
  bytes.reserve(sizeof head + head.size);
  bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(pages.health_text).append(pages.ready_text).append(pages.metrics);
  return bytes;
}

Result<std::optional<Frame>> FrameReader::next() {
  Head head;
  if (bytes_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes_.data(), sizeof head);
  const std::uint64_t sum = std::uint64_t{head.lengths[0]} + head.lengths[1] + head.lengths[2];
  if (sum != head.size || sum > kMaxPagesBytes || head.healthy > 1 || head.ready > 1) {
    return fail(Code::kInvalidArgument, "not a frame of pages");
  }
  if (bytes_.size() < sizeof head + head.size) return std::nullopt;
  std::size_t at = sizeof head;
  auto take = [&](std::size_t length) {
    at += length;
    return bytes_.substr(at - length, length);
  };
  Frame frame;
  frame.fresh = std::chrono::milliseconds(head.fresh_ms);
  frame.pages.healthy = head.healthy != 0;
  frame.pages.ready = head.ready != 0;
  frame.pages.health_text = take(head.lengths[0]);
  frame.pages.ready_text = take(head.lengths[1]);
  frame.pages.metrics = take(head.lengths[2]);
  bytes_.erase(0, at);
  if (bytes_.empty()) bytes_.shrink_to_fit();
  return frame;
}

}  // namespace gpulet::web
