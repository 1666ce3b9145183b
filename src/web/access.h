// Who may connect to the listener and how: TLS, client certificates, users with passwords, further headers.
// Plain values with everything in them, since the child that uses them can open no file; the agent fills them
// from Prometheus' web config file (config/web_config.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::web {

// Whether a client must show a certificate; names and meanings as Go's tls.ClientAuthType has them.
enum class ClientCertificates { kNone, kRequest, kRequireAny, kVerifyIfGiven, kRequireAndVerify };

struct Tls {
  // As PEM; and for errors, where each is from.
  std::string certificate{}, key{}, client_authorities{};
  std::string certificate_about{}, key_about{}, client_authorities_about{};
  ClientCertificates clients = ClientCertificates::kNone;
  std::vector<std::string>
      client_names{};  // one of these must be among the client's subject alternative names
  int min_version = 0x0303, max_version = 0x0304;  // as on the wire: TLS 1.0 is 0x0301
  std::string ciphers{};  // of TLS 1.2 and below, OpenSSL's names with colons; empty: the library's
  std::string curves{};   // OpenSSL's names with colons; empty: the library's
  bool prefer_server_ciphers = true;
  friend bool operator==(const Tls&, const Tls&) = default;
};

struct Access {
  std::optional<Tls> tls{};                                  // absent: plain HTTP
  std::vector<std::pair<std::string, std::string>> users{};  // name, bcrypt hash; empty: everybody
  std::vector<std::pair<std::string, std::string>>
      headers{};  // on every answer, in place of ours of that name
  friend bool operator==(const Access&, const Access&) = default;
};

// All of an Access as bytes. Larger ones are not taken.
inline constexpr std::size_t kMaxAccessBytes = 4u << 20;

std::string encode(const Access& access);
// Errors: kInvalidArgument for bytes that encode() did not make.
Result<Access> decode_access(std::string_view bytes);

// Whether the listener could serve by it: certificate and key belong together, every hash is one.
// Errors: kInvalidArgument, about the file.
Status check(const Access& access);

}  // namespace gpulet::web
