// Messages of the agent to its listener child over their socket pair: pages, or access rules. A message is
// lengths, flags and texts in this machine's byte order; both ends are the same program, so there is no
// version. A text that has not changed is left out.
//
// The child sends single bytes: its number of subscribers on each change (encode_subscriber_count), and
// kMetricsWanted. Anything else from it is the text of its fatal error.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "http/server.h"
#include "http/transport.h"
#include "web/listener.h"

namespace gpulet::web {

// The texts of Pages, in the order of the wire.
enum class PageText {
  kHealth,
  kReady,
  kMetrics,
  kOpenMetrics,
  kNode,
  kNow,
  kUse,
  kPublicNode,
  kPublicUse,
  kTrends,
  kUsage
};
inline constexpr std::size_t kPageTexts = 11;
const std::string& page_text(const Pages& pages, PageText text);
std::size_t total_page_bytes(const Pages& pages);  // all texts together

struct PagesMessage {
  bool healthy = false, ready = false;
  std::chrono::milliseconds valid_for{};                     // how long these pages are valid
  std::array<std::optional<std::string>, kPageTexts> texts;  // nullopt: unchanged
  bool has_metrics = true;                                   // see Pages; without: their texts are nullopt

  std::optional<std::string>& operator[](PageText text) { return texts[static_cast<std::size_t>(text)]; }
  const std::optional<std::string>& operator[](PageText text) const {
    return texts[static_cast<std::size_t>(text)];
  }
};
// With all texts.
PagesMessage make_pages_message(const Pages& pages, std::chrono::milliseconds fresh);

// `before`: the pages last sent to this child; null for a new one.
std::string encode_pages(const Pages& pages, std::chrono::milliseconds fresh, const Pages* before);
std::string encode_access_message(const http::AccessRules& access);

using Message = std::variant<PagesMessage, http::AccessRules>;

// Splits a stream of bytes into messages.
class MessageReader {
 public:
  void append_bytes(std::string_view bytes) { bytes_.append(bytes); }
  // nullopt until a message is complete. Errors: kInvalidArgument for invalid bytes; the stream is then
  // useless.
  Result<std::optional<Message>> next_message();

 private:
  std::string bytes_;
};

// A client asks for metrics and the child has none that are valid. No character of an error's text.
inline constexpr char kMetricsWanted = '\xff';

constexpr char encode_subscriber_count(std::size_t watchers) { return static_cast<char>(watchers); }
// nullopt for a byte that is no such number.
constexpr std::optional<unsigned> decode_subscriber_count(char byte) {
  const auto count = static_cast<unsigned char>(byte);
  return count <= http::kMaxSubscribers + http::kMaxLocalSubscribers ? std::optional<unsigned>(count)
                                                                     : std::nullopt;
}

}  // namespace gpulet::web
