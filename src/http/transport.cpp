#include "http/transport.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/types.h"
#include "http/certificate.h"

namespace gpulet::http {
namespace {

using ContextPtr = std::unique_ptr<SSL_CTX, Deleter<::SSL_CTX_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Deleter<::GENERAL_NAMES_free>>;
using SslPtr = std::unique_ptr<SSL, Deleter<::SSL_free>>;

// A non-blocking stream socket, and how it ended.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}

  // Bytes, or -1 with errno; 0 only from receive_some, when the peer closed the connection.
  ssize_t receive_some(char* into, std::size_t size) {
    ssize_t got;
    do {
      got = ::recv(fd_, into, size, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EAGAIN) failed_ = errno_error("cannot receive", errno).message();
    if (got == 0) closed_ = true;
    return got;
  }
  ssize_t send_some(const iovec* parts, std::size_t count) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = count;
    ssize_t put;
    do {
      put = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    if (put < 0 && errno != EAGAIN) failed_ = errno_error("cannot send", errno).message();
    return put;
  }
  void shut_down() const { ::shutdown(fd_, SHUT_WR); }

  bool has_closed() const { return closed_; }
  Status failure() const { return failed_.empty() ? Status() : fail(Code::kUnavailable, failed_); }

 private:
  int fd_;
  bool closed_ = false;
  std::string failed_;
};

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(int socket) : socket_(socket) {}

  IoResult read_some(char* into, std::size_t size) override {
    return io_result(socket_.receive_some(into, size), Outcome::kWantsRead);
  }
  IoResult write_some(const iovec* parts, std::size_t count) override {
    return io_result(socket_.send_some(parts, count), Outcome::kWantsWrite);
  }
  void shut_down_writing() override { socket_.shut_down(); }
  Status end_reason() const override { return socket_.failure(); }

