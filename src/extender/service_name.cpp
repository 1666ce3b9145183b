#include "extender/service_name.h"

#include <algorithm>

#include "base/dns_name.h"
#include "base/text.h"
#include "http/access_gate.h"

namespace gpulet::extender {

std::optional<ServiceName> parse_service_name(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos || text.ends_with(':')) return std::nullopt;
  const auto parts = text::split(text.substr(slash + 1), ':');
  ServiceName service{.name_space = text.substr(0, slash), .name = {}, .scheme = {}, .port = {}};
  if (!is_dns_label(service.name_space) || parts.empty() || parts.size() > 3 ||
      !std::ranges::all_of(parts, is_dns_label))
    return std::nullopt;
  if (parts.size() == 3) service.scheme = parts[0];
  service.name = parts.size() == 3 ? parts[1] : parts[0];
  if (parts.size() > 1) service.port = parts.back();
  return service;
}

bool requires_https(const http::ClientResponse& response) {
  return response.status == 400 && response.body == http::kHttpsRequiredBody;
}

}  // namespace gpulet::extender
