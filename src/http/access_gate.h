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

// Where a client connects from: the bytes of its IP address; empty for a Unix socket.
using PeerAddress = std::string;

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
// Errors: kInvalidArgument, about basic_auth_users.NAME, for a text that is no bcrypt hash or one that
// costs too much.
Status check_bcrypt_hash(const std::string& name, const std::string& hash);

// A share of the time that may be used, with a debt up to which it may be exceeded for a moment.
class TimeBudget {
 public:
  explicit TimeBudget(double share) : share_(share) {}
  // Whether the debt at `now` is below `most`. One use of any length is then allowed.
  bool allows(Time now, Duration most) const { return debt_at(now) <= most; }
  void charge(Time now, Duration used);
  Duration debt_at(Time now) const;

 private:
  double share_;
  Duration debt_{};
  Time at_{};
};

// Checks passwords by bcrypt (crypt(3)) without letting anybody keep the process busy or keep others out:
// results are remembered, and new passwords are checked for at most a fifth of the time, a twentieth for one
// address, a tenth for one name. Each check takes as long as that of the most expensive hash, also for names
// that are no user's, so that times do not reveal who is a user.
class PasswordChecker {
 public:
  using Users = std::vector<std::pair<std::string, std::string>>;
  explicit PasswordChecker(Users users);

  enum class Verdict { kAccepted, kRejected, kThrottled };
  // `authorization`: the value of the request's field, empty without one. kThrottled: too many new
  // passwords are being tried, from this address or altogether; one that was accepted before still is, and
  // an address from which one was accepted is only throttled for itself. Without users everybody is accepted.
  Verdict check_password(std::string_view authorization, const PeerAddress& address, Time now);

 private:
  using Key = std::array<unsigned char, 32>;
  static constexpr double kAddressShare = 0.05, kNameShare = 0.1, kTotalShare = 0.2;
  static constexpr std::size_t kNames = 64;  // budgets that names share, by their digest
  struct Client {
    TimeBudget budget{kAddressShare};
    bool accepted = false;  // a password of a user
  };

  Key salted_digest(std::string_view text) const;
  Client& client_at(const PeerAddress& address, Time now);
  bool verify_password(const std::string& user, const std::string& password) const;

  Users users_;
  unsigned cost_ = 0;          // the greatest of all users
  std::map<Key, bool> known_;  // bounded; keyed by a salted digest, so that no password stays in memory
  std::map<PeerAddress, Client> clients_;  // bounded
  std::vector<TimeBudget> names_ = std::vector<TimeBudget>(kNames, TimeBudget(kNameShare));
  TimeBudget total_{kTotalShare};
  Key salt_{};
  bool salted_ = false;
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
  PasswordChecker::Verdict check_credentials(std::string_view authorization, const PeerAddress& address,
                                             Time now) {
    return passwords_.check_password(authorization, address, now);
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
