// TLS 1.2 or later to one server, as bytes in and bytes out: OpenSSL between two memory buffers, so that
// whoever owns the socket decides when to read and write.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::cluster {

class TlsClient {
 public:
  // Trusts only the certificates in `ca_file`, and only for the numeric address `host`. Errors: kNotFound,
  // kInvalidArgument for a file that holds no certificate.
  static Result<std::unique_ptr<TlsClient>> create(const std::string& host, const std::string& ca_file);
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
