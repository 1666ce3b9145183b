// What lies between a socket and what is said over it, as bytes in and bytes out: TLS (tls.h), or nothing.
// Whoever owns the socket decides when to read and write.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::cluster {

class Channel {
 public:
  virtual ~Channel() = default;

  // Goes on with the handshake. True once it is done.
  virtual Result<bool> handshake() = 0;

  // What came from the socket, and what must go there.
  virtual void received(std::string_view bytes) = 0;
  virtual std::string to_send() = 0;

  virtual Status write(std::string_view plain) = 0;
  // What the other side said, as far as it has come; `ended` when it has said that it will say no more.
  virtual Result<std::string> read(bool& ended) = 0;
};

std::unique_ptr<Channel> plain_channel();

}  // namespace gpulet::cluster