 private:
  static IoResult io_result(ssize_t moved, Outcome wanted) {
    if (moved > 0) return {Outcome::kTransferred, static_cast<std::size_t>(moved)};
    return {moved < 0 && errno == EAGAIN ? wanted : Outcome::kEnded};
  }
  Socket socket_;
};

// ---- the socket under TLS: OpenSSL's own BIO of a socket raises SIGPIPE ----

int bio_write(BIO* bio, const char* bytes, int size) {
  ::BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  const iovec part{const_cast<char*>(bytes), static_cast<std::size_t>(size)};
  const auto put = static_cast<Socket*>(::BIO_get_data(bio))->send_some(&part, 1);
  if (put < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return static_cast<int>(put);
}

int bio_read(BIO* bio, char* into, int size) {
  ::BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  const auto got =
      static_cast<Socket*>(::BIO_get_data(bio))->receive_some(into, static_cast<std::size_t>(size));
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_socket_bio(Socket& socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    ::BIO_meth_set_write(made, bio_write);
    ::BIO_meth_set_read(made, bio_read);
    ::BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* bio = ::BIO_new(method);
  if (bio == nullptr) return nullptr;
  ::BIO_set_data(bio, &socket);
  ::BIO_set_init(bio, 1);
  return bio;
}

// The last common name, as in Go. Empty if there is none or it is not text.
std::string common_name_of(const X509* certificate) {
  const X509_NAME* subject = ::X509_get_subject_name(certificate);
  int last = -1;
  for (int next; (next = ::X509_NAME_get_index_by_NID(subject, NID_commonName, last)) >= 0;) last = next;
  if (last < 0) return {};
  unsigned char* text = nullptr;
  const int size =
      ::ASN1_STRING_to_UTF8(&text, ::X509_NAME_ENTRY_get_data(::X509_NAME_get_entry(subject, last)));
  std::string name;
  if (size > 0) name.assign(reinterpret_cast<const char*>(text), static_cast<std::size_t>(size));
  ::OPENSSL_free(text);
  return name;
}

class TlsTransport final : public Transport {
 public:
  // `rules`: used by the handshake and kept alive by this object.
  TlsTransport(SslPtr ssl, int socket, std::shared_ptr<const void> rules)
      : rules_(std::move(rules)), socket_(socket), ssl_(std::move(ssl)) {}
  TlsTransport(const TlsTransport&) = delete;

  // False if out of memory.
  bool attach() {
    BIO* bio = make_socket_bio(socket_);
    if (bio != nullptr) ::SSL_set_bio(ssl_.get(), bio, bio);
    return bio != nullptr;
  }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  void set_verifies_client() { verifies_client_ = true; }

  IoResult read_some(char* into, std::size_t size) override {
    std::size_t moved = 0;
    ::ERR_clear_error();
    const int result = ::SSL_read_ex(ssl_.get(), into, size, &moved);
    return io_result(result, moved);
  }

  IoResult write_some(const iovec* parts, std::size_t count) override {
    std::size_t moved = 0;
    const auto* part = std::find_if(parts, parts + count, [](const iovec& one) { return one.iov_len > 0; });
    if (part == parts + count) return {Outcome::kTransferred, 0};
    ::ERR_clear_error();
    const int result = ::SSL_write_ex(ssl_.get(), part->iov_base, part->iov_len, &moved);
    return io_result(result, moved);
  }

  void shut_down_writing() override {
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_.get());
    socket_.shut_down();
  }

  Status end_reason() const override { return end_reason_; }

  std::string client_name() const override {
    const X509* shown = verifies_client_ ? ::SSL_get0_peer_certificate(ssl_.get()) : nullptr;
    return shown == nullptr ? std::string() : common_name_of(shown);
  }
  bool has_verified_client() const override {
    return verifies_client_ && ::SSL_get0_peer_certificate(ssl_.get()) != nullptr &&
           ::SSL_get_verify_result(ssl_.get()) == X509_V_OK;
  }

 private:
  IoResult io_result(int result, std::size_t moved) {
    if (result == 1) return {Outcome::kTransferred, moved};
    const int why = ::SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_WANT_READ) return {Outcome::kWantsRead};
    if (why == SSL_ERROR_WANT_WRITE) return {Outcome::kWantsWrite};
    end_reason_ = failure(why);
    ::ERR_clear_error();
    return {Outcome::kEnded};
  }

  Status failure(int why) const {
    const long verified = ::SSL_get_verify_result(ssl_.get());
    if (::SSL_is_server(ssl_.get()) == 0 && verified != X509_V_OK) {
      return fail(Code::kPermissionDenied,
                  peer_ + "'s certificate is not trusted: " + ::X509_verify_cert_error_string(verified));
    }
    GPULET_TRY(socket_.failure());
    if (why == SSL_ERROR_ZERO_RETURN || socket_.has_closed()) return {};
    return fail(Code::kIo, openssl_error());
  }

  std::shared_ptr<const void> rules_;
  Socket socket_;
  SslPtr ssl_;  // refers to the two above
  std::string peer_;
  bool verifies_client_ = false;
  Status end_reason_{};
};

constexpr long kPartialWrites =
    SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS;

// ---- clients ----

Status load_authorities(SSL_CTX* context, const TlsClientOptions& options) {
  if (options.authorities.empty()) {
    if (::SSL_CTX_set_default_verify_paths(context) == 1) return {};
    return fail(Code::kUnavailable, "the system has no certificate authorities: " + openssl_error());
  }
  const auto authorities = parse_certificates(options.authorities);
  if (authorities.empty())
    return fail(Code::kInvalidArgument, "holds no certificate", options.authorities_source);
  for (const auto& authority : authorities) {
    ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), authority.get());
  }
  return {};
}

// The certificate with its chain, and the key. `mismatch`: error text for a key of another certificate.
Status load_identity(SSL_CTX* context, const std::vector<CertificatePtr>& chain, const KeyPtr& key,
                     const std::string& certificate_source, const std::string& mismatch,
                     const std::string& key_source) {
  if (::SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), certificate_source);
  }
  for (std::size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  if (::SSL_CTX_use_PrivateKey(context, key.get()) == 1) return {};
  ::ERR_clear_error();
  return fail(Code::kInvalidArgument, mismatch, key_source);
}

