#include "http/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdint>
#include <ctime>

namespace gpulet::http {
namespace {

using BioPtr = std::unique_ptr<BIO, Deleter<::BIO_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Deleter<::X509_EXTENSION_free>>;

BioPtr make_pem_bio(const std::string& text) {
  return BioPtr(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

bool add_extension(X509* certificate, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  ::X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(::X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension && ::X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_serial(X509* certificate) {
  std::array<unsigned char, 8> bytes;
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return false;
  std::uint64_t serial = 0;
  for (const auto byte : bytes) serial = serial << 8 | byte;
  return ::ASN1_INTEGER_set_uint64(::X509_get_serialNumber(certificate), serial >> 1 | 1) == 1;
}

bool fill_certificate(X509* certificate, EVP_PKEY* key, const std::string& name, WallTime now,
                      std::chrono::hours validity) {
  const auto begin = std::chrono::system_clock::to_time_t(now - std::chrono::hours(1));
  const auto end = std::chrono::system_clock::to_time_t(now + validity);
  X509_NAME* subject = ::X509_get_subject_name(certificate);
  return ::X509_set_version(certificate, X509_VERSION_3) == 1 && set_serial(certificate) &&
         ::ASN1_TIME_set(::X509_getm_notBefore(certificate), begin) != nullptr &&
         ::ASN1_TIME_set(::X509_getm_notAfter(certificate), end) != nullptr &&
         ::X509_set_pubkey(certificate, key) == 1 &&
         ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(name.data()),
                                      static_cast<int>(name.size()), -1, 0) == 1 &&
         ::X509_set_issuer_name(certificate, subject) == 1 &&
         add_extension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
         add_extension(certificate, NID_key_usage, "critical,digitalSignature") &&
         add_extension(certificate, NID_ext_key_usage, "serverAuth") &&
         add_extension(certificate, NID_subject_alt_name, "DNS:" + name) &&
         ::X509_sign(certificate, key, ::EVP_sha256()) > 0;
}

std::string bio_content(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, size > 0 ? static_cast<std::size_t>(size) : 0};
}

}  // namespace

Status initialize_openssl() {
  static const bool complete = [] {
    if (::OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) return false;
    ::tzset();  // gmtime_r reads the time zone at its first call, which compares a certificate's dates
    // The generators that a server draws from, and the digest of remembered passwords.
    std::array<unsigned char, SHA256_DIGEST_LENGTH> bytes;
    return ::RAND_bytes(bytes.data(), 1) == 1 && ::RAND_priv_bytes(bytes.data(), 1) == 1 &&
           ::SHA256(bytes.data(), 1, bytes.data()) != nullptr;
  }();
  if (complete) return {};
  return fail(Code::kInternal, "cannot initialize OpenSSL: " + openssl_error());
}

std::string openssl_error() {
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  if (code == 0) return "TLS failed";
  std::array<char, 256> text{};
  ::ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

std::vector<CertificatePtr> parse_certificates(const std::string& pem) {
  std::vector<CertificatePtr> found;
  const auto bio = make_pem_bio(pem);
  while (CertificatePtr next{::PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)}) {
    found.push_back(std::move(next));
  }
  ::ERR_clear_error();
  return found;
}

KeyPtr parse_private_key(const std::string& pem) {
  // Without a callback OpenSSL asks for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  KeyPtr key(::PEM_read_bio_PrivateKey(make_pem_bio(pem).get(), nullptr, no_password, nullptr));
  ::ERR_clear_error();
  return key;
}

Result<KeyPair> make_self_signed_certificate(const std::string& name, WallTime now,
                                             std::chrono::hours validity) {
  GPULET_TRY(initialize_openssl());
  const KeyPtr key(EVP_EC_gen("P-256"));
  const CertificatePtr certificate(::X509_new());
  const BioPtr certificate_out(::BIO_new(::BIO_s_mem())), key_out(::BIO_new(::BIO_s_mem()));
  const bool made =
      key && certificate && certificate_out && key_out &&
      fill_certificate(certificate.get(), key.get(), name, now, validity) &&
      ::PEM_write_bio_X509(certificate_out.get(), certificate.get()) == 1 &&
      ::PEM_write_bio_PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1;
  ::ERR_clear_error();
  if (!made) return fail(Code::kInternal, "OpenSSL cannot make a certificate", name);
  return KeyPair{bio_content(certificate_out.get()), bio_content(key_out.get())};
}

}  // namespace gpulet::http
