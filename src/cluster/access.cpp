#include "cluster/access.h"

#include <limits.h>
#include <unistd.h>

#include <array>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::cluster {
Result<std::optional<Access>> in_cluster_access(
    const std::map<std::string, std::string, std::less<>>& environment, const std::string& service_account,
    OfNode of_node) {
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
  if (access.node_name.empty() && of_node == OfNode::kYes) {
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

Result<std::optional<Access>> find_access(const std::map<std::string, std::string, std::less<>>& environment,
                                          OfNode of_node) {
  GPULET_TRY_ASSIGN(auto inside, in_cluster_access(environment, kServiceAccount, of_node));
  if (inside) return inside;
  const auto file = environment.find("KUBECONFIG");
  if (file == environment.end() || file->second.empty()) return std::nullopt;
  GPULET_TRY_ASSIGN(Access access, access_from_kubeconfig(text::split(file->second, ':').front()));
  if (of_node == OfNode::kNo) return access;
  const auto node = environment.find("NODE_NAME");
  if (node != environment.end() && !node->second.empty()) {
    access.node_name = node->second;
    return access;
  }
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    return fail(errno_error("cannot ask", errno, "hostname"));
  access.node_name = text::lower(name.data());
  return access;
}

}  // namespace gpulet::cluster
