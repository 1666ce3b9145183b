// The checks of the driver's device nodes: are they there, and who may open them.
#include <string>
#include <vector>

#include "base/text.h"
#include "doctor/checks.h"

namespace gpulet::doctor {
namespace {

std::vector<std::string> paths_with_error(const DeviceNodes& nodes, Code code) {
  std::vector<std::string> paths;
  for (const auto& node : nodes.needed) {
    if (node.error && node.error->code() == code) paths.push_back(node.path);
  }
  return paths;
}

}  // namespace

CheckResult check_device_nodes(const Facts& facts) {
  if (!facts.nodes) return unknown_result(facts.nodes.error());
  const auto missing = paths_with_error(*facts.nodes, Code::kNotFound);
  if (!missing.empty() && agent_offers_gpus(facts))
    return agent_knows_result(facts, "not in this container: " + text::join_limited(missing, 4));
  if (!missing.empty()) {
    const std::string where = facts.nodes->root.empty() ? "" : " below " + facts.nodes->root;
    const bool only_uvm = missing == std::vector<std::string>{"/dev/nvidia-uvm"};
    return fail_result(
        "missing: " + text::join_limited(missing, 4) + where +
            (only_uvm ? ", without which no container can use CUDA and the agent offers no GPU" : ""),
        "`nvidia-modprobe -c 0 -u`, or run nvidia-persistenced, which keeps them; in a "
        "container, mount the host's /dev; if a driver container has them: --dev-root");
  }
  const auto wrong = paths_with_error(*facts.nodes, Code::kFailedPrecondition);
  if (!wrong.empty()) {
    for (const auto& node : facts.nodes->needed) {
      if (node.path == wrong.front())
        return fail_result(node.path + ": " + node.error->message(),
                           "`rm " + node.path + " && nvidia-modprobe -c 0 -u`");
    }
  }
  return pass_result(text::count_text(facts.nodes->needed.size(), "device node") + " present and correct");
}

CheckResult check_device_permissions(const Facts& facts) {
  if (facts.agent && !facts.agent->cut_off.empty()) {
    return warn_result(text::join_limited(facts.agent->cut_off) +
                           ": the device cgroup refuses it, as after `systemctl daemon-reload`",
                       "delete these Pods, so that the next ones get their GPUs");
  }
  if (!facts.nodes) return unknown_result(facts.nodes.error());
  const auto refused = paths_with_error(*facts.nodes, Code::kPermissionDenied);
  if (!refused.empty() && agent_offers_gpus(facts))
    return agent_knows_result(facts, "not to be opened in this container: " + text::join_limited(refused));
  if (!refused.empty()) {
    return fail_result("cannot be opened: " + text::join_limited(refused),
                       "run this as root; if root cannot open them either, the device cgroup or a nodev "
                       "mount denies it: give the container these devices, or `privileged: true`");
  }
  const auto missing = paths_with_error(*facts.nodes, Code::kNotFound);
  if (missing.size() == facts.nodes->needed.size())
    return unknown_result("no device node of the driver is visible here");
  std::vector<std::string> closed;
  for (const auto& node : facts.nodes->needed) {
    if (!node.world_accessible) closed.push_back(node.path);
  }
  if (!closed.empty()) {
    return warn_result(
        "not every user can open " + text::join_limited(closed) + ", so containers of other users see no GPU",
        "set NVreg_DeviceFileMode=0666 (`options nvidia …` in /etc/modprobe.d), or `chmod 0666` them");
  }
  if (!facts.nodes->without_char_link_nodes.empty()) {
    return warn_result("no link in /dev/char points to " +
                           text::join_limited(facts.nodes->without_char_link_nodes) +
                           ": after `systemctl daemon-reload`, running containers lose their GPUs",
                       "give the agent a writable /dev: it makes them (gpulet.createDeviceNodes); or "
                       "`for d in /dev/nvidia*; do [ -c $d ] && ln -sf $d /dev/char/$((0x$(stat -c %t "
                       "$d))):$((0x$(stat -c %T "
                       "$d))); done`, from a udev rule");
  }
  return pass_result("every user can open them");
}

}  // namespace gpulet::doctor
