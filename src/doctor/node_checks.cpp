// "Pod cannot be allocated": from the kubelet to the scheduler.
#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "doctor/judges.h"
#include "runtimes/distributions.h"

namespace gpulet::doctor {
namespace {

// Leases, tokens and certificates are judged by the clock: from here on something of that fails.
constexpr std::chrono::seconds kSkew{10}, kMuchSkew{300};

constexpr const char* kAgentLog = "`kubectl -n gpulet logs ds/gpulet` on this node says why";

bool of_kubernetes(const Engine& engine) {
  return engine.report.engine == runtimes::Engine::kContainerd ||
         engine.report.engine == runtimes::Engine::kCrio;
}

const runtimes::Finding* unfit(const Engine& engine) {
  const auto& findings = engine.report.findings;
  const auto found = std::ranges::find_if(findings, [](const auto& finding) { return !finding.fit; });
  return found == findings.end() ? nullptr : &*found;
}

std::string title(const Engine& engine) {
  const auto& facts = runtimes::facts(engine.report.engine);
  return std::string(facts.title) + (engine.report.version ? " " + engine.report.version->str() : "") +
         (engine.report.distribution.empty() ? "" : " of " + engine.report.distribution);
}

// Those that run this kubelet's containers: by what the kubelet says, else those whose socket is there, else
// all.
std::vector<const Engine*> serving(const Engines& engines) {
  std::vector<const Engine*> all, found;
  for (const auto& engine : engines.all) {
    if (of_kubernetes(engine)) all.push_back(&engine);
  }
  const auto take = [&](auto fits) { std::ranges::copy_if(all, std::back_inserter(found), fits); };
  if (engines.endpoint) {
    take([&](const Engine* engine) { return engine->report.endpoint == engines.endpoint->socket; });
    // k3s and RKE2 have one socket.
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

std::vector<std::string> details_of(const Engine& engine, const Engines& engines) {
  std::vector<std::string> details;
  const auto& endpoint = engines.endpoint;
  if (endpoint)
    details.push_back("the kubelet's engine is at " + endpoint->socket + " (" + endpoint->said_by + ")");
  details.push_back("read: " + (engine.report.files.empty() ? "no file: there is no " + engine.report.config
                                                            : text::join(engine.report.files, ", ")));
  return details;
}

// "kubelet", or what runs it in the distribution that is here.
std::string unit_of_kubelet(const Facts& facts) {
  if (facts.engines) {
    for (const auto* engine : serving(*facts.engines)) {
      for (const auto& distribution : runtimes::distributions()) {
        if (engine->report.distribution == distribution.name)
          return "'" + std::string(distribution.units) + "'";
      }
    }
  }
  return "kubelet";
}

// Why nothing of a resource can be had, as far as anybody says.
std::string why_none(const Facts& facts) {
  if (!facts.agent) return "no agent says why";
  if (!facts.agent->problems.empty()) return facts.agent->problems.front();
  const auto& devices = facts.agent->devices;
  if (devices.empty()) return "the agent sees no GPU";
  for (const auto& device : devices) {
    if (!device.offered) return device.name + " is " + device.state + ": " + device.reason;
  }
  return "the agent offers nothing of " + counted(devices.size(), "device") +
         " (MIG strategy, or MIG without instances)";
}

// Node by node, of the Pods that were looked into.
std::vector<std::string> reasons_of(const std::vector<PendingPod>& pods) {
  std::vector<std::string> lines;
  for (const auto& pod : pods) {
    if (!pod.explained) continue;
    if (!*pod.explained) {
      lines.push_back(pod.name + " cannot be explained node by node: " + pod.explained->error().text());
      continue;
    }
    const Explained& explained = **pod.explained;
    lines.push_back(
        pod.name + " asks for " + explained.asks + "; by " +
        (explained.by_extender ? "gpulet's extender:" : "gpulet itself, as no extender answers:"));
    if (!explained.fit.empty())
      lines.push_back("  its GPUs are free on " + some_of(explained.fit) +
                      ": something else keeps it away (the message above)");
    for (const auto& [node, reason] : explained.nodes) lines.push_back("  not on " + node + ": " + reason);
    if (explained.left_out > 0) lines.push_back("  and " + counted(explained.left_out, "node") + " more");
    for (const auto& hint : explained.hints) lines.push_back("  it would help: " + hint);
  }
  return lines;
}

std::string clock_of(std::chrono::seconds ahead) {
  return counted(static_cast<std::size_t>(std::abs(ahead.count())), "second") +
         (ahead.count() > 0 ? " ahead of" : " behind");
}

}  // namespace

Judgement judge_kubelet(const Facts& facts) {
  const auto& kubelet = facts.kubelet;
  if (kubelet.socket) return pass("the kubelet takes registrations");
  const auto& error = kubelet.socket.error();
  if (error.code() == Code::kPermissionDenied) return cannot_tell(error.text(), "run this as root");
  if (error.code() == Code::kNotFound && !kubelet.other_folders.empty()) {
    return fails("no kubelet at " + kubelet.folder + ", but one is at " + kubelet.other_folders.front(),
                 "give the agent that folder (gpulet.kubeletDir), and this command --kubelet-dir " +
                     kubelet.other_folders.front());
  }
  const std::string unit = unit_of_kubelet(facts);
  const std::string fix = "`systemctl status " + unit + "`, `journalctl -u " + unit +
                          "`; where the kubelet's folder is another: --kubelet-dir";
  if (error.code() == Code::kNotFound) {
    return fails("no kubelet runs here: there is no " + kubelet.folder + "/device-plugins/kubelet.sock",
                 fix + "; on a machine that is no Kubernetes node only the checks of the GPUs count");
  }
  return fails("the kubelet takes no registrations: " + error.text(), fix);
}

Judgement judge_plugin(const Facts& facts) {
  const auto& plugins = facts.kubelet.plugins;
  const auto answers = [](const PluginSocket& socket) { return !socket.trouble; };
  if (std::ranges::any_of(plugins, answers)) {
    std::vector<std::string> names;
    for (const auto& plugin : plugins) {
      if (answers(plugin)) names.push_back(plugin.name);
    }
    return pass("a device plugin serves " + some_of(names));
  }
  const std::string fix = "`kubectl -n gpulet get pods -o wide` shows whether the agent runs on this node; " +
                          std::string(kAgentLog);
  if (plugins.empty() && !facts.kubelet.plugins_seen)
    return cannot_tell(facts.kubelet.plugins_seen.error().text(), "run this as root");
  if (plugins.empty()) return fails("no device plugin for NVIDIA's GPUs serves the kubelet", fix);
  if (plugins.front().trouble->code() == Code::kPermissionDenied)
    return cannot_tell(plugins.front().trouble->text(), "run this as root");
  return fails("nobody answers at " + plugins.front().name + ": the device plugin has ended", fix);
}

Judgement judge_agent(const Facts& facts) {
  if (!facts.agent) {
    return cannot_tell(facts.agent.error().text(),
                       "where it serves elsewhere: --socket PATH or --url http://NODE:9400");
  }
  if (facts.agent->problems.empty()) return pass("gpulet " + facts.agent->version + " runs and is ready");
  return fails("the agent is not ready: " + some_of(facts.agent->problems, 2), kAgentLog);
}

Judgement judge_runtime(const Facts& facts) {
  if (!facts.engines) return cannot_tell(facts.engines.error());
  const auto& engines = *facts.engines;
  const auto found = serving(engines);
  if (found.empty() && engines.endpoint) {
    return cannot_tell("the kubelet's engine is at " + engines.endpoint->socket + " (" +
                           engines.endpoint->said_by + "), whose settings are not known here",
                       "its own documents say how it is given CDI (specs in /etc/cdi and /var/run/cdi)");
  }
  if (found.empty())
    return cannot_tell("no container engine of Kubernetes (containerd, CRI-O) is seen below the host's root");
  const bool by_cdi = facts.settings && facts.settings->cdi;
  for (const auto* engine : found) {
    const auto* finding = unfit(*engine);
    if (finding == nullptr || (!by_cdi && engine->nvidia_runtime)) continue;
    const bool named = finding->what == "config" || finding->what == "CDI";
    const std::string why = (named ? "" : finding->what + ": ") + finding->say;
    auto judgement = fails(title(*engine) + " is not fit for CDI: " + why, finding->remedy);
    judgement.details = details_of(*engine, engines);
    return judgement;
  }
  const Engine& first = *found.front();
  auto judgement =
      pass(title(first) + (unfit(first) != nullptr ? " has NVIDIA's runtime" : " takes devices by CDI"));
  judgement.details = details_of(first, engines);
  return judgement;
}

Judgement judge_cdi(const Facts& facts) {
  if (!facts.cdi) return cannot_tell(facts.cdi.error());
  const auto& cdi = *facts.cdi;
  const std::string fix =
      "the agent writes it anew when it starts; by hand: `gpulet cdi generate --output "
      "/var/run/cdi/nvidia.yaml`";
  if (!cdi.problems.empty())
    return fails("engines refuse a CDI spec: " + cdi.problems.front(), "`gpulet cdi validate`; " + fix);
  if (cdi.devices.empty()) {
    const std::string found = "no CDI spec of an NVIDIA GPU in " + text::join(cdi.folders, " or ");
    if (!facts.settings)
      return cannot_tell(found + "; whether one is needed is not known: " + facts.settings.error().text());
    if (!facts.settings->cdi)
      return pass("not used: devices are not handed out by CDI (" + facts.settings->source + ")");
    return fails(found, fix);
  }
  if (facts.installed.module && !cdi.versions.empty() && !cdi.versions.contains(*facts.installed.module)) {
    return fails(
        "the CDI spec is of driver " + *cdi.versions.begin() + ", the driver is " + *facts.installed.module,
        fix);
  }
  if (!cdi.missing.empty())
    return fails("the CDI spec names what is not there: " + some_of(cdi.missing), fix);
  return pass(counted(cdi.devices.size(), "device") + " in " + some_of(cdi.files));
}

Judgement judge_resource(const Facts& facts) {
  const auto& allocatable = facts.kubelet.allocatable;
  if (!allocatable) return cannot_tell("the kubelet does not say: " + allocatable.error().text());
  std::size_t all = 0, held = 0;
  std::vector<std::string> lines;
  for (const auto& [resource, count] : *allocatable) {
    all += count;
    lines.push_back(std::to_string(count) + " " + resource);
    if (!facts.kubelet.held) continue;
    const auto found = facts.kubelet.held->find(resource);
    if (found != facts.kubelet.held->end()) held += std::min(found->second, count);
  }
  if (all == 0) {
    return fails("the kubelet has no healthy device of NVIDIA's: " + why_none(facts),
                 facts.agent ? "`gpulet health` and `gpulet list` show each GPU" : std::string(kAgentLog));
  }
  if (held >= all) {
    return warn(
        "all are held: " + text::join(lines, ", "),
        "`gpulet top` shows by whom; more nodes, or sharing (docs/partition.md), where that is too few");
  }
  return pass(text::join(lines, ", ") + "; " + std::to_string(held) + " held");
}

Judgement judge_pods(const Facts& facts) {
  if (!facts.cluster) return cannot_tell(facts.cluster.error());
  const auto& pods = facts.cluster->pods;
  if (!pods) return cannot_tell(pods.error());
  if (pods->empty()) return pass("no Pod waits for a GPU");
  const auto refused = std::ranges::find_if(*pods, &PendingPod::refused);
  const auto& pod = refused != pods->end() ? *refused : pods->front();
  const auto slash = pod.name.find('/');
  const std::string others = pods->size() > 1 ? " (and " + std::to_string(pods->size() - 1) + " more)" : "";
  auto judgement = fails(
      pod.name + others + ": " + pod.message,
      pod.refused
          ? "delete the Pod, so that it is made anew; `journalctl -u kubelet` and the agent's log have more"
          : "`gpulet explain --namespace " + pod.name.substr(0, slash) + " " + pod.name.substr(slash + 1) +
                "` goes through every node");
  judgement.details = reasons_of(*pods);
  return judgement;
}

Judgement judge_two_plugins(const Facts& facts) {
  std::set<std::string> who;
  std::set<int> seen;
  if (facts.programs) {
    for (const auto& [pid, program] : facts.programs->device_plugins) {
      who.insert(program + " (process " + std::to_string(pid) + ")");
      seen.insert(pid);
    }
  }
  for (const auto& socket : facts.kubelet.plugins) {
    if (socket.trouble || socket.pid == 0 || seen.contains(socket.pid)) continue;
    who.insert("process " + std::to_string(socket.pid));
    seen.insert(socket.pid);
  }
  if (who.size() > 1) {
    return fails(
        "two device plugins at once: " + text::join(std::vector<std::string>(who.begin(), who.end()), ", "),
        "remove one: of the GPU operator `devicePlugin.enabled=false`, else `kubectl delete daemonset "
        "nvidia-device-plugin-daemonset -n kube-system`");
  }
  if (!facts.programs && who.empty())
    return cannot_tell(facts.programs.error().text(),
                       "run this on the node itself, or in a Pod with hostPID: true");
  return pass(who.empty() ? "no other device plugin" : "one device plugin: " + *who.begin());
}

Judgement judge_rights(const Facts& facts) {
  const std::string fix =
      "`kubectl apply` the ClusterRole of deploy/static/gpulet.yaml (docs/SECURITY.md has what each is for)";
  if (facts.agent && !facts.agent->refusals.empty())
    return fails("the API server refuses the agent: " + facts.agent->refusals.front(), fix);
  if (!facts.cluster) {
    if (facts.agent) return pass("the agent reports no refusal");
    return cannot_tell(facts.cluster.error());
  }
  const auto& missing = facts.cluster->missing_rights;
  if (!missing) return cannot_tell(missing.error());
  if (missing->empty()) return pass(facts.cluster->user + " has what the agent needs");
  return fails(facts.cluster->user + " may not: " + some_of(*missing, 5), fix);
}

Judgement judge_clock(const Facts& facts) {
  const std::string fix = "`chronyc makestep`, or `timedatectl set-ntp true`";
  if (facts.cluster && facts.cluster->ahead) {
    const auto ahead = *facts.cluster->ahead;
    const std::string found = "this node's clock is " + clock_of(ahead) + " the API server's";
    if (std::chrono::abs(ahead) >= kMuchSkew) return fails(found, fix);
    if (std::chrono::abs(ahead) >= kSkew) return warn(found, fix);
    return pass("this node's clock is the API server's, within " + counted(kSkew.count(), "second"));
  }
  if (facts.clock_synchronised && !*facts.clock_synchronised)
    return warn("nobody keeps this node's clock (the kernel says that it is not synchronised)", fix);
  return cannot_tell("the API server's clock is not known" +
                     (facts.cluster ? std::string(" to its version") : ": " + facts.cluster.error().text()));
}

}  // namespace gpulet::doctor
