#include "http/access_gate.h"

#include <memory>
#include <utility>

namespace gpulet::http {

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
  const auto before =
      std::exchange(passwords_, std::make_unique<PasswordChecker>(std::move(rules.users), runner_));
  headers_ = std::move(rules.headers);
  ++generation_;
  before->cancel_checks();
  return {};
}

}  // namespace gpulet::http
