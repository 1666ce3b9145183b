// TLS 1.2 or later to one server, as a Channel: OpenSSL between two memory buffers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/channel.h"

namespace gpulet::cluster {

// All certificates and keys as PEM.
struct TlsOptions {
  std::string server;            // whom the certificate must be for: a numeric address or a name
  std::string authorities;       // the only ones that are trusted; empty: the system's
  std::string certificate, key;  // ours, or empty
  std::string authorities_about, certificate_about, key_about;  // where they are from, for errors
  std::string peer = "the API server";                          // as errors call it
};

class TlsClient final : public Channel {
 public:
  // Errors: kInvalidArgument, about `ca_about` or the like, for a text that holds no certificate or no key,
  // or for a key that is another certificate's.
  static Result<std::unique_ptr<TlsClient>> create(const TlsOptions& options);
  ~TlsClient() override;
  TlsClient(const TlsClient&) = delete;

  // Errors: kPermissionDenied for a certificate that is not trusted, kIo.
  Result<bool> handshake() override;
  void received(std::string_view bytes) override;
  std::string to_send() override;
  Status write(std::string_view plain) override;
  Result<std::string> read(bool& ended) override;

 private:
  struct State;
  explicit TlsClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpulet::cluster
