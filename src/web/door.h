// Who may come in now: an Access at work. It can be changed at any time; what came in before is seen by its
// generation. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "web/access.h"
#include "web/passwords.h"
#include "web/tls.h"

namespace gpulet::web {

// The body of the 400 that a door of TLS has for who speaks plain HTTP.
inline constexpr std::string_view kSpeaksHttps = "this port speaks HTTPS\n";

class Door {
 public:
  // Errors: as web::check; the one before stays.
  Status set(Access access);

  bool encrypted() const { return tls_ != nullptr; }
  // Through TLS; null without memory. Precondition: encrypted().
  std::unique_ptr<Transport> accept(int socket) const { return tls_->accept(socket); }
  Passwords::Verdict check(std::string_view authorization, Time now) {
    return passwords_.check(authorization, now);
  }
  const std::vector<std::pair<std::string, std::string>>& headers() const { return headers_; }
  std::uint64_t generation() const { return generation_; }

 private:
  std::shared_ptr<TlsContext> tls_;
  Passwords passwords_{{}};
  std::vector<std::pair<std::string, std::string>> headers_;
  std::uint64_t generation_ = 0;
};

}  // namespace gpulet::web
