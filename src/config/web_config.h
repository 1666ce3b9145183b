// Prometheus' web config file: who may connect to the listener, in the format of its exporter-toolkit, so
// that the file that secures one exporter secures this one too. Certificates and keys are read into it: who
// uses them can open no file.
//
//   tls_server_config: cert_file, key_file (or cert, key as text), client_auth_type, client_ca_file
//   (client_ca),
//                      client_allowed_sans, min_version, max_version, cipher_suites,
//                      prefer_server_cipher_suites, curve_preferences
//   http_server_config: http2 (taken, HTTP/1.1 is what there is), headers
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

// A file's content, and where it is from.
struct PemText {
  std::string text;
  std::string about;  // the path; "tls_server_config.cert" for what the config file has in it
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
  std::vector<std::string> ciphers;                // OpenSSL's names, of TLS 1.2 and below
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

struct WebConfigReading {
  Result<WebConfig> config = WebConfig{};
  // Every file that it took, or would have taken, the config file first: a change of one may change the
  // result.
  std::vector<std::string> files;
};

// Relative paths in the file are below its folder. Errors, one line about "file:line:column" or a file of
// PEM: what the file cannot be read for; kInvalidArgument for a field that is unknown, missing or wrong, with
// what would do. A hash's or a certificate's inside is for web::check to judge.
WebConfigReading read_web_config(const std::string& file,
                                 const std::function<Result<std::string>(const std::string& path)>& read);
WebConfigReading read_web_config(const std::string& file);

}  // namespace gpulet::config
