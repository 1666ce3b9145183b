// Reads Prometheus' web config file (TLS and basic authentication of a listener, exporter-toolkit's format).
// Certificates and keys are read into the result, because the listener process cannot open files.
//
//   tls_server_config: cert_file, key_file (or cert, key as text), client_auth_type, client_ca_file
//   (client_ca),
//                      client_allowed_sans, min_version, max_version, cipher_suites,
//                      prefer_server_cipher_suites, curve_preferences
//   http_server_config: http2 (accepted; only HTTP/1.1 is served), headers
//   basic_auth_users: {name: bcrypt hash}
// Source: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::config {

// PEM text and its origin.
struct PemText {
  std::string text;
  std::string source;  // the path, or "tls_server_config.cert" for inline text
  friend bool operator==(const PemText&, const PemText&) = default;
};

enum class ClientAuth {
  kNoClientCert,
  kRequestClientCert,
  kRequireAnyClientCert,
  kVerifyClientCertIfGiven,
  kRequireAndVerifyClientCert,
};

struct WebTls {
  PemText certificate, key, client_authorities;
  ClientAuth client_auth = ClientAuth::kNoClientCert;
  std::vector<std::string> client_allowed_sans;
  int min_version = 0x0303, max_version = 0x0304;  // as on the wire: TLS 1.0 is 0x0301
  std::vector<std::string> ciphers;                // OpenSSL's names, for TLS 1.2 and below
  std::vector<std::string> curves;                 // OpenSSL's names
  bool prefer_server_ciphers = true;
  friend bool operator==(const WebTls&, const WebTls&) = default;
};
struct WebConfig {
  std::optional<WebTls> tls;  // absent: plain HTTP
  std::vector<std::pair<std::string, std::string>> users;
  std::vector<std::pair<std::string, std::string>> headers;
  friend bool operator==(const WebConfig&, const WebConfig&) = default;
};

struct WebConfigResult {
  Result<WebConfig> config = WebConfig{};
  // Every file that the result depends on, the config file first; missing ones included.
  std::vector<std::string> files;
};

// Relative paths are below the directory of the file. Errors, about "file:line:column" or a PEM file: read
// errors; kInvalidArgument for an unknown, missing or invalid field, with the expected value. Hashes and
// certificates are checked later, by web::.
WebConfigResult read_web_config(const std::string& file,
                                const std::function<Result<std::string>(const std::string& path)>& read);
WebConfigResult read_web_config(const std::string& file);

}  // namespace gpulet::config
