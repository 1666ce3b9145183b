// The bytes of one connection, plain or through TLS, on the client's or the server's side: non-blocking
// reads and writes on a socket that outlives the transport. Certificates and keys are texts, so no file is
// opened, and no write raises SIGPIPE.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::http {

class Transport {
 public:
  enum class Outcome {
    kTransferred,  // `bytes` of them, at least one
    kWantsRead,    // nothing now: try again when the socket is readable
    kWantsWrite,   // nothing now: try again when it is writable
    kEnded,        // the peer closed the connection, or it failed
  };
  struct IoResult {
    Outcome outcome;
    std::size_t bytes = 0;
  };
  virtual ~Transport() = default;
  // A TLS handshake is part of the first reads and writes.
  virtual IoResult read_some(char* into, std::size_t size) = 0;
  // Writes as many bytes of the parts as the socket accepts at once.
  virtual IoResult write_some(const iovec* parts, std::size_t count) = 0;
  virtual void shut_down_writing() = 0;

  // After kEnded: why. Success where the peer closed the connection. Errors: kUnavailable for a socket that
  // failed, kPermissionDenied for a server's certificate that is not trusted, kIo for another failure of
  // TLS.
  virtual Status end_reason() const = 0;
  // On a server: the last common name of the client's certificate, where it had to be signed by a trusted
  // authority; else empty.
  virtual std::string client_name() const { return {}; }
  // On a server: whether the client showed a certificate that a trusted authority signed.
  virtual bool has_verified_client() const { return false; }
};

std::unique_ptr<Transport> make_plain_transport(int socket);

// ---- clients ----

// Makes the transport of a connection from its socket.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(int socket)>;

TransportFactory plain_client();

// For TLS 1.2 or later to one server. All certificates and keys are PEM.
struct TlsClientOptions {
  std::string server;            // must be in the server's certificate: a numeric address or a name
  std::string authorities;       // the only trusted ones; empty: the system's
  std::string certificate, key;  // the client's own, or empty
  std::string authorities_source, certificate_source, key_source;  // their files, for errors
  std::string peer = "the API server";                             // the server, for errors
};

// Errors: kInvalidArgument, about the file, for a text without a certificate or key, and for a key of
// another certificate; kUnavailable where the system has no authorities.
Result<TransportFactory> tls_client(const TlsClientOptions& options);

// ---- servers ----

// Whether a client must show a certificate; names and meanings as in Go's tls.ClientAuthType.
enum class ClientAuthType { kNone, kRequest, kRequireAny, kVerifyIfGiven, kRequireAndVerify };

// `tls_server_config` of Prometheus' web config file (config/web_config.h), with the files' contents.
struct TlsServerConfig {
  std::string certificate{}, key{}, client_authorities{};                       // PEM
  std::string certificate_source{}, key_source{}, client_authorities_source{};  // their files, for errors
  ClientAuthType clients = ClientAuthType::kNone;
  std::vector<std::string> client_names{};  // one of them must be a subject alternative name of the client
  int min_version = 0x0303, max_version = 0x0304;  // as on the wire: TLS 1.0 is 0x0301
  std::string ciphers{};  // of TLS 1.2 and below, OpenSSL's names with colons; empty: the library's
  std::string curves{};   // OpenSSL's names with colons; empty: the library's
  bool prefer_server_ciphers = true;
  friend bool operator==(const TlsServerConfig&, const TlsServerConfig&) = default;
};

// A server's certificate and rules, shared by its connections. A connection keeps the ones it began with.
class TlsServerContext {
 public:
  // Errors: kInvalidArgument, about the file, for a text without a certificate or key, a key of another
  // certificate, and for ciphers, curves and versions that OpenSSL does not know.
  static Result<std::shared_ptr<TlsServerContext>> create_context(const TlsServerConfig& config);
  ~TlsServerContext();
  TlsServerContext(const TlsServerContext&) = delete;

  // The server's side of a connection. Null when out of memory.
  std::unique_ptr<Transport> accept_socket(int socket) const;

 private:
  struct State;
  explicit TlsServerContext(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::http
