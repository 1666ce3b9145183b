// Certificates and private keys as PEM texts, read and made with OpenSSL. Nothing here opens a file or asks
// for a password on the terminal.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::http {

using CertificatePtr = std::unique_ptr<X509, Deleter<::X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<::EVP_PKEY_free>>;

// Does everything that OpenSSL does at its first use in a process, such as opening files and seeding its
// random numbers, so that a sandbox may be entered afterwards. Leaves out the host's openssl.cnf, which may
// name modules to load into a root process, and the handler at the end of the process. Repeated calls do
// nothing. Errors: kInternal when there is no randomness.
Status initialize_openssl();

// The text of OpenSSL's oldest queued error; clears the queue.
std::string openssl_error();

// Every certificate of a PEM text, in order; empty where it holds none.
std::vector<CertificatePtr> parse_certificates(const std::string& pem);
// Null where `pem` holds no private key, or one with a password.
KeyPtr parse_private_key(const std::string& pem);

struct KeyPair {
  std::string certificate, key;  // PEM
};

// Of a self-signed certificate: longer than any process runs. Nobody verifies it, so an expiry would only
// break it.
inline constexpr std::chrono::hours kSelfSignedLifetime{10 * 365 * 24};

// A self-signed certificate for the DNS name `name`, on the curve P-256. It is valid from an hour before
// `now`, because clocks differ, until `validity` after it. Clients get encryption but cannot verify the
// server. Errors: kInternal when OpenSSL fails.
Result<KeyPair> make_self_signed_certificate(const std::string& name, WallTime now,
                                             std::chrono::hours validity);

}  // namespace gpulet::http
