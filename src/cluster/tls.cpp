#include "cluster/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <array>
#include <vector>

#include "base/deleter.h"

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

}  // namespace

struct TlsClient::State {
  std::string peer;
  std::unique_ptr<SSL_CTX, Deleter<::SSL_CTX_free>> context;
  std::unique_ptr<SSL, Deleter<::SSL_free>> ssl;
  BIO* in = nullptr;  // owned by ssl
  BIO* out = nullptr;
};

TlsClient::TlsClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsClient::~TlsClient() = default;

namespace {

using BioPtr = std::unique_ptr<BIO, Deleter<::BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, Deleter<::X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<::EVP_PKEY_free>>;

BioPtr reader_of(const std::string& text) {
  return BioPtr(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Every certificate of a PEM text; an end that is none is the end.
std::vector<CertificatePtr> certificates_of(const std::string& text) {
  std::vector<CertificatePtr> found;
  const auto reader = reader_of(text);
  while (CertificatePtr next{::PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr)}) {
    found.push_back(std::move(next));
  }
  ::ERR_clear_error();
  return found;
}

Status trust(SSL_CTX* context, const TlsOptions& options) {
  if (options.authorities.empty()) {
    if (::SSL_CTX_set_default_verify_paths(context) == 1) return {};
    return fail(Code::kUnavailable, "the system has no certificate authorities: " + openssl_error());
  }
  const auto authorities = certificates_of(options.authorities);
  if (authorities.empty())
    return fail(Code::kInvalidArgument, "holds no certificate", options.authorities_about);
  for (const auto& authority : authorities) {
    ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), authority.get());
  }
  return {};
}

Status introduce(SSL_CTX* context, const TlsOptions& options) {
  if (options.certificate.empty()) return {};
  const auto chain = certificates_of(options.certificate);
  if (chain.empty()) return fail(Code::kInvalidArgument, "holds no certificate", options.certificate_about);
  // The library would ask for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const KeyPtr key(::PEM_read_bio_PrivateKey(reader_of(options.key).get(), nullptr, no_password, nullptr));
  if (!key) return fail(Code::kInvalidArgument, "holds no private key without a password", options.key_about);
  if (::SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), options.certificate_about);
  }
  for (std::size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  if (::SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return fail(Code::kInvalidArgument, "not the key of the client's certificate: " + openssl_error(),
                options.key_about);
  }
  return {};
}

// The certificate must be for it, and a name is told to the server, which may have several.
Status expect_server(SSL* ssl, const std::string& server) {
  if (::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl), server.c_str()) == 1) return {};
  ::ERR_clear_error();
  if (::SSL_set1_host(ssl, server.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, server.c_str()) == 1)
    return {};
  return fail(Code::kInvalidArgument, "not the name of a server", server);
}

}  // namespace

Result<std::unique_ptr<TlsClient>> TlsClient::create(const TlsOptions& options) {
  // Without the host's openssl.cnf, which may name modules to load into a root process, and without tables of
  // error texts.
  constexpr std::uint64_t kLean =
      OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_LOAD_SSL_STRINGS | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS;
  ::OPENSSL_init_ssl(kLean, nullptr);
  ::ERR_clear_error();
  auto state = std::make_unique<State>();
  state->peer = options.peer;
  state->context.reset(::SSL_CTX_new(::TLS_client_method()));
  if (!state->context) return fail(Code::kInternal, openssl_error());
  ::SSL_CTX_set_min_proto_version(state->context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(state->context.get(), SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_mode(state->context.get(), SSL_MODE_RELEASE_BUFFERS);
  GPULET_TRY(trust(state->context.get(), options));
  GPULET_TRY(introduce(state->context.get(), options));
  state->ssl.reset(::SSL_new(state->context.get()));
  if (!state->ssl) return fail(Code::kInternal, openssl_error());
  GPULET_TRY(expect_server(state->ssl.get(), options.server));
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
                state_->peer + "'s certificate is not trusted: " + ::X509_verify_cert_error_string(verified));
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
