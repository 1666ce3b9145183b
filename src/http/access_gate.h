// Decides who may use a server: TLS, client certificates, users with passwords. The rules are plain values
// with the files' contents in them, because the process that applies them may be unable to open files.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "http/transport.h"

namespace gpulet::http {

// As Prometheus' web config file has them (config/web_config.h).
struct AccessRules {
  std::optional<TlsServerConfig> tls{};                        // absent: plain HTTP
  std::vector<std::pair<std::string, std::string>> users{};    // name, bcrypt hash; empty: everybody
  std::vector<std::pair<std::string, std::string>> headers{};  // of every response; they replace the defaults
  friend bool operator==(const AccessRules&, const AccessRules&) = default;
};

// All texts together. Larger rules are not accepted.
inline constexpr std::size_t kMaxAccessRulesBytes = 4u << 20;

// Whether a server could apply the rules: they are not too large, each hash is a hash, and certificate and
// key belong together. Errors: kInvalidArgument, about the file or the user.
Status check_access_rules(const AccessRules& rules);

inline constexpr std::size_t kMaxUsers = 256;
// 2^14 rounds take a second; each step more doubles that.
inline constexpr unsigned kMaxBcryptCost = 14;
// By how much password checks may exceed their share of the time, so that a few logins at once are not
// delayed.
inline constexpr Duration kMaxCheckDebt = std::chrono::milliseconds(500);

// Errors: kInvalidArgument, about basic_auth_users.NAME, for a text that is no bcrypt hash or one that
// costs too much.
Status check_bcrypt_hash(const std::string& name, const std::string& hash);

// Checks passwords by bcrypt (crypt(3)) without letting anybody keep the process busy: results are
// remembered, and new passwords are checked for at most a fifth of the time.
class PasswordChecker {
 public:
  using Users = std::vector<std::pair<std::string, std::string>>;
  explicit PasswordChecker(Users users) : users_(std::move(users)) {}

  enum class Verdict { kAccepted, kRejected, kThrottled };
  // `authorization`: the value of the request's field, empty without one. kThrottled: too many new
  // passwords are being tried; one that was accepted before still is. Without users everybody is accepted.
  Verdict check_password(std::string_view authorization, Time now);

 private:
  using Key = std::array<unsigned char, 32>;
  bool verify_password(const std::string* hash, const std::string& password, Time now);

  Users users_;
  std::map<Key, bool> known_;  // bounded; keyed by a salted digest, so that no password stays in memory
  Key salt_{};
  bool salted_ = false;
  Duration debt_{};
  Time debt_at_{};
};

// The body of the 400 for a client that speaks plain HTTP to a server with TLS.
inline constexpr std::string_view kHttpsRequiredBody = "this port speaks HTTPS\n";

// Applies AccessRules, which can change at any time: the generation tells connections from before a change.
// One thread.
class AccessGate {
 public:
  // Errors: as check_access_rules; then the previous rules stay.
  Status set_rules(AccessRules rules);

  bool is_encrypted() const { return tls_ != nullptr; }
  // The TLS transport of an accepted socket; null when out of memory. Precondition: is_encrypted().
  std::unique_ptr<Transport> accept_tls(int socket) const { return tls_->accept_socket(socket); }
  PasswordChecker::Verdict check_credentials(std::string_view authorization, Time now) {
    return passwords_.check_password(authorization, now);
  }
  const std::vector<std::pair<std::string, std::string>>& headers() const { return headers_; }
  std::uint64_t generation() const { return generation_; }

 private:
  std::shared_ptr<TlsServerContext> tls_;
  PasswordChecker passwords_{{}};
  std::vector<std::pair<std::string, std::string>> headers_;
  std::uint64_t generation_ = 0;
};

}  // namespace gpulet::http
