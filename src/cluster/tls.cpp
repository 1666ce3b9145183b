#include "cluster/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace gpulet::cluster {
namespace {

std::string openssl_error() {
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  if (code == 0) return "TLS failed";
  std::array<char, 256> text;
  ::ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

template <auto Free>
struct Deleter {
  template <class Object>
  void operator()(Object* object) const {
    Free(object);
  }
};

}  // namespace

struct TlsClient::State {
  std::unique_ptr<SSL_CTX, Deleter<::SSL_CTX_free>> context;
  std::unique_ptr<SSL, Deleter<::SSL_free>> ssl;
  BIO* in = nullptr;   // owned by ssl
  BIO* out = nullptr;
};

TlsClient::TlsClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsClient::~TlsClient() = default;

Result<std::unique_ptr<TlsClient>> TlsClient::create(const std::string& host, const std::string& ca_file) {
  if (::access(ca_file.c_str(), R_OK) != 0) return fail(errno_error("cannot read", errno, ca_file));
  // Without the host's openssl.cnf, which may name modules to load into a root process, and without tables of
  // error texts.
  constexpr std::uint64_t kLean =
      OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_LOAD_SSL_STRINGS | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS;
  ::OPENSSL_init_ssl(kLean, nullptr);
  ::ERR_clear_error();
  auto state = std::make_unique<State>();
  state->context.reset(::SSL_CTX_new(::TLS_client_method()));
  if (!state->context) return fail(Code::kInternal, openssl_error());
  ::SSL_CTX_set_min_proto_version(state->context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(state->context.get(), SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_mode(state->context.get(), SSL_MODE_RELEASE_BUFFERS);
  if (::SSL_CTX_load_verify_file(state->context.get(), ca_file.c_str()) != 1) {
    return fail(Code::kInvalidArgument, "holds no certificate: " + openssl_error(), ca_file);
  }
  state->ssl.reset(::SSL_new(state->context.get()));
  if (!state->ssl) return fail(Code::kInternal, openssl_error());
  if (::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(state->ssl.get()), host.c_str()) != 1) {
    return fail(Code::kInvalidArgument, "not a numeric address", host);
  }
  state->in = ::BIO_new(::BIO_s_mem());
  state->out = ::BIO_new(::BIO_s_mem());
  ::SSL_set_bio(state->ssl.get(), state->in, state->out);
  ::SSL_set_connect_state(state->ssl.get());
  return std::unique_ptr<TlsClient>(new TlsClient(std::move(state)));
}

Result<bool> TlsClient::handshake() {
  ::ERR_clear_error();
  SSL* ssl = state_->ssl.get();
  const int result = ::SSL_do_handshake(ssl);
  if (result == 1) return true;
  const int why = ::SSL_get_error(ssl, result);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return false;
  if (const long verified = ::SSL_get_verify_result(ssl); verified != X509_V_OK) {
    return fail(Code::kPermissionDenied,
                std::string("the API server's certificate is not trusted: ") +
                    ::X509_verify_cert_error_string(verified));
  }
  return fail(Code::kIo, openssl_error());
}

void TlsClient::received(std::string_view bytes) {
  ::BIO_write(state_->in, bytes.data(), static_cast<int>(bytes.size()));
}

std::string TlsClient::to_send() {
  char* bytes = nullptr;
  const long size = ::BIO_get_mem_data(state_->out, &bytes);
  std::string result(bytes, size > 0 ? static_cast<std::size_t>(size) : 0);
  static_cast<void>(BIO_reset(state_->out));
  return result;
}

Status TlsClient::write(std::string_view plain) {
  ::ERR_clear_error();
  // A memory buffer takes everything at once.
  if (::SSL_write(state_->ssl.get(), plain.data(), static_cast<int>(plain.size())) > 0) return {};
  return fail(Code::kIo, openssl_error());
}

Result<std::string> TlsClient::read(bool& ended) {
  std::string plain;
  std::array<char, 16'384> buffer;
  ended = false;
  for (;;) {
    ::ERR_clear_error();
    const int got = ::SSL_read(state_->ssl.get(), buffer.data(), static_cast<int>(buffer.size()));
    if (got > 0) {
      plain.append(buffer.data(), static_cast<std::size_t>(got));
      continue;
    }
    const int why = ::SSL_get_error(state_->ssl.get(), got);
    if (why == SSL_ERROR_WANT_READ) return plain;
    ended = true;
    if (why == SSL_ERROR_ZERO_RETURN) return plain;
    return fail(Code::kIo, openssl_error());
  }
}

}  // namespace gpulet::cluster
