// The bytes of one connection, plain or through TLS: non-blocking reads and writes on a socket that outlives
// it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>

namespace gpulet::web {

class Transport {
 public:
  enum class Outcome {
    kMoved,       // `bytes` of them, at least one
    kWantsRead,   // nothing now: when the socket can be read
    kWantsWrite,  // nothing now: when it can be written
    kEnded,       // the other side is through, or gone
  };
  struct Moved {
    Outcome outcome;
    std::size_t bytes = 0;
  };
  virtual ~Transport() = default;
  virtual Moved read(char* into, std::size_t size) = 0;
  // As much of the parts as is taken at once.
  virtual Moved write(const iovec* parts, std::size_t count) = 0;
  // Nothing more will be written.
  virtual void finish() = 0;
  // The last common name of the certificate that the other side has shown, where one must be of a trusted
  // authority; else empty.
  virtual std::string client() const { return {}; }
};

std::unique_ptr<Transport> plain_transport(int socket);

}  // namespace gpulet::web