Status load_client_certificate(SSL_CTX* context, const TlsClientOptions& options) {
  if (options.certificate.empty()) return {};
  const auto chain = parse_certificates(options.certificate);
  if (chain.empty()) return fail(Code::kInvalidArgument, "holds no certificate", options.certificate_source);
  const KeyPtr key = parse_private_key(options.key);
  if (!key)
    return fail(Code::kInvalidArgument, "holds no private key without a password", options.key_source);
  return load_identity(context, chain, key, options.certificate_source,
                       "not the key of the client's certificate", options.key_source);
}

// The server's certificate must be for it. A name is also sent to the server, which may have several.
Status set_expected_server(SSL* ssl, const std::string& server) {
  if (::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl), server.c_str()) == 1) return {};
  ::ERR_clear_error();
  if (::SSL_set1_host(ssl, server.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, server.c_str()) == 1)
    return {};
  return fail(Code::kInvalidArgument, "not the name of a server", server);
}

// ---- servers ----

Status load_server_certificate(SSL_CTX* context, const TlsServerConfig& config) {
  const auto chain = parse_certificates(config.certificate);
  if (chain.empty())
    return fail(Code::kInvalidArgument, "holds no certificate in PEM form", config.certificate_source);
  const KeyPtr key = parse_private_key(config.key);
  if (!key) {
    return fail(Code::kInvalidArgument, "holds no private key in PEM form without a password",
                config.key_source);
  }
  return load_identity(context, chain, key, config.certificate_source,
                       "not the key of the certificate in " + config.certificate_source, config.key_source);
}

Status set_protocol_options(SSL_CTX* context, const TlsServerConfig& config) {
  // Versions before 1.2 need algorithms that the library refuses at its default level.
  if (config.min_version < TLS1_2_VERSION) ::SSL_CTX_set_security_level(context, 0);
  if (config.min_version > config.max_version) {
    return fail(Code::kInvalidArgument, "min_version is above max_version", "tls_server_config");
  }
  if (SSL_CTX_set_min_proto_version(context, config.min_version) != 1 ||
      SSL_CTX_set_max_proto_version(context, config.max_version) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.min_version");
  }
  if (!config.ciphers.empty() && ::SSL_CTX_set_cipher_list(context, config.ciphers.c_str()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.cipher_suites");
  }
  if (!config.curves.empty() && SSL_CTX_set1_curves_list(context, config.curves.c_str()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.curve_preferences");
  }
  if (config.prefer_server_ciphers) ::SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
  return {};
}

// A subject alternative name as the config file writes it.
std::string alternative_name_text(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_DNS:
    case GEN_EMAIL:
    case GEN_URI:
      return {reinterpret_cast<const char*>(::ASN1_STRING_get0_data(name.d.ia5)),
              static_cast<std::size_t>(::ASN1_STRING_length(name.d.ia5))};
    case GEN_IPADD: {
      std::array<char, INET6_ADDRSTRLEN> text{};
      const int length = ::ASN1_STRING_length(name.d.iPAddress);
      if (length != 4 && length != 16) return {};
      ::inet_ntop(length == 4 ? AF_INET : AF_INET6, ::ASN1_STRING_get0_data(name.d.iPAddress), text.data(),
                  text.size());
      return text.data();
    }
    default:
      return {};
  }
}

bool has_alternative_name(X509* certificate, const std::vector<std::string>& accepted) {
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::string name = alternative_name_text(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty() && std::find(accepted.begin(), accepted.end(), name) != accepted.end()) return true;
  }
  return false;
}

// Verifies a client's certificate in place of the library. `rules`: a TlsServerContext::State.
template <class State>
int verify_client(X509_STORE_CTX* store, void* rules) {
  const auto& state = *static_cast<const State*>(rules);
  if (state.verifies() && ::X509_verify_cert(store) != 1) return 0;
  if (state.client_names.empty() ||
      has_alternative_name(::X509_STORE_CTX_get0_cert(store), state.client_names))
    return 1;
  ::X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

Status configure_client_auth(SSL_CTX* context, const TlsServerConfig& config) {
  if (config.clients == ClientAuthType::kNone) return {};
  const bool required =
      config.clients == ClientAuthType::kRequireAny || config.clients == ClientAuthType::kRequireAndVerify;
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
  if (config.client_authorities.empty()) return {};
  const auto authorities = parse_certificates(config.client_authorities);
  if (authorities.empty()) {
    return fail(Code::kInvalidArgument, "holds no certificate in PEM form", config.client_authorities_source);
  }
  for (const auto& authority : authorities) {
    ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), authority.get());
    ::SSL_CTX_add_client_CA(context, authority.get());
  }
  return {};
}

