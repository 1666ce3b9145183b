#include "http/access_gate.h"

#include <crypt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "base/text.h"
#include "http/transport.h"

namespace gpulet::http {
namespace {

constexpr std::size_t kMaxRememberedResults = 256;  // of either outcome
constexpr std::size_t kMaxPassword = 72;            // bcrypt reads no more
constexpr std::size_t kMaxClients = 1024;           // whose budgets are known
// By how much checks may exceed their share, so that a few logins at once are not delayed.
constexpr Duration kMaxAddressDebt = std::chrono::milliseconds(250);
constexpr Duration kMaxDebt = std::chrono::milliseconds(500);  // of a name, and of all
constexpr std::size_t kCostAt = 4;                             // in "$2y$10$…"

// A hash that no password has, of this cost.
std::string hash_of_cost(unsigned cost) {
  std::string hash = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";
  hash[kCostAt] = static_cast<char>('0' + cost / 10);
  hash[kCostAt + 1] = static_cast<char>('0' + cost % 10);
  return hash;
}

unsigned cost_of(const std::string& hash) {
  const auto cost = hash.size() > kCostAt + 2 ? text::parse_unsigned(hash.substr(kCostAt, 2)) : std::nullopt;
  return static_cast<unsigned>(std::min<std::uint64_t>(cost.value_or(0), kMaxBcryptCost));
}

bool hash_matches(const std::string& hash, const std::string& password) {
  const auto data = std::make_unique<crypt_data>();
  const char* made = ::crypt_rn(password.c_str(), hash.c_str(), data.get(), sizeof *data);
  const bool same = made != nullptr && hash == std::string_view(made).substr(0, hash.size()) &&
                    std::string_view(made).size() == hash.size();
  OPENSSL_cleanse(data.get(), sizeof *data);
  return same;
}

}  // namespace

Status check_bcrypt_hash(const std::string& name, const std::string& hash) {
  const std::string about = "basic_auth_users." + name;
  const bool form = hash.size() == 60 && hash[0] == '$' && hash[1] == '2' &&
                    std::string_view("abxy").find(hash[2]) != std::string::npos && hash[3] == '$' &&
                    hash[6] == '$';
  const auto cost = form ? text::parse_unsigned(hash.substr(4, 2)) : std::nullopt;
  const bool digits = form && std::all_of(hash.begin() + 7, hash.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '.' || c == '/';
                      });
  if (!cost || !digits) {
    return fail(Code::kInvalidArgument,
                "not a bcrypt hash; `htpasswd -nBC 10 " + name + "` prints one that begins with $2y$10$",
                about);
  }
  if (*cost < 4 || *cost > kMaxBcryptCost) {
    return fail(Code::kInvalidArgument,
                "the bcrypt cost is " + std::to_string(*cost) + ", must be 4 to " +
                    std::to_string(kMaxBcryptCost) + ": each check would take seconds",
                about);
  }
  return {};
}

Duration TimeBudget::debt_at(Time now) const {
  return std::max(Duration::zero(), debt_ - std::chrono::duration_cast<Duration>((now - at_) * share_));
}

void TimeBudget::charge(Time now, Duration used) {
  debt_ = debt_at(now) + used;
  at_ = now;
}

PasswordChecker::PasswordChecker(Users users) : users_(std::move(users)) {
  for (const auto& [name, hash] : users_) cost_ = std::max(cost_, cost_of(hash));
}

// 2^cost_ rounds in any case: what a cheaper hash leaves is 2^c + 2^(c+1) + … + 2^(cost_-1).
bool PasswordChecker::verify_password(const std::string& user, const std::string& password) const {
  const auto found = std::ranges::find(users_, user, [](const auto& entry) { return entry.first; });
  if (found == users_.end()) {
    static_cast<void>(hash_matches(hash_of_cost(cost_), password));
    return false;
  }
  const bool same = hash_matches(found->second, password);
  for (unsigned cost = cost_of(found->second); cost < cost_; ++cost)
    static_cast<void>(hash_matches(hash_of_cost(cost), password));
  return same;
}

