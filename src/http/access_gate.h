// Decides who may use a server: TLS, client certificates, users with passwords. The rules are plain values
// with the files' contents in them, because the process that applies them may be unable to open files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "http/password_checker.h"
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

// The body of the 400 for a client that speaks plain HTTP to a server with TLS.
inline constexpr std::string_view kHttpsRequiredBody = "this port speaks HTTPS\n";

// Applies AccessRules, which can change at any time: the generation tells connections from before a change.
// One thread.
class AccessGate {
 public:
  // `runner` checks the passwords and must live longer; null: the thread that uses this object, which then
  // waits for each check, so only for servers without users.
  explicit AccessGate(CheckRunner* runner = nullptr)
      : runner_(runner), passwords_(std::make_unique<PasswordChecker>(PasswordChecker::Users{}, runner)) {}
  // Errors: as check_access_rules; then the previous rules stay.
  Status set_rules(AccessRules rules);

  bool is_encrypted() const { return tls_ != nullptr; }
  // The TLS transport of an accepted socket; null when out of memory. Precondition: is_encrypted().
  std::unique_ptr<Transport> accept_tls(int socket) const { return tls_->accept_socket(socket); }
  // Whether check_credentials() accepts only clients with a password.
  bool requires_password() const { return passwords_->has_users(); }
  // See PasswordChecker::check_password(). When the rules change, checks that wait are answered kThrottled.
  void check_credentials(std::string_view authorization, const PeerAddress& address, Time now,
                         PasswordChecker::VerdictCallback done) {
    passwords_->check_password(authorization, address, now, std::move(done));
  }
  const std::vector<std::pair<std::string, std::string>>& headers() const { return headers_; }
  std::uint64_t generation() const { return generation_; }

 private:
  CheckRunner* runner_;
  std::shared_ptr<TlsServerContext> tls_;
  std::unique_ptr<PasswordChecker> passwords_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::uint64_t generation_ = 0;
};

}  // namespace gpulet::http
