#include "doctor/checks.h"

#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "runtimes/engine.h"

namespace gpulet::doctor {
namespace {

// From these offsets on, leases, tokens or certificates start to fail.
constexpr std::chrono::seconds kSkew{10}, kMuchSkew{300};

// A claim may wait for a daemon or a Pod that ends; a move takes 14 s without Pods.
constexpr std::chrono::seconds kClaimWait{10};
constexpr std::chrono::minutes kMoveWait{3};

constexpr const char* kAgentLog = "`kubectl -n gpulet logs ds/gpulet` on this node";

bool is_kubernetes_engine(const Engine& engine) {
  return engine.report.engine == runtimes::Engine::kContainerd ||
         engine.report.engine == runtimes::Engine::kCrio;
}

const runtimes::Finding* first_failed_finding(const Engine& engine) {
  const auto& findings = engine.report.findings;
  const auto found = std::ranges::find_if(findings, [](const auto& finding) { return !finding.is_met; });
  return found == findings.end() ? nullptr : &*found;
}

std::string engine_title(const Engine& engine) {
  const auto& facts = runtimes::engine_facts(engine.report.engine);
  return std::string(facts.title) + (engine.report.version ? " " + engine.report.version->str() : "") +
         (engine.report.distribution.empty() ? "" : " of " + engine.report.distribution);
}

// The engines that may run this kubelet's containers: the one the kubelet uses, else those with a socket,
// else all.
std::vector<const Engine*> kubelet_engines(const Engines& engines) {
  std::vector<const Engine*> all, found;
  for (const auto& engine : engines.all) {
    if (is_kubernetes_engine(engine)) all.push_back(&engine);
  }
  const auto take = [&](auto fits) { std::ranges::copy_if(all, std::back_inserter(found), fits); };
  if (engines.endpoint) {
    take([&](const Engine* engine) { return engine->report.endpoint == engines.endpoint->socket; });
    // k3s and RKE2 share a socket path.
    const auto of_program = [&](const Engine* engine) {
      const auto name = "/" + text::lower(engine->report.distribution) + "/";
      return !engine->report.distribution.empty() &&
             engines.endpoint->program.find(name) != std::string::npos;
    };
    if (std::ranges::any_of(found, of_program))
      std::erase_if(found, [&](const Engine* engine) { return !of_program(engine); });
    return found;
  }
  take([](const Engine* engine) { return engine->report.socket.has_value(); });
  return found.empty() ? all : found;
}

std::vector<std::string> engine_details(const Engine& engine, const Engines& engines) {
  std::vector<std::string> details;
  const auto& endpoint = engines.endpoint;
  if (endpoint)
    details.push_back("the kubelet uses the engine at " + endpoint->socket + " (" + endpoint->source + ")");
  details.push_back("read: " + (engine.report.files.empty() ? "no file, missing " + engine.report.config
                                                            : text::join(engine.report.files, ", ")));
  return details;
}

// "kubelet", or the unit of the distribution found here.
std::string kubelet_unit(const Facts& facts) {
  if (facts.engines) {
    for (const auto* engine : kubelet_engines(*facts.engines)) {
      for (const auto& distribution : runtimes::distributions()) {
        if (engine->report.distribution == distribution.name)
          return "'" + std::string(distribution.units) + "'";
      }
    }
  }
  return "kubelet";
}

// Why no device is available, if known.
std::string no_devices_reason(const Facts& facts) {
  if (!facts.agent) return "no agent to ask for the reason";
  if (!facts.agent->problems.empty()) return facts.agent->problems.front();
  const auto& devices = facts.agent->devices;
  if (devices.empty()) return "the agent sees no GPU";
  for (const auto& device : devices) {
    if (!device.excluded.empty()) continue;
    if (device.waits) return device.name + " " + device.reason;
    if (!device.offered) return device.name + " is " + device.state + ": " + device.reason;
  }
  for (const auto& device : devices) {
    if (!device.excluded.empty()) return device.name + " " + device.excluded;
  }
  return "the agent offers none of " + text::count_text(devices.size(), "device") +
         " (MIG strategy, or MIG without instances)";
}

// The explanations of pending Pods, node by node.
std::vector<std::string> pending_pod_reasons(const std::vector<PendingPod>& pods) {
  std::vector<std::string> lines;
  for (const auto& pod : pods) {
    if (!pod.explanation) continue;
    if (!*pod.explanation) {
      lines.push_back(pod.name + " could not be explained: " + pod.explanation->error().full_message());
      continue;
    }
    const PodExplanation& explained = **pod.explanation;
    lines.push_back(pod.name + " requests " + explained.requests + "; according to " +
                    (explained.by_extender ? "gpulet's extender:" : "gpulet itself (no extender responds):"));
    if (!explained.fitting_nodes.empty())
      lines.push_back("  enough GPUs are free on " + text::join_limited(explained.fitting_nodes) +
                      ": something else prevents it (see the message above)");
    for (const auto& [node, reason] : explained.nodes) lines.push_back("  not on " + node + ": " + reason);
    if (explained.left_out > 0)
      lines.push_back("  and " + text::count_text(explained.left_out, "node") + " more");
    for (const auto& hint : explained.hints) lines.push_back("  hint: " + hint);
  }
  return lines;
}

std::string clock_offset_text(std::chrono::seconds ahead) {
  return text::count_text(static_cast<std::size_t>(std::abs(ahead.count())), "second") +
         (ahead.count() > 0 ? " ahead of" : " behind");
}

std::vector<std::string> offered_resources(const AgentFacts& agent) {
  std::set<std::string> names;
  for (const auto& device : agent.devices) {
    if (device.offered && !device.resource.empty()) names.insert(device.resource);
  }
  return {names.begin(), names.end()};
}

// The agent in this Pod serves the kubelet, whose directory may not be visible here.
bool is_agent_registered(const Facts& facts) {
  return agent_offers_gpus(facts) && facts.agent->problems.empty() &&
         (!offered_resources(*facts.agent).empty() || facts.agent->claims.offered != 0);
}

}  // namespace

CheckResult check_kubelet(const Facts& facts) {
  const auto& kubelet = facts.kubelet;
  if (kubelet.socket) return pass_result("the kubelet accepts registrations");
  const auto& error = kubelet.socket.error();
  if (is_agent_registered(facts))
    return pass_result("the agent is registered with the kubelet (from here: " + error.full_message() + ")");
  if (error.code() == Code::kPermissionDenied)
    return unknown_result(error.full_message(), "run this as root");
  if (error.code() == Code::kNotFound && !kubelet.other_directories.empty()) {
    return fail_result(
        "no kubelet in " + kubelet.directory + ", but one is in " + kubelet.other_directories.front(),
        "set gpulet.kubeletDir of the agent to that directory, and run this command with --kubelet-dir " +
            kubelet.other_directories.front());
  }
  const std::string unit = kubelet_unit(facts);
  const std::string fix = "`systemctl status " + unit + "`, `journalctl -u " + unit +
                          "`; if the kubelet uses another directory: --kubelet-dir";
  if (error.code() == Code::kNotFound) {
    return fail_result("no kubelet is running: missing " + kubelet.directory + "/device-plugins/kubelet.sock",
                       fix + "; on a machine outside Kubernetes only the GPU checks matter");
  }
  return fail_result("the kubelet does not accept registrations: " + error.full_message(), fix);
}

CheckResult check_device_plugin(const Facts& facts) {
  const auto& plugins = facts.kubelet.plugins;
  const auto responds = [](const PluginSocket& socket) { return !socket.error; };
  if (std::ranges::any_of(plugins, responds)) {
    std::vector<std::string> names;
    for (const auto& plugin : plugins) {
      if (responds(plugin)) names.push_back(plugin.name);
    }
    return pass_result("a device plugin serves " + text::join_limited(names));
  }
  if (facts.agent && facts.agent->claims.offered != 0 && offered_resources(*facts.agent).empty())
    return pass_result("the agent offers " + text::count_text(facts.agent->claims.offered, "device") +
                       " by claims, and none by the device plugin");
  if (is_agent_registered(facts))
    return pass_result("the agent serves " + text::join_limited(offered_resources(*facts.agent)));
  const std::string fix =
      "`kubectl -n gpulet get pods -o wide` shows whether the agent runs on this node; if not, mark it: "
      "`kubectl label node NODE nvidia.com/gpu.present=true`; if so, " +
      std::string(kAgentLog);
  if (plugins.empty() && !facts.kubelet.plugins_status)
    return unknown_result(facts.kubelet.plugins_status.error().full_message(), "run this as root");
  if (plugins.empty()) return fail_result("no device plugin for NVIDIA GPUs is registered", fix);
  if (plugins.front().error->code() == Code::kPermissionDenied)
    return unknown_result(plugins.front().error->full_message(), "run this as root");
  return fail_result("no response at " + plugins.front().name + ": the device plugin has stopped", fix);
}

CheckResult check_agent(const Facts& facts) {
  if (!facts.agent) {
    return unknown_result(facts.agent.error().full_message(),
                          "to reach it elsewhere: --socket PATH or --url http://NODE:9400");
  }
  if (facts.agent->problems.empty())
    return pass_result("gpulet " + facts.agent->version + " is running and ready");
  return fail_result("the agent is not ready: " + text::join_limited(facts.agent->problems, 2), kAgentLog);
}

CheckResult check_container_runtime(const Facts& facts) {
  if (!facts.engines) return unknown_result(facts.engines.error());
  const auto& engines = *facts.engines;
  const auto found = kubelet_engines(engines);
  if (found.empty() && engines.endpoint) {
    return unknown_result("the kubelet uses the engine at " + engines.endpoint->socket + " (" +
                              engines.endpoint->source +
                              "); no containerd or CRI-O with that socket found below the host's root",
                          "see its documentation for CDI (specs in /etc/cdi and /var/run/cdi)");
  }
  if (found.empty() && facts.simulated)
    return skip_result("not applicable: a simulated node (gpulet-sim) without a container engine");
  if (found.empty())
    return unknown_result("no Kubernetes container engine (containerd, CRI-O) found below the host's root");
  const bool by_cdi = facts.settings && facts.settings->cdi;
  for (const auto* engine : found) {
    const auto* finding = first_failed_finding(*engine);
    if (finding == nullptr || (!by_cdi && engine->nvidia_runtime)) continue;
    const bool named = finding->subject == "config" || finding->subject == "CDI";
    const std::string why = (named ? "" : finding->subject + ": ") + finding->detail;
    auto result = fail_result(engine_title(*engine) + " is not ready for CDI: " + why, finding->advice);
    result.details = engine_details(*engine, engines);
    return result;
  }
  const Engine& first = *found.front();
  auto result =
      pass_result(engine_title(first) + (first_failed_finding(first) != nullptr ? " uses NVIDIA's runtime"
                                                                                : " injects devices by CDI"));
  result.details = engine_details(first, engines);
  return result;
}

CheckResult check_nvidia_runtime(const Facts& facts) {
  if (!facts.engines) return unknown_result(facts.engines.error());
  const auto found = kubelet_engines(*facts.engines);
  if (found.empty()) return skip_result("not applicable: the kubelet's engine is unknown");
  if (std::ranges::none_of(found, [](const Engine* engine) { return engine->nvidia_runtime; }))
    return pass_result("the kubelet's engine does not use NVIDIA's runtime");
  const auto& config = facts.engines->nvidia_runtime_config;
  if (!config) return unknown_result(config.error());
  const std::string command = "`gpulet runtime configure --deny-visible-devices-env`";
  const auto& settings = facts.settings;
  const bool by_mounts = settings && settings->volume_mounts;
  if (!config->accepts_images_variable) {
    const std::string denied = "NVIDIA's runtime ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers";
    if (!settings || settings->cdi || (by_mounts && config->accepts_volume_mounts))
      return pass_result(denied);
    return fail_result(denied + ", which is how deviceListStrategy (" + settings->source + ") passes GPUs on",
                       by_mounts ? command : "deviceListStrategy: cdi-cri or volume-mounts");
  }
  const std::string step =
      settings && (settings->cdi || by_mounts)
          ? ""
          : "first deviceListStrategy: cdi-cri or volume-mounts, or Pods lose their GPUs; then ";
  return warn_result(
      "NVIDIA's runtime gives every GPU to a container that requests none, if its image sets "
      "NVIDIA_VISIBLE_DEVICES=all, as nvidia/cuda does",
      step + command);
}

CheckResult check_cdi_specs(const Facts& facts) {
  if (!facts.cdi) return unknown_result(facts.cdi.error());
  const auto& cdi = *facts.cdi;
  const std::string fix =
      "the agent rewrites it at start; manually: `gpulet cdi generate --output /var/run/cdi/nvidia.yaml`";
  if (!cdi.problems.empty())
    return fail_result("engines reject a CDI spec: " + cdi.problems.front(), "`gpulet cdi validate`; " + fix);
  if (cdi.devices.empty()) {
    const std::string found = "no CDI spec for an NVIDIA GPU in " + text::join(cdi.directories, " or ");
    if (!facts.settings)
      return unknown_result(found +
                            "; cannot tell whether one is needed: " + facts.settings.error().full_message());
    if (!facts.settings->cdi)
      return skip_result("not applicable: CDI is not used (" + facts.settings->source + ")");
    return fail_result(found, fix);
  }
  if (facts.installed.module && !cdi.versions.empty() && !cdi.versions.contains(*facts.installed.module)) {
    return fail_result("the CDI spec is for driver " + *cdi.versions.begin() + ", the installed driver is " +
                           *facts.installed.module,
                       fix);
  }
  if (!cdi.missing.empty())
    return fail_result("the CDI spec refers to missing files: " + text::join_limited(cdi.missing), fix);
  return pass_result(text::count_text(cdi.devices.size(), "device") + " in " + text::join_limited(cdi.files));
}

CheckResult check_allocatable(const Facts& facts) {
  const auto& allocatable = facts.kubelet.allocatable;
  if (!allocatable)
    return unknown_result("the kubelet does not report devices: " + allocatable.error().full_message());
  std::size_t all = 0, held = 0;
  std::vector<std::string> lines;
  for (const auto& [resource, count] : *allocatable) {
    all += count;
    lines.push_back(std::to_string(count) + " " + resource);
    if (!facts.kubelet.held) continue;
    const auto found = facts.kubelet.held->find(resource);
    if (found != facts.kubelet.held->end()) held += std::min(found->second, count);
  }
  if (all == 0 && facts.agent && facts.agent->claims.offered != 0)
    return pass_result("none by the device plugin; " +
                       text::count_text(facts.agent->claims.offered, "device") + " by claims");
  if (all == 0) {
    return fail_result(
        "the kubelet has no healthy NVIDIA device: " + no_devices_reason(facts),
        facts.agent ? "`gpulet health` and `gpulet list` show each GPU" : std::string(kAgentLog));
  }
  if (held >= all) {
    return warn_result("all are allocated: " + text::join(lines, ", "),
                       "`gpulet top` shows the holders; add nodes, or share GPUs (docs/partition.md)");
  }
  return pass_result(text::join(lines, ", ") + "; " + std::to_string(held) + " held");
}

namespace {

// The fix for a reason that contains this text; the first that does.
struct ReasonFix {
  std::string_view part;
  const char* fix;
};

constexpr ReasonFix kMoveFixes[] = {
    {" when Pod ", "wait until the Pod ends, or end it: `kubectl delete pod`"},
    {" when claim ", "wait until the claim's Pods end, or end them: `kubectl delete pod`"},
    {"the kubelet has withdrawn", "`journalctl -u kubelet`: it does not follow its device plugin"},
    {"the Node shows", "`journalctl -u kubelet`: it does not update the Node"},
    {"ResourceSlices", "check the API server, and the agent's rights on resourceslices"},
    {"Pods are known", "check the kubelet's pod-resources socket, and the agent's right to get its Node"},
};

constexpr ReasonFix kWaitFixes[] = {
    {"MPS control daemon", "the check `mps`; `kubectl -n gpulet logs ds/gpulet` on this node"},
    {"cannot read the claim", "check the API server, and the agent's right to get resourceclaims"},
    {"API server has not answered", "check that this node reaches the API server"},
    {"held by the claim", "wait until the Pods of that claim end: `kubectl describe resourceclaim`"},
    {" when Pod ", "wait until the Pod ends, or end it: `kubectl delete pod`"},
    {"not known yet", "the check `driver-answers`; `kubectl -n gpulet logs ds/gpulet` on this node"},
};

std::string fix_for(std::span<const ReasonFix> fixes, const std::string& reason, const char* otherwise) {
  const auto found = std::ranges::find_if(
      fixes, [&](const ReasonFix& one) { return reason.find(one.part) != std::string::npos; });
  return found == fixes.end() ? otherwise : found->fix;
}

std::string move_name(const AgentFacts& agent, const agent::GpuMove& move) {
  const auto device = std::ranges::find(agent.devices, move.gpu.str(), &AgentDevice::uuid);
  return device == agent.devices.end() ? "GPU " + move.gpu.str() : device->name;
}

std::string waited_text(WallTime since, WallTime now) {
  return " (for " + format_duration(std::chrono::floor<std::chrono::seconds>(now - since)) + ")";
}

}  // namespace

CheckResult check_claims(const Facts& facts) {
  if (!facts.agent) return unknown_result(facts.agent.error());
  const auto& agent = *facts.agent;
  const auto& claims = agent.claims;
  if (claims.is_empty()) return pass_result("no GPU is offered by claims");
  std::vector<std::string> waiting, moving;
  std::string wait_fix, move_fix;
  for (const auto& claim : claims.waiting) {
    if (agent.read_at - claim.since < kClaimWait) continue;
    if (waiting.empty())
      wait_fix = fix_for(kWaitFixes, claim.reason,
                         "`kubectl describe resourceclaim`; `gpulet dra check FILE` checks its configs");
    waiting.push_back("claim " + claim.name_space + "/" + claim.name + " is not prepared: " + claim.reason +
                      waited_text(claim.since, agent.read_at));
  }
  for (const auto& move : claims.moves) {
    if (agent.read_at - move.since < kMoveWait) continue;
    if (moving.empty()) move_fix = fix_for(kMoveFixes, move.reason, kAgentLog);
    moving.push_back(move_name(agent, move) + " " + move.reason + waited_text(move.since, agent.read_at));
  }
  if (waiting.empty() && moving.empty())
    return pass_result("no claim waits, and no GPU moves for long; " +
                       text::count_text(claims.offered, "device") + " offered by claims");
  auto result = waiting.empty() ? warn_result(text::join_limited(moving, 2), move_fix)
                                : fail_result(text::join_limited(waiting, 2), wait_fix);
  result.details = waiting;
  result.details.insert(result.details.end(), moving.begin(), moving.end());
  return result;
}

CheckResult check_pending_pods(const Facts& facts) {
  if (!facts.cluster) return unknown_result(facts.cluster.error());
  const auto& pods = facts.cluster->pods;
  if (!pods) return unknown_result(pods.error());
  if (pods->empty()) return pass_result("no Pod is waiting for a GPU");
  const auto refused = std::ranges::find_if(*pods, &PendingPod::refused);
  const auto& pod = refused != pods->end() ? *refused : pods->front();
  const auto [name_space, name] = parse_pod_name(pod.name);
  const std::string others = pods->size() > 1 ? " (and " + std::to_string(pods->size() - 1) + " more)" : "";
  auto result = fail_result(
      pod.name + others + ": " + pod.message,
      pod.refused ? "delete the Pod so that it is recreated; see `journalctl -u kubelet` and the agent's log"
                  : "`gpulet explain --namespace " + name_space + " " + name + "` checks every node");
  result.details = pending_pod_reasons(*pods);
  return result;
}

CheckResult check_extender(const Facts& facts) {
  if (!facts.cluster) return unknown_result(facts.cluster.error());
  const auto& missed = facts.cluster->missed_pods;
  if (!missed) {
    const auto code = missed.error().code();
    // Without the scheduler, the agent's own credentials have no right to look for it.
    if (code == Code::kNotFound || code == Code::kPermissionDenied)
      return skip_result(missed.error().message());
    return unknown_result(missed.error());
  }
  if (missed->empty()) return pass_result("no Pod was bound without a question to gpulet scheduler");
  auto result = warn_result(
      missed->front().scheduler + " bound " + missed->front().pod +
          " without asking gpulet scheduler about " + missed->front().resource,
      "`gpulet scheduler config` prints what kube-scheduler needs; see \"Connect kube-scheduler\" in "
      "docs/scheduling.md");
  for (const auto& one : *missed) {
    result.details.push_back(format_wall_time(one.at) + " " + one.pod + ": " + one.scheduler + ", " +
                             one.resource);
  }
  return result;
}

CheckResult check_plugin_conflict(const Facts& facts) {
  std::set<std::string> who;
  std::set<int> seen;
  if (facts.programs) {
    for (const auto& [pid, program] : facts.programs->device_plugins) {
      who.insert(program + " (process " + std::to_string(pid) + ")");
      seen.insert(pid);
    }
  }
  for (const auto& socket : facts.kubelet.plugins) {
    if (socket.error || socket.pid == 0 || seen.contains(socket.pid)) continue;
    who.insert("process " + std::to_string(socket.pid));
    seen.insert(socket.pid);
  }
  if (who.size() > 1) {
    return fail_result("two device plugins are running: " +
                           text::join(std::vector<std::string>(who.begin(), who.end()), ", "),
                       "remove one: set `devicePlugin.enabled=false` in the GPU operator, else `kubectl "
                       "delete daemonset nvidia-device-plugin-daemonset -n kube-system`");
  }
  if (!facts.programs && who.empty())
    return unknown_result(facts.programs.error().full_message(),
                          "run this on the node itself, or in a Pod with hostPID: true");
  return pass_result(who.empty() ? "no other device plugin" : "one device plugin: " + *who.begin());
}

CheckResult check_permissions(const Facts& facts) {
  const std::string fix =
      "`kubectl apply` the ClusterRole of deploy/static/gpulet.yaml (docs/SECURITY.md explains each "
      "permission)";
  if (facts.agent && !facts.agent->refusals.empty())
    return fail_result("the API server denies the agent: " + facts.agent->refusals.front(), fix);
  if (!facts.cluster) {
    if (facts.agent) return pass_result("the agent reports no denied request");
    return unknown_result(facts.cluster.error());
  }
  const auto& missing = facts.cluster->missing_permissions;
  if (!missing) return unknown_result(missing.error());
  if (missing->empty()) return pass_result(facts.cluster->user + " has the permissions that the agent needs");
  return fail_result(facts.cluster->user + " lacks permission to: " + text::join_limited(*missing, 5), fix);
}

CheckResult check_clock(const Facts& facts) {
  const std::string fix = "`chronyc makestep`, or `timedatectl set-ntp true`";
  if (facts.cluster && facts.cluster->clock_ahead) {
    const auto ahead = *facts.cluster->clock_ahead;
    const std::string found = "this node's clock is " + clock_offset_text(ahead) + " the API server's";
    if (std::chrono::abs(ahead) >= kMuchSkew) return fail_result(found, fix);
    if (std::chrono::abs(ahead) >= kSkew) return warn_result(found, fix);
    return pass_result("this node's clock matches the API server's within " +
                       text::count_text(kSkew.count(), "second"));
  }
  if (facts.clock_synchronised && !*facts.clock_synchronised)
    return warn_result("this node's clock is not synchronized (according to the kernel)", fix);
  return unknown_result("the API server's clock is unknown" +
                        (facts.cluster ? std::string(" (not supported by its version)")
                                       : ": " + facts.cluster.error().full_message()));
}

}  // namespace gpulet::doctor