PasswordChecker::Key PasswordChecker::salted_digest(std::string_view text) const {
  std::string salted(reinterpret_cast<const char*>(salt_.data()), salt_.size());
  salted += text;
  Key key;
  ::SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), key.data());
  OPENSSL_cleanse(salted.data(), salted.size());
  return key;
}

PasswordChecker::Client& PasswordChecker::client_at(const PeerAddress& address, Time now) {
  if (clients_.size() >= kMaxClients && !clients_.contains(address)) {
    std::erase_if(clients_, [now](const auto& entry) {
      return !entry.second.accepted && entry.second.budget.debt_at(now) == Duration::zero();
    });
    if (clients_.size() >= kMaxClients) clients_.clear();
  }
  return clients_[address];
}

PasswordChecker::Verdict PasswordChecker::check_password(std::string_view authorization,
                                                         const PeerAddress& address, Time now) {
  if (users_.empty()) return Verdict::kAccepted;
  if (text::lower(authorization.substr(0, 6)) != "basic ") return Verdict::kRejected;
  const std::string both = text::decode_base64(text::trim(authorization.substr(6)));
  const auto colon = both.find(':');
  if (colon == std::string::npos || both.size() - colon - 1 > kMaxPassword ||
      both.find('\0') != std::string::npos) {
    return Verdict::kRejected;
  }
  if (!salted_) {
    if (RAND_bytes(salt_.data(), static_cast<int>(salt_.size())) != 1) return Verdict::kThrottled;
    salted_ = true;
  }
  const Key key = salted_digest(both);
  if (const auto known = known_.find(key); known != known_.end()) {
    return known->second ? Verdict::kAccepted : Verdict::kRejected;
  }
  const std::string user = both.substr(0, colon);
  Client& client = client_at(address, now);
  // By the name as it was given, so that being throttled does not reveal who is a user either.
  TimeBudget& name = names_[salted_digest(user)[0] % kNames];
  const bool others = client.accepted || (name.allows(now, kMaxDebt) && total_.allows(now, kMaxDebt));
  if (!client.budget.allows(now, kMaxAddressDebt) || !others) return Verdict::kThrottled;
  const auto before = std::chrono::steady_clock::now();
  const bool right = verify_password(user, both.substr(colon + 1));
  const Duration used = std::chrono::steady_clock::now() - before;
  for (auto* budget : {&client.budget, &name, &total_}) budget->charge(now, used);
  client.accepted |= right;
  // Rejected ones are dropped first: a guessing client causes many of them.
  if (known_.size() >= kMaxRememberedResults)
    std::erase_if(known_, [](const auto& entry) { return !entry.second; });
  if (known_.size() >= kMaxRememberedResults) known_.clear();
  known_[key] = right;
  return right ? Verdict::kAccepted : Verdict::kRejected;
}

Status check_access_rules(const AccessRules& rules) {
  std::size_t bytes = 0;
  const auto count = [&bytes](const std::string& text) { bytes += text.size() + 4; };
  for (const auto* pairs : {&rules.users, &rules.headers}) {
    for (const auto& [name, value] : *pairs) count(name), count(value);
  }
  if (rules.tls) {
    for (const auto* text : {&rules.tls->certificate, &rules.tls->key, &rules.tls->client_authorities})
      count(*text);
    for (const auto& name : rules.tls->client_names) count(name);
  }
  if (bytes > kMaxAccessRulesBytes) {
    return fail(Code::kInvalidArgument, "certificates, users and headers together are larger than 4 MiB");
  }
  for (const auto& [name, hash] : rules.users) GPULET_TRY(check_bcrypt_hash(name, hash));
  if (rules.tls) GPULET_TRY(TlsServerContext::create_context(*rules.tls));
  return {};
}

Status AccessGate::set_rules(AccessRules rules) {
  std::shared_ptr<TlsServerContext> tls;
  for (const auto& [name, hash] : rules.users) GPULET_TRY(check_bcrypt_hash(name, hash));
  if (rules.tls) {
    GPULET_TRY_ASSIGN(tls, TlsServerContext::create_context(*rules.tls));
  }
  tls_ = std::move(tls);
  passwords_ = PasswordChecker(std::move(rules.users));
  headers_ = std::move(rules.headers);
  ++generation_;
  return {};
}

}  // namespace gpulet::http
