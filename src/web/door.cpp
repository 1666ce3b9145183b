#include "web/door.h"

namespace gpulet::web {

Status Door::set(Access access) {
  std::shared_ptr<TlsContext> tls;
  for (const auto& [name, hash] : access.users) GPULET_TRY(check_hash(name, hash));
  if (access.tls) {
    GPULET_TRY_ASSIGN(tls, TlsContext::create(*access.tls));
  }
  tls_ = std::move(tls);
  passwords_ = Passwords(std::move(access.users));
  headers_ = std::move(access.headers);
  ++generation_;
  return {};
}

}  // namespace gpulet::web
