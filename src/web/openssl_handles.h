// OpenSSL's objects, each freed by its owner. For this room's .cpp files.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

#include "base/deleter.h"

namespace gpulet::web {

using BioPtr = std::unique_ptr<BIO, Deleter<::BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, Deleter<::X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<::EVP_PKEY_free>>;

}  // namespace gpulet::web
