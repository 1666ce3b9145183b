// Certificates for the tests of TLS: made in memory.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cctype>
#include <memory>
#include <string>

namespace gpulet {

struct Certificate {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;

  // Signed by `issuer`, or by itself when that is null; `address` is whom it is for, a numeric one or a name.
  // Good for `valid_s` seconds, and since as long ago.
  static Certificate make_certificate(const std::string& name, const Certificate* issuer,
                                      const std::string& address, long valid_s = 3600) {
    Certificate made{{EVP_EC_gen("P-256"), EVP_PKEY_free}, {X509_new(), X509_free}};
    X509* x = made.certificate.get();
    X509_set_version(x, X509_VERSION_3);
    static long serial = 1;
    ASN1_INTEGER_set(X509_get_serialNumber(x), serial++);
    X509_gmtime_adj(X509_getm_notBefore(x), -valid_s);
    X509_gmtime_adj(X509_getm_notAfter(x), valid_s);
    X509_set_pubkey(x, made.key.get());
    X509_NAME* subject = X509_get_subject_name(x);
    const auto* common_name = reinterpret_cast<const unsigned char*>(name.c_str());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, common_name, -1, -1, 0);
    X509_set_issuer_name(x, issuer ? X509_get_subject_name(issuer->certificate.get()) : subject);
    auto extend = [&](int id, const std::string& value) {
      X509V3_CTX context;
      X509V3_set_ctx(&context, issuer ? issuer->certificate.get() : x, x, nullptr, nullptr, 0);
      X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
      X509_add_ext(x, extension, -1);
      X509_EXTENSION_free(extension);
    };
    extend(NID_basic_constraints, issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (!address.empty()) extend(NID_subject_alt_name, (std::isdigit(address[0]) ? "IP:" : "DNS:") + address);
    X509_sign(x, issuer ? issuer->key.get() : made.key.get(), EVP_sha256());
    return made;
  }
  std::string pem() const {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    const std::string text(data, static_cast<std::size_t>(size));
    BIO_free(bio);
    return text;
  }
  std::string key_pem() const {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    const std::string text(data, static_cast<std::size_t>(size));
    BIO_free(bio);
    return text;
  }
};

}  // namespace gpulet
