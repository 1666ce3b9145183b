// TLS for the listener's connections: OpenSSL on a non-blocking socket. It opens no file: all it needs is in
// memory.
#pragma once

#include <memory>

#include "base/result.h"
#include "web/access.h"
#include "web/transport.h"

namespace gpulet::web {

// Certificates and rules, shared by connections, which go by them to their end also when this is gone.
class TlsContext {
 public:
  // Errors: kInvalidArgument, about the file, for a text that holds no certificate or no key, for a key that
  // is another certificate's, for ciphers, curves and versions that OpenSSL does not know.
  static Result<std::shared_ptr<TlsContext>> create(const Tls& tls);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;

  // A connection's end of it: the handshake is part of the first reads and writes. Null without memory.
  std::unique_ptr<Transport> accept(int socket) const;

 private:
  struct State;
  explicit TlsContext(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::web
