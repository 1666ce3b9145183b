#include "web/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/deleter.h"
#include "web/openssl_handles.h"

namespace gpulet::web {
namespace {

using NamesPtr = std::unique_ptr<GENERAL_NAMES, Deleter<::GENERAL_NAMES_free>>;

std::string openssl_error() {
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  std::array<char, 256> text{"TLS failed"};
  if (code != 0) ::ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

BioPtr reader_of(const std::string& text) {
  return BioPtr(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::vector<CertificatePtr> certificates_of(const std::string& text) {
  std::vector<CertificatePtr> found;
  const auto reader = reader_of(text);
  while (CertificatePtr next{::PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    found.push_back(std::move(next));
  }
  ::ERR_clear_error();
  return found;
}

Status introduce(SSL_CTX* context, const Tls& tls) {
  const auto chain = certificates_of(tls.certificate);
  if (chain.empty())
    return fail(Code::kInvalidArgument, "holds no certificate in PEM form", tls.certificate_about);
  // The library would ask for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const KeyPtr key(::PEM_read_bio_PrivateKey(reader_of(tls.key).get(), nullptr, no_password, nullptr));
  if (!key) {
    ::ERR_clear_error();
    return fail(Code::kInvalidArgument, "holds no private key in PEM form without a password", tls.key_about);
  }
  if (::SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), tls.certificate_about);
  }
  for (std::size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  if (::SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    ::ERR_clear_error();
    return fail(Code::kInvalidArgument, "not the key of the certificate in " + tls.certificate_about,
                tls.key_about);
  }
  return {};
}

Status choose(SSL_CTX* context, const Tls& tls) {
  // Versions before 1.2 take algorithms that the library refuses unless it is told.
  if (tls.min_version < TLS1_2_VERSION) ::SSL_CTX_set_security_level(context, 0);
  if (tls.min_version > tls.max_version) {
    return fail(Code::kInvalidArgument, "min_version is above max_version", "tls_server_config");
  }
  if (SSL_CTX_set_min_proto_version(context, tls.min_version) != 1 ||
      SSL_CTX_set_max_proto_version(context, tls.max_version) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.min_version");
  }
  if (!tls.ciphers.empty() && ::SSL_CTX_set_cipher_list(context, tls.ciphers.c_str()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.cipher_suites");
  }
  if (!tls.curves.empty() && SSL_CTX_set1_curves_list(context, tls.curves.c_str()) != 1) {
    return fail(Code::kInvalidArgument, openssl_error(), "tls_server_config.curve_preferences");
  }
  if (tls.prefer_server_ciphers) ::SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
  return {};
}

// A subject alternative name as the config file writes it.
std::string text_of(const GENERAL_NAME& name) {
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

bool has_one_of(X509* certificate, const std::vector<std::string>& wanted) {
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::string name = text_of(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty() && std::find(wanted.begin(), wanted.end(), name) != wanted.end()) return true;
  }
  return false;
}

// The last, as Go has it. Empty without one, and for what is no text.
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

class Encrypted final : public Transport {
 public:
  // `verified`: a certificate that is not of a trusted authority ends the handshake. `rules` are what the
  // handshake goes by.
  Encrypted(SSL* ssl, int socket, bool verified, std::shared_ptr<const void> rules)
      : ssl_(ssl), socket_(socket), verified_(verified), rules_(std::move(rules)) {}
  ~Encrypted() override { ::SSL_free(ssl_); }
  Encrypted(const Encrypted&) = delete;

  Moved read(char* into, std::size_t size) override {
    std::size_t moved = 0;
    ::ERR_clear_error();
    const int result = ::SSL_read_ex(ssl_, into, size, &moved);
    return outcome(result, moved);
  }

  Moved write(const iovec* parts, std::size_t count) override {
    std::size_t moved = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (parts[i].iov_len == 0) continue;
      ::ERR_clear_error();
      const int result = ::SSL_write_ex(ssl_, parts[i].iov_base, parts[i].iov_len, &moved);
      return outcome(result, moved);
    }
    return {Outcome::kMoved, 0};
  }

  void finish() override {
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_);
    ::shutdown(socket_, SHUT_WR);
  }

  std::string client() const override {
    const X509* shown = verified_ ? ::SSL_get0_peer_certificate(ssl_) : nullptr;
    return shown == nullptr ? std::string() : common_name_of(shown);
  }

 private:
  Moved outcome(int result, std::size_t moved) const {
    if (result == 1) return {Outcome::kMoved, moved};
    switch (::SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
        return {Outcome::kWantsRead};
      case SSL_ERROR_WANT_WRITE:
        return {Outcome::kWantsWrite};
      default:
        ::ERR_clear_error();
        return {Outcome::kEnded};
    }
  }
  SSL* ssl_;
  int socket_;
  bool verified_;
  std::shared_ptr<const void> rules_;
};

}  // namespace

struct TlsContext::State {
  std::unique_ptr<SSL_CTX, Deleter<::SSL_CTX_free>> context;
  ClientCertificates clients = ClientCertificates::kNone;
  std::vector<std::string> client_names;

  bool verifies() const {
    return clients == ClientCertificates::kVerifyIfGiven || clients == ClientCertificates::kRequireAndVerify;
  }
};

TlsContext::TlsContext(std::shared_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

namespace {

// Called with the client's certificate, in place of the library's own verification. `rules`: a
// TlsContext::State.
template <class State>
int verify_client(X509_STORE_CTX* store, void* rules) {
  const auto& state = *static_cast<const State*>(rules);
  if (state.verifies() && ::X509_verify_cert(store) != 1) return 0;
  if (state.client_names.empty() || has_one_of(::X509_STORE_CTX_get0_cert(store), state.client_names))
    return 1;
  ::X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

Status ask_clients(SSL_CTX* context, const Tls& tls) {
  if (tls.clients == ClientCertificates::kNone) return {};
  const bool required =
      tls.clients == ClientCertificates::kRequireAny || tls.clients == ClientCertificates::kRequireAndVerify;
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
  if (tls.client_authorities.empty()) return {};
  const auto authorities = certificates_of(tls.client_authorities);
  if (authorities.empty()) {
    return fail(Code::kInvalidArgument, "holds no certificate in PEM form", tls.client_authorities_about);
  }
  for (const auto& authority : authorities) {
    ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), authority.get());
    ::SSL_CTX_add_client_CA(context, authority.get());
  }
  return {};
}

// HTTP/1.1 is all there is; a client that does not offer it may try all the same.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  const int result = ::SSL_select_next_proto(&found, size, kOurs, sizeof kOurs - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::create(const Tls& tls) {
  // Without the host's openssl.cnf, and without an end of its own: the process has none that matters.
  ::OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  ::ERR_clear_error();
  auto state = std::make_shared<State>();
  state->context.reset(::SSL_CTX_new(::TLS_server_method()));
  SSL_CTX* context = state->context.get();
  if (context == nullptr) return fail(Code::kInternal, openssl_error());
  state->clients = tls.clients;
  state->client_names = tls.client_names;
  // Nothing is kept between connections: a scraper's lasts, and a resumed session would be a certificate
  // unasked.
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  ::SSL_CTX_set_cert_verify_callback(context, verify_client<State>, state.get());
  GPULET_TRY(choose(context, tls));
  GPULET_TRY(introduce(context, tls));
  GPULET_TRY(ask_clients(context, tls));
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(state)));
}

std::unique_ptr<Transport> TlsContext::accept(int socket) const {
  SSL* ssl = ::SSL_new(state_->context.get());
  if (ssl == nullptr) return nullptr;
  if (::SSL_set_fd(ssl, socket) != 1) {
    ::SSL_free(ssl);
    return nullptr;
  }
  ::SSL_set_accept_state(ssl);
  return std::make_unique<Encrypted>(ssl, socket, state_->verifies(), state_);
}

}  // namespace gpulet::web
