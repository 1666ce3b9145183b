#include "config/web_config.h"

#include <gtest/gtest.h>

#include <map>

namespace gpulet::config {
namespace {

const std::string kFile = "/etc/gpulet/web.yml";

WebConfigResult reading_of(const std::string& text, std::map<std::string, std::string> files = {}) {
  files[kFile] = text;
  files.emplace("/etc/gpulet/tls.crt", "CERTIFICATE");
  files.emplace("/secret/tls.key", "KEY");
  files.emplace("/etc/gpulet/ca.crt", "AUTHORITY");
  return read_web_config(kFile, [files](const std::string& path) -> Result<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return fail(Code::kNotFound, "no such file", path);
    return found->second;
  });
}

TEST(WebConfig, AMistakeIsOneLineWhateverTheValue) {
  const auto scalar = reading_of("server :&a\n\n  $\n");
  ASSERT_FALSE(scalar.config);
  EXPECT_EQ(scalar.config.error().full_message(), kFile + ":1:1: expected a mapping, found 'server :&a\\n$'");
  const auto key = reading_of("\"a\\r\\nb\": 1\n");
  ASSERT_FALSE(key.config);
  EXPECT_EQ(key.config.error().full_message().find_first_of("\r\n"), std::string::npos);
  EXPECT_NE(key.config.error().full_message().find("a\\r\\nb"), std::string::npos)
      << key.config.error().full_message();
}

TEST(WebConfig, ReadsPrometheusFormat) {
  const auto reading = reading_of(R"(
tls_server_config:
  cert_file: tls.crt
  key_file: /secret/tls.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.monitoring.svc]
  min_version: TLS13
  max_version: TLS13
  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP256, X25519]
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
    X-XSS-Protection: ""
basic_auth_users:
  alice: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi
  bob: $2y$10$AaaauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi
)");
  ASSERT_TRUE(reading.config) << reading.config.error().full_message();
  const auto& config = *reading.config;
  ASSERT_TRUE(config.tls);
  EXPECT_EQ(config.tls->certificate, (PemText{"CERTIFICATE", "/etc/gpulet/tls.crt"}));
  EXPECT_EQ(config.tls->key, (PemText{"KEY", "/secret/tls.key"}));
  EXPECT_EQ(config.tls->client_authorities.text, "AUTHORITY");
  EXPECT_EQ(config.tls->client_auth, ClientAuth::kRequireAndVerifyClientCert);
  EXPECT_EQ(config.tls->client_allowed_sans, std::vector<std::string>{"prometheus.monitoring.svc"});
  EXPECT_EQ(config.tls->min_version, 0x0304);
  EXPECT_EQ(config.tls->ciphers, std::vector<std::string>{"ECDHE-RSA-AES128-GCM-SHA256"});
  EXPECT_EQ(config.tls->curves, (std::vector<std::string>{"P-256", "X25519"}));
  EXPECT_FALSE(config.tls->prefer_server_ciphers);
  EXPECT_EQ(config.users.size(), 2u);
  EXPECT_EQ(config.users[1].first, "bob");
  EXPECT_EQ(config.headers,
            (std::vector<std::pair<std::string, std::string>>{
                {"Strict-Transport-Security", "max-age=31536000"}, {"X-Frame-Options", "deny"}}));
  EXPECT_EQ(reading.files, (std::vector<std::string>{kFile, "/etc/gpulet/tls.crt", "/secret/tls.key",
                                                     "/etc/gpulet/ca.crt"}));
}

TEST(WebConfig, EmptyFileAllowsEverybodyAndInlinePemWorks) {
  EXPECT_EQ(*reading_of("").config, WebConfig{});
  EXPECT_EQ(*reading_of("# nothing\n").config, WebConfig{});
  const auto inside = reading_of("tls_server_config: {cert: |\n  A\n, key: B}").config;
  EXPECT_FALSE(inside);  // a block scalar is not allowed in a flow mapping
  const auto both = reading_of("tls_server_config:\n  cert: A\n  key: B\n").config;
  ASSERT_TRUE(both);
  EXPECT_EQ(both->tls->certificate, (PemText{"A", "tls_server_config.cert"}));
}

