#include "config/web_config.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/file.h"
#include "base/text.h"
#include "config/field_reader.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;
using yaml::Node;
using Named = std::pair<std::string_view, std::string_view>;

constexpr std::size_t kMaxPemBytes = 1u << 20;
constexpr std::size_t kMaxUsers = 256;

constexpr std::array<std::pair<std::string_view, ClientAuth>, 5> kClientAuth = {{
    {"NoClientCert", ClientAuth::kNoClientCert},
    {"RequestClientCert", ClientAuth::kRequestClientCert},
    {"RequireAnyClientCert", ClientAuth::kRequireAnyClientCert},
    {"VerifyClientCertIfGiven", ClientAuth::kVerifyClientCertIfGiven},
    {"RequireAndVerifyClientCert", ClientAuth::kRequireAndVerifyClientCert},
}};
constexpr std::array<std::pair<std::string_view, int>, 4> kVersions = {
    {{"TLS10", 0x0301}, {"TLS11", 0x0302}, {"TLS12", 0x0303}, {"TLS13", 0x0304}}};
// Go's names and OpenSSL's. As in Go, those of TLS 1.3 cannot be selected: all are enabled.
constexpr std::array<Named, 25> kCiphers = {{
    {"TLS_AES_128_GCM_SHA256", ""},
    {"TLS_AES_256_GCM_SHA384", ""},
    {"TLS_CHACHA20_POLY1305_SHA256", ""},
    {"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"},
    {"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"},
    {"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"},
    {"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"},
    {"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"},
    {"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"},
    {"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "ECDHE-ECDSA-CHACHA20-POLY1305"},
    {"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"},
    {"TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "ECDHE-ECDSA-AES128-SHA"},
    {"TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"},
    {"TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "ECDHE-ECDSA-AES256-SHA"},
    {"TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"},
    {"TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "ECDHE-ECDSA-AES128-SHA256"},
    {"TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"},
    {"TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"},
    {"TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"},
    {"TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"},
    {"TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"},
    {"TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"},
    {"TLS_RSA_WITH_3DES_EDE_CBC_SHA", "DES-CBC3-SHA"},
    {"TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", "ECDHE-RSA-DES-CBC3-SHA"},
    {"TLS_FALLBACK_SCSV", ""},
}};
constexpr std::array<Named, 4> kCurves = {
    {{"CurveP256", "P-256"}, {"CurveP384", "P-384"}, {"CurveP521", "P-521"}, {"X25519", "X25519"}}};
// The headers that may be set, with the allowed values where they are restricted (separated by "|").
constexpr std::array<Named, 5> kHeaders = {{
    {"Content-Security-Policy", ""},
    {"X-Frame-Options", "deny|sameorigin"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-XSS-Protection", ""},
    {"Strict-Transport-Security", ""},
}};

template <class Table>
std::string names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.emplace_back(name);
  return text::join(names, ", ");
}

// The value of a name of the table.
template <class Table>
auto read_choice(const Node& node, const std::string& field, const Table& table, Problems& problems)
    -> std::optional<std::remove_cvref_t<decltype(table[0].second)>> {
  for (const auto& [name, value] : table) {
    if (node.kind == NodeKind::kScalar && node.scalar == name) return value;
  }
  problems.add_error(node.position, field, expected_but_found("one of " + names_of(table), node));
  return std::nullopt;
}

std::vector<std::string> read_choices(const Node& node, const std::string& field,
                                      std::span<const Named> table, Problems& problems) {
  std::vector<std::string> chosen;
  if (!expect_kind(NodeKind::kSequence, "a list", node, field, problems)) return chosen;
  for (const auto& item : node.items) {
    const auto value = read_choice(item, field, table, problems);
    if (value && !value->empty()) chosen.emplace_back(*value);
  }
  return chosen;
}

std::vector<std::string> read_texts(const Node& node, const std::string& field, Problems& problems) {
  std::vector<std::string> texts;
  if (!expect_kind(NodeKind::kSequence, "a list", node, field, problems)) return texts;
  for (const auto& item : node.items) {
    if (auto text = read_text(item, field, problems)) texts.push_back(std::move(*text));
  }
  return texts;
}

class WebConfigReader {
 public:
  WebConfigReader(const std::string& file, const std::function<Result<std::string>(const std::string&)>& read)
      : file_(file), read_(read), problems_(file, false) {
    files_.push_back(file);
  }

  WebConfigResult read_result() {
    auto config = read_document();
    return {std::move(config), std::move(files_)};
  }

 private:
  Result<WebConfig> read_document() {
    GPULET_TRY_ASSIGN(const std::string text, read_(file_));
    GPULET_TRY_ASSIGN(const yaml::Document document, yaml::parse_yaml(text, file_));
    for (const auto& twice : document.duplicates)
      problems_.add_error(twice.position, twice.key, "is there twice");
    WebConfig config;
    if (document.root.kind != NodeKind::kNull &&
        expect_kind(NodeKind::kMapping, "a mapping", document.root, "", problems_)) {
      const MappingReader fields(document.root, "",
                                 {"tls_server_config", "http_server_config", "basic_auth_users"}, problems_);
      if (const Node* node = fields["tls_server_config"]) read_tls(*node, config);
      if (const Node* node = fields["http_server_config"]) read_http(*node, config);
      if (const Node* node = fields["basic_auth_users"]) read_users(*node, config);
    }
    auto errors = problems_.take_errors();
    if (!errors.empty()) return fail(std::move(errors.front()));
    return config;
  }

  // The PEM text of KEY_file or of KEY itself; empty if neither is set.
  PemText read_pem(const MappingReader& fields, const std::string& key, const Node& section) {
    const Node* file = fields[key + "_file"];
    const Node* inside = fields[key];
    if (file != nullptr && inside != nullptr) {
      problems_.add_error(section.position, fields.field_path(key),
                          "either " + key + " or " + key + "_file, not both");
      return {};
    }
    if (inside != nullptr) {
      return {read_text(*inside, fields.field_path(key), problems_).value_or(""), fields.field_path(key)};
    }
    if (file == nullptr) return {};
    const auto path = read_text(*file, fields.field_path(key + "_file"), problems_);
    if (!path || path->empty()) return {};
    const std::string whole =
        path->front() == '/' ? *path : file_.substr(0, file_.find_last_of('/') + 1) + *path;
    files_.push_back(whole);
    auto text = read_(whole);
    if (!text) {
      problems_.add_error(file->position, fields.field_path(key + "_file"), text.error().full_message());
      return {};
    }
    if (text->empty())
      problems_.add_error(file->position, fields.field_path(key + "_file"), whole + " is empty");
    return {std::move(*text), whole};
  }

  void read_tls(const Node& node, WebConfig& config) {
    if (!expect_kind(NodeKind::kMapping, "a mapping", node, "tls_server_config", problems_)) return;
    const MappingReader fields(node, "tls_server_config",
                               {"cert_file", "cert", "key_file", "key", "client_auth_type", "client_ca_file",
                                "client_ca", "client_allowed_sans", "min_version", "max_version",
                                "cipher_suites", "prefer_server_cipher_suites", "curve_preferences"},
                               problems_);
    auto& tls = config.tls.emplace();
    tls.certificate = read_pem(fields, "cert", node);
    tls.key = read_pem(fields, "key", node);
    tls.client_authorities = read_pem(fields, "client_ca", node);
    for (const auto& [key, pem] :
         {std::pair("cert_file", &tls.certificate), std::pair("key_file", &tls.key)}) {
      if (pem->source.empty())
        problems_.add_error(node.position, fields.field_path(key),
                            "is missing; TLS needs a certificate and its key");
    }
    if (const Node* value = fields["client_auth_type"]) {
      tls.client_auth = read_choice(*value, fields.field_path("client_auth_type"), kClientAuth, problems_)
                            .value_or(tls.client_auth);
    }
    if (const Node* value = fields["client_allowed_sans"]) {
      tls.client_allowed_sans = read_texts(*value, fields.field_path("client_allowed_sans"), problems_);
    }
    for (const auto& [key, version] :
         {std::pair("min_version", &tls.min_version), std::pair("max_version", &tls.max_version)}) {
      if (const Node* value = fields[key])
        *version = read_choice(*value, fields.field_path(key), kVersions, problems_).value_or(*version);
    }
    if (const Node* value = fields["cipher_suites"]) {
      tls.ciphers = read_choices(*value, fields.field_path("cipher_suites"), kCiphers, problems_);
    }
    if (const Node* value = fields["curve_preferences"]) {
      tls.curves = read_choices(*value, fields.field_path("curve_preferences"), kCurves, problems_);
    }
    if (const Node* value = fields["prefer_server_cipher_suites"]) {
      tls.prefer_server_ciphers =
          read_bool(*value, fields.field_path("prefer_server_cipher_suites"), problems_).value_or(true);
    }
    check_tls(tls, node);
  }

  void check_tls(const WebTls& tls, const Node& node) {
    if (tls.min_version > tls.max_version) {
      problems_.add_error(node.position, "tls_server_config.min_version", "is above max_version");
    }
    const bool verifies = tls.client_auth == ClientAuth::kVerifyClientCertIfGiven ||
                          tls.client_auth == ClientAuth::kRequireAndVerifyClientCert;
    const bool authorities = !tls.client_authorities.source.empty();
    if (verifies && !authorities) {
      problems_.add_error(node.position, "tls_server_config.client_ca_file",
                          "is missing; certificates are verified by it");
    }
    if (authorities && tls.client_auth == ClientAuth::kNoClientCert) {
      problems_.add_error(node.position, "tls_server_config.client_auth_type",
                          "is missing; with client_ca_file RequireAndVerifyClientCert will do");
    }
    if (!tls.client_allowed_sans.empty() && !verifies) {
      problems_.add_error(node.position, "tls_server_config.client_allowed_sans",
                          "needs client_auth_type RequireAndVerifyClientCert or VerifyClientCertIfGiven");
    }
  }

  void read_http(const Node& node, WebConfig& config) {
    if (!expect_kind(NodeKind::kMapping, "a mapping", node, "http_server_config", problems_)) return;
    const MappingReader fields(node, "http_server_config", {"http2", "headers"}, problems_);
    if (const Node* value = fields["http2"])
      static_cast<void>(read_bool(*value, fields.field_path("http2"), problems_));
    const Node* headers = fields["headers"];
    const std::string path = fields.field_path("headers");
    if (headers == nullptr || !expect_kind(NodeKind::kMapping, "a mapping", *headers, path, problems_))
      return;
    for (const auto& entry : headers->entries) {
      const auto known = std::find_if(kHeaders.begin(), kHeaders.end(), [&](const Named& header) {
        return text::lower(header.first) == text::lower(entry.key);
      });
      if (known == kHeaders.end()) {
        problems_.add_error(
            entry.position, path,
            "'" + entry.key.substr(0, 64) + "' cannot be set; these can: " + names_of(kHeaders));
        continue;
      }
      const auto value =
          entry.value.kind == NodeKind::kNull ? "" : read_text(entry.value, path, problems_).value_or("");
      if (value.empty()) continue;
      const auto allowed = text::split(known->second, '|');
      const bool text_ok =
          std::all_of(value.begin(), value.end(), [](unsigned char c) { return c >= ' ' && c < 0x7F; });
      if (!text_ok || (!allowed.empty() &&
                       std::find(allowed.begin(), allowed.end(), text::lower(value)) == allowed.end())) {
        problems_.add_error(entry.value.position, path + "." + std::string(known->first),
                            allowed.empty() ? "printable ASCII of one line will do"
                                            : expected_but_found(text::join(allowed, " or "), entry.value));
        continue;
      }
      config.headers.emplace_back(known->first, value);
    }
  }

  void read_users(const Node& node, WebConfig& config) {
    if (!expect_kind(NodeKind::kMapping, "a mapping of names to bcrypt hashes", node, "basic_auth_users",
                     problems_))
      return;
    if (node.entries.size() > kMaxUsers) {
      problems_.add_error(
          node.position, "basic_auth_users",
          std::to_string(node.entries.size()) + " users; at most " + std::to_string(kMaxUsers) + " will do");
      return;
    }
    for (const auto& entry : node.entries) {
      if (entry.key.empty() || entry.key.find(':') != std::string::npos) {
        problems_.add_error(entry.position, "basic_auth_users",
                            "a user's name is not empty and has no colon");
        continue;
      }
      auto hash = read_text(entry.value, "basic_auth_users." + entry.key, problems_);
      if (hash) config.users.emplace_back(entry.key, std::move(*hash));
    }
  }

  const std::string& file_;
  const std::function<Result<std::string>(const std::string&)>& read_;
  Problems problems_;
  std::vector<std::string> files_;
};

}  // namespace

WebConfigResult read_web_config(const std::string& file,
                                const std::function<Result<std::string>(const std::string& path)>& read) {
  return WebConfigReader(file, read).read_result();
}

WebConfigResult read_web_config(const std::string& file) {
  return read_web_config(file, [](const std::string& path) { return read_file(path, kMaxPemBytes); });
}

}  // namespace gpulet::config
