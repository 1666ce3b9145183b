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
constexpr int kCpuShare = 5;                        // checks take 1/5 of the time
// Checked for unknown users, so that the response time does not reveal which users exist.
const std::string kUnknownUserHash = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

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

bool PasswordChecker::verify_password(const std::string* hash, const std::string& password, Time now) {
  const auto before = std::chrono::steady_clock::now();
  const bool same = hash_matches(hash != nullptr ? *hash : kUnknownUserHash, password) && hash != nullptr;
  debt_ += std::chrono::steady_clock::now() - before;
  debt_at_ = now;
  return same;
}

PasswordChecker::Verdict PasswordChecker::check_password(std::string_view authorization, Time now) {
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
  std::string salted(reinterpret_cast<const char*>(salt_.data()), salt_.size());
  salted += both;
  Key key;
  ::SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), key.data());
  OPENSSL_cleanse(salted.data(), salted.size());
  if (const auto known = known_.find(key); known != known_.end()) {
    return known->second ? Verdict::kAccepted : Verdict::kRejected;
  }
  debt_ = std::max(Duration::zero(), debt_ - (now - debt_at_) / kCpuShare);
  debt_at_ = now;
  if (debt_ > kMaxCheckDebt) return Verdict::kThrottled;
  const std::string user = both.substr(0, colon);
  const auto found =
      std::find_if(users_.begin(), users_.end(), [&](const auto& entry) { return entry.first == user; });
  const bool right =
      verify_password(found != users_.end() ? &found->second : nullptr, both.substr(colon + 1), now);
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
