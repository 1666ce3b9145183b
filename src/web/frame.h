// Pages as bytes on the socket pair from the agent to its listener child: a length, then flags and four
// texts, in this machine's byte order. Both ends are one program, so there is no version.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "web/listener.h"

namespace gpulet::web {

struct Frame {
  Pages pages;
  std::chrono::milliseconds fresh;  // how long these pages may be believed
};

std::string encode(const Frame& frame);

// Takes bytes as they come and gives whole frames.
class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  // nullopt until a whole frame is there. Errors: kInvalidArgument for bytes that are none (the stream is
  // then useless).
  Result<std::optional<Frame>> next();

 private:
  std::string bytes_;
};

}  // namespace gpulet::web