TEST(WebConfig, ErrorsAreOneLineWithTheExpectedValue) {
  const std::string tls = "tls_server_config:\n  cert_file: tls.crt\n  key_file: /secret/tls.key\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tls_server_confg: {}",
       "/etc/gpulet/web.yml:1:1: unknown key 'tls_server_confg'; did you mean tls_server_config?"},
      {"[]", "/etc/gpulet/web.yml:1:1: expected a mapping, found a list"},
      {"tls_server_config: {}",
       "/etc/gpulet/web.yml:1:20: tls_server_config.cert_file: is missing; TLS needs a certificate and its "
       "key"},
      {"tls_server_config: {cert_file: tls.crt}",
       "/etc/gpulet/web.yml:1:20: tls_server_config.key_file: is missing; TLS needs a certificate and its "
       "key"},
      {"tls_server_config:\n  cert_file: away.crt\n  key_file: /secret/tls.key\n",
       "/etc/gpulet/web.yml:2:14: tls_server_config.cert_file: /etc/gpulet/away.crt: no such file"},
      {tls + "  min_version: TLS9\n",
       "/etc/gpulet/web.yml:4:16: tls_server_config.min_version: expected one of TLS10, TLS11, TLS12, TLS13, "
       "found 'TLS9'"},
      {tls + "  min_version: TLS13\n  max_version: TLS12\n",
       "/etc/gpulet/web.yml:2:3: tls_server_config.min_version: is above max_version"},
      {tls + "  client_auth_type: RequireAndVerifyClientCert\n",
       "/etc/gpulet/web.yml:2:3: tls_server_config.client_ca_file: is missing; certificates are verified by "
       "it"},
      {tls + "  client_ca_file: ca.crt\n",
       "/etc/gpulet/web.yml:2:3: tls_server_config.client_auth_type: is missing; with client_ca_file "
       "RequireAndVerifyClientCert will do"},
      {tls + "  key: K\n",
       "/etc/gpulet/web.yml:2:3: tls_server_config.key: either key or key_file, not both"},
      {"http_server_config: {headers: {Server: x}}",
       "/etc/gpulet/web.yml:1:32: http_server_config.headers: 'Server' cannot be set; these can: "
       "Content-Security-Policy, "
       "X-Frame-Options, X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security"},
      {"http_server_config: {headers: {X-Frame-Options: allow}}",
       "/etc/gpulet/web.yml:1:49: http_server_config.headers.X-Frame-Options: expected deny or sameorigin, "
       "found 'allow'"},
      {"http_server_config: {headers: {X-XSS-Protection: \"a\\r\\nb\"}}",
       "/etc/gpulet/web.yml:1:50: http_server_config.headers.X-XSS-Protection: printable ASCII of one line "
       "will do"},
      {"basic_auth_users: [alice]",
       "/etc/gpulet/web.yml:1:19: basic_auth_users: expected a mapping of names to bcrypt hashes, found a "
       "list"},
      {"basic_auth_users: {\"a:b\": x}",
       "/etc/gpulet/web.yml:1:20: basic_auth_users: a user's name is not empty and has no colon"},
      {"basic_auth_users: {a: x, a: y}", "/etc/gpulet/web.yml:1:26: a: is there twice"},
  };
  for (const auto& [text, message] : cases) {
    const auto reading = reading_of(text);
    ASSERT_FALSE(reading.config) << text;
    EXPECT_EQ(reading.config.error().full_message(), message) << text;
    EXPECT_EQ(reading.files.front(), kFile);
  }
  // A missing file is watched too.
  EXPECT_EQ(reading_of("tls_server_config: {cert_file: away.crt}").files.back(), "/etc/gpulet/away.crt");
}

}  // namespace
}  // namespace gpulet::config
