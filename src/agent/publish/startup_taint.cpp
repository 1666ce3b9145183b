#include "agent/publish/startup_taint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace gpulet::agent {

using nlohmann::json;

std::optional<std::string> startup_wait_reason(const StartupState& state,
                                               const std::map<std::string, std::string>& allocatable) {
  if (!state.config_known) return "the node's config and labels are not known";
  if (state.without_gpu) return std::nullopt;
  if (!state.driver_answers) return "the driver does not answer";
  if (!state.health_known) return "the health of the GPUs is not known";
  if (state.mig_changing) return "a MIG layout is being applied";
  if (state.all_excluded) return std::nullopt;
  if (state.claim_devices && *state.claim_devices == 0)
    return "the API server shows no device in the node's ResourceSlices";
  bool any = state.claim_devices.has_value();
  for (const auto& [resource, healthy] : state.healthy) {
    if (healthy == 0) continue;
    any = true;
    const auto shown = allocatable.find(resource);
    if (shown == allocatable.end() || shown->second.empty() || shown->second == "0")
      return resource + " is not allocatable on the Node";
  }
  if (!any) return "no healthy device is offered";
  return std::nullopt;
}

StartupTaint::StartupTaint(StartupTaintPorts ports, std::string key, StartupTaintTiming timing)
    : ports_(std::move(ports)),
      key_(std::move(key)),
      timing_(timing),
      watcher_(k8s::ObjectWatcher::watch_object(ports_.loop, ports_.access,
                                                {.collection = "/api/v1/nodes",
                                                 .name = ports_.access.node_name,
                                                 .description = "this node's startup taint",
                                                 .resource = "nodes"},
                                                timing_.watch, [this](const json& node) { on_node(node); })) {
}

void StartupTaint::on_node(const json& node) {
  const auto& taints = json_member(json_member(node, "spec"), "taints");
  is_tainted_ = taints.is_array() && std::ranges::any_of(taints, [&](const json& taint) {
                  return json_text(json_member(taint, "key")) == key_;
                });
  allocatable_.clear();
  const auto& allocatable = json_member(json_member(node, "status"), "allocatable");
  if (allocatable.is_object()) {
    for (const auto& [resource, count] : allocatable.items()) allocatable_[resource] = json_text(count);
  }
  update_taint();
}

void StartupTaint::update_taint() {
  next_check_.reset();
  if (!is_tainted_) {
    logged_reason_.clear();
    if (std::exchange(removal_, nullptr)) ports_.removed("the startup taint " + key_ + " is removed");
    return;
  }
  next_check_ = ports_.loop.after(timing_.check, [this] { update_taint(); });
  if (const auto reason = startup_wait_reason(ports_.read_state(), allocatable_)) {
    removal_.reset();
    if (std::exchange(logged_reason_, *reason) != *reason)
      log::info("the startup taint stays", {{"taint", key_}, {"reason", *reason}});
    return;
  }
  // A Node that was created again has the taint after it was removed.
  if (removal_ && removal_->taint_status().pending) return;
  removal_ = k8s::NodeTaints::start_taints(ports_.loop, ports_.access, {key_}, timing_.taints);
  if (const auto set = removal_->set_taints({}); !set)
    log::warning("cannot remove the startup taint", set.error());
}

}  // namespace gpulet::agent