// HTTP/1.1 only. A client that does not offer it may still try.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  const int result = ::SSL_select_next_proto(&found, size, kOurs, sizeof kOurs - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

std::unique_ptr<Transport> make_plain_transport(int socket) {
  return std::make_unique<PlainTransport>(socket);
}

TransportFactory plain_client() {
  return [](int socket) -> Result<std::unique_ptr<Transport>> { return make_plain_transport(socket); };
}

Result<TransportFactory> tls_client(const TlsClientOptions& options) {
  // Without the host's openssl.cnf, which may name modules to load into a root process, and without tables
  // of error texts.
  constexpr std::uint64_t kLean =
      OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_LOAD_SSL_STRINGS | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS;
  ::OPENSSL_init_ssl(kLean, nullptr);
  ::ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
  if (!context) return fail(Code::kInternal, openssl_error());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(), kPartialWrites);
  GPULET_TRY(load_authorities(context.get(), options));
  GPULET_TRY(load_client_certificate(context.get(), options));
  return [context, server = options.server,
          peer = options.peer](int socket) -> Result<std::unique_ptr<Transport>> {
    SslPtr ssl(::SSL_new(context.get()));
    if (!ssl) return fail(Code::kInternal, openssl_error());
    GPULET_TRY(set_expected_server(ssl.get(), server));
    ::SSL_set_connect_state(ssl.get());
    auto transport = std::make_unique<TlsTransport>(std::move(ssl), socket, nullptr);
    if (!transport->attach()) return fail(Code::kInternal, openssl_error());
    transport->set_peer(peer);
    return transport;
  };
}

struct TlsServerContext::State {
  ContextPtr context;
  ClientAuthType clients = ClientAuthType::kNone;
  std::vector<std::string> client_names;

  bool verifies() const {
    return clients == ClientAuthType::kVerifyIfGiven || clients == ClientAuthType::kRequireAndVerify;
  }
};

TlsServerContext::TlsServerContext(std::shared_ptr<State> state) : state_(std::move(state)) {}
TlsServerContext::~TlsServerContext() = default;

Result<std::shared_ptr<TlsServerContext>> TlsServerContext::create_context(const TlsServerConfig& config) {
  GPULET_TRY(initialize_openssl());
  ::ERR_clear_error();
  auto state = std::make_shared<State>();
  state->context.reset(::SSL_CTX_new(::TLS_server_method()));
  SSL_CTX* context = state->context.get();
  if (context == nullptr) return fail(Code::kInternal, openssl_error());
  state->clients = config.clients;
  state->client_names = config.client_names;
  // No sessions between connections: a scraper's connection lasts, and a resumed session would skip the
  // check of the client's certificate.
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, kPartialWrites);
  ::SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  ::SSL_CTX_set_cert_verify_callback(context, verify_client<State>, state.get());
  GPULET_TRY(set_protocol_options(context, config));
  GPULET_TRY(load_server_certificate(context, config));
  GPULET_TRY(configure_client_auth(context, config));
  return std::shared_ptr<TlsServerContext>(new TlsServerContext(std::move(state)));
}

std::unique_ptr<Transport> TlsServerContext::accept_socket(int socket) const {
  SslPtr ssl(::SSL_new(state_->context.get()));
  if (!ssl) return nullptr;
  ::SSL_set_accept_state(ssl.get());
  auto transport = std::make_unique<TlsTransport>(std::move(ssl), socket, state_);
  if (!transport->attach()) return nullptr;
  if (state_->verifies()) transport->set_verifies_client();
  return transport;
}

}  // namespace gpulet::http
