#include "cluster/access.h"

#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::cluster {
Result<std::optional<Access>> in_cluster_access(
    const std::map<std::string, std::string, std::less<>>& environment, const std::string& service_account) {
  auto value = [&](std::string_view name) {
    const auto it = environment.find(name);
    return it == environment.end() ? std::string() : it->second;
  };
  Access access;
  access.host = value("KUBERNETES_SERVICE_HOST");
  if (access.host.empty()) return std::nullopt;
  if (const std::string port = value("KUBERNETES_SERVICE_PORT"); !port.empty()) {
    const auto number = text::parse_unsigned(port);
    if (!number || *number == 0 || *number > 65'535) {
      return fail(Code::kFailedPrecondition, "\"" + port + "\" is not a port", "KUBERNETES_SERVICE_PORT");
    }
    access.port = static_cast<std::uint16_t>(*number);
  }
  access.node_name = value("NODE_NAME");
  if (access.node_name.empty()) {
    return fail(Code::kFailedPrecondition, "not set; the Pod's manifest must set it from spec.nodeName",
                "NODE_NAME");
  }
  access.ca_file = service_account + "/ca.crt";
  access.token_file = service_account + "/token";
  for (const std::string& file : {access.ca_file, access.token_file}) {
    if (::access(file.c_str(), R_OK) != 0) {
      return fail(Code::kFailedPrecondition,
                  "cannot be read; does the Pod have automountServiceAccountToken?", file);
    }
  }
  if (const auto name_space = read_file(service_account + "/namespace")) {
    if (const auto trimmed = text::trim(*name_space); !trimmed.empty()) access.pod_namespace = trimmed;
  }
  return access;
}

}  // namespace gpulet::cluster
