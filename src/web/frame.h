// What the agent says to its listener child over their socket pair: pages, or who may connect. A length, then
// flags and texts, in this machine's byte order; both ends are one program, so there is no version. A text
// that is as it was before is left out.
//
// The child says one thing: how many watch, one byte each time that it changes (watchers_byte). Anything else
// that comes from it is its last words.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "web/access.h"
#include "web/listener.h"

namespace gpulet::web {

// The texts of Pages, in the order of the wire.
enum class Text { kHealth, kReady, kMetrics, kOpenMetrics, kNode, kNow, kUse };
inline constexpr std::size_t kTexts = 7;
const std::string& text_of(const Pages& pages, Text text);
std::size_t size_of(const Pages& pages);  // all texts together

struct Frame {
  bool healthy = false, ready = false;
  std::chrono::milliseconds fresh{};                     // how long these pages may be believed
  std::array<std::optional<std::string>, kTexts> texts;  // nullopt: as it was

  std::optional<std::string>& operator[](Text text) { return texts[static_cast<std::size_t>(text)]; }
  const std::optional<std::string>& operator[](Text text) const {
    return texts[static_cast<std::size_t>(text)];
  }
};
// Whole.
Frame frame_of(const Pages& pages, std::chrono::milliseconds fresh);

// `before`: what this child has been told last, null for a new one.
std::string encode(const Pages& pages, std::chrono::milliseconds fresh, const Pages* before);
std::string encode_frame(const Access& access);

using Message = std::variant<Frame, Access>;

// Takes bytes as they come and gives whole messages.
class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  // nullopt until a whole one is there. Errors: kInvalidArgument for bytes that are none (the stream is then
  // useless).
  Result<std::optional<Message>> next();

 private:
  std::string bytes_;
};

constexpr char watchers_byte(std::size_t watchers) { return static_cast<char>(watchers); }
// nullopt for a byte that says no such number.
constexpr std::optional<unsigned> watchers_of(char byte) {
  const auto count = static_cast<unsigned char>(byte);
  return count <= kMaxWatchers + kMaxLocalWatchers ? std::optional<unsigned>(count) : std::nullopt;
}

}  // namespace gpulet::web
