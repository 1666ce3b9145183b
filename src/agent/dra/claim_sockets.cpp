#include "agent/dra/claim_sockets.h"

#include <string_view>
#include <utility>

#include "dra/claim_record.h"
#include "dra/device_pool.h"

namespace gpulet::agent {
namespace {

std::string_view instance_of(const Node& node) {
  const auto found = node.sources.environment.find("POD_UID");
  return found == node.sources.environment.end() ? std::string_view() : std::string_view(found->second);
}

std::string plugins_directory(const Node& node) { return node.config.gpulet.kubelet_dir + "/plugins"; }
std::string registry_directory(const Node& node) {
  return node.config.gpulet.kubelet_dir + "/plugins_registry";
}

}  // namespace

bool wants_claims(const Node& node) {
  const auto& settings = node.config.gpulet.dra;
  return settings.enabled || (node.client_config && dra::RecordStore(settings.record_dir).has_records());
}

bool has_own_sockets(const Node& node) { return !instance_of(node).empty(); }

dra::PluginIdentity claim_identity(const Node& node) {
  const std::string driver(dra::kDriverName);
  return {driver, dra::service_socket_path(plugins_directory(node), driver, instance_of(node))};
}

Result<std::unique_ptr<ClaimSockets>> ClaimSockets::open_sockets(Node& node) {
  const auto identity = claim_identity(node);
  dra::remove_dead_sockets(plugins_directory(node), registry_directory(node), identity.driver);
  std::unique_ptr<ClaimSockets> opened(new ClaimSockets());
  // The kubelet finds the registration last.
  for (const auto& path :
       {identity.endpoint,
        dra::registration_socket_path(registry_directory(node), identity.driver, instance_of(node))}) {
    GPULET_TRY_ASSIGN(auto socket, dra::ServedSocket::open_socket(node.loop, node.grpc, path));
    opened->sockets_.push_back(std::move(socket));
  }
  return opened;
}

ClaimSockets::~ClaimSockets() {
  while (!sockets_.empty()) sockets_.pop_back();  // the registration first
}

}  // namespace gpulet::agent
