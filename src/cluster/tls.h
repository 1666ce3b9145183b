// TLS 1.2 or later to one server, as bytes in and bytes out: OpenSSL between two memory buffers, so that
// whoever owns the socket decides when to read and write.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::cluster {

// All certificates and keys as PEM.
struct TlsOptions {
  std::string server;            // whom the certificate must be for: a numeric address or a name
  std::string authorities;       // the only ones that are trusted; empty: the system's
  std::string certificate, key;  // ours, or empty
  std::string authorities_about, certificate_about, key_about;  // where they are from, for errors
};

class TlsClient {
 public:
  // Errors: kInvalidArgument, about `ca_about` or the like, for a text that holds no certificate or no key,
  // or for a key that is another certificate's.
  static Result<std::unique_ptr<TlsClient>> create(const TlsOptions& options);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;

  // Goes on with the handshake. True once it is done. Errors: kPermissionDenied for a certificate that is not
  // trusted, kIo.
  Result<bool> handshake();

  // What came from the socket, and what must go there.
  void received(std::string_view bytes);
  std::string to_send();

  Status write(std::string_view plain);
  // What the server said, as far as it has come; `ended` when it will say no more.
  Result<std::string> read(bool& ended);

 private:
  struct State;
  explicit TlsClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpulet::cluster
