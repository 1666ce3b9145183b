#include "web/frame.h"

#include <cstring>
#include <numeric>

namespace gpulet::web {
namespace {

enum class Kind : std::uint8_t { kPages = 1, kAccess = 2 };

struct Head {
  Kind kind;
  std::uint8_t healthy, ready;
  std::uint8_t present;  // a bit for each text
  std::uint32_t fresh_ms;
  std::array<std::uint32_t, kTexts> lengths;
};

std::string with_head(const Head& head, std::size_t size) {
  std::string bytes;
  bytes.reserve(sizeof head + size);
  bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
  return bytes;
}

// Of all texts; nullopt for a head that encode() does not make.
std::optional<std::size_t> size_after(const Head& head) {
  const auto sum = std::accumulate(head.lengths.begin(), head.lengths.end(), std::uint64_t{0});
  if (head.kind == Kind::kAccess)
    return sum <= kMaxAccessBytes ? std::optional<std::size_t>(sum) : std::nullopt;
  if (head.kind != Kind::kPages || sum > kMaxPagesBytes || head.healthy > 1 || head.ready > 1)
    return std::nullopt;
  for (std::size_t i = 0; i < kTexts; ++i) {
    if ((head.present >> i & 1) == 0 && head.lengths[i] != 0) return std::nullopt;
  }
  return sum;
}

}  // namespace

const std::string& text_of(const Pages& pages, Text text) {
  switch (text) {
    case Text::kHealth:
      return pages.health_text;
    case Text::kReady:
      return pages.ready_text;
    case Text::kMetrics:
      return pages.metrics;
    case Text::kOpenMetrics:
      return pages.open_metrics;
    case Text::kNode:
      return pages.node;
    case Text::kNow:
      return pages.now;
    case Text::kUse:
      break;
  }
  return pages.use;
}

std::size_t size_of(const Pages& pages) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < kTexts; ++i) size += text_of(pages, static_cast<Text>(i)).size();
  return size;
}

Frame frame_of(const Pages& pages, std::chrono::milliseconds fresh) {
  Frame frame{.healthy = pages.healthy, .ready = pages.ready, .fresh = fresh, .texts = {}};
  for (std::size_t i = 0; i < kTexts; ++i) frame.texts[i] = text_of(pages, static_cast<Text>(i));
  return frame;
}

std::string encode(const Pages& pages, std::chrono::milliseconds fresh, const Pages* before) {
  Head head{.kind = Kind::kPages,
            .healthy = pages.healthy,
            .ready = pages.ready,
            .present = 0,
            .fresh_ms = static_cast<std::uint32_t>(fresh.count()),
            .lengths = {}};
  std::size_t size = 0;
  for (std::size_t i = 0; i < kTexts; ++i) {
    const std::string& text = text_of(pages, static_cast<Text>(i));
    if (before != nullptr && text == text_of(*before, static_cast<Text>(i))) continue;
    head.present = static_cast<std::uint8_t>(head.present | 1u << i);
    head.lengths[i] = static_cast<std::uint32_t>(text.size());
    size += text.size();
  }
  std::string bytes = with_head(head, size);
  for (std::size_t i = 0; i < kTexts; ++i) {
    if ((head.present >> i & 1) != 0) bytes += text_of(pages, static_cast<Text>(i));
  }
  return bytes;
}

std::string encode_frame(const Access& access) {
  const std::string text = encode(access);
  Head head{.kind = Kind::kAccess, .healthy = 0, .ready = 0, .present = 1, .fresh_ms = 0, .lengths = {}};
  head.lengths[0] = static_cast<std::uint32_t>(text.size());
  return with_head(head, text.size()) + text;
}

Result<std::optional<Message>> FrameReader::next() {
  Head head;
  if (bytes_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes_.data(), sizeof head);
  const auto size = size_after(head);
  if (!size) return fail(Code::kInvalidArgument, "not a frame of pages");
  if (bytes_.size() < sizeof head + *size) return std::nullopt;
  std::size_t at = sizeof head;
  Message message;
  if (head.kind == Kind::kAccess) {
    GPULET_TRY_ASSIGN(message, decode_access(std::string_view(bytes_).substr(at, *size)));
    at += *size;
  } else {
    Frame frame{.healthy = head.healthy != 0,
                .ready = head.ready != 0,
                .fresh = std::chrono::milliseconds(head.fresh_ms),
                .texts = {}};
    for (std::size_t i = 0; i < kTexts; ++i) {
      if ((head.present >> i & 1) != 0) frame.texts[i] = bytes_.substr(at, head.lengths[i]);
      at += head.lengths[i];
    }
    message = std::move(frame);
  }
  bytes_.erase(0, at);
  if (bytes_.empty()) bytes_.shrink_to_fit();
  return message;
}

}  // namespace gpulet::web
