#include "doctor/collect.h"

#include <sys/timex.h>

#include "base/file.h"
#include "doctor/memory_limits.h"
#include "doctor/probe.h"

namespace gpulet::doctor {
namespace {

Result<bool> is_clock_synchronised() {
  timex clock{};
  if (::adjtimex(&clock) < 0) return fail(errno_error("adjtimex", errno));
  return (clock.status & STA_UNSYNC) == 0;
}

std::string pci_bus_text(const PciBus& bus) {
  std::string text;
  for (const auto& gpu : bus.gpus) text += gpu.address + " " + (gpu.driver.empty() ? "-" : gpu.driver) + "\n";
  return text + std::to_string(bus.switches) + " NVSwitches\n";
}

}  // namespace

bool is_simulated_root(const std::string& driver_root) {
  const auto root = RootDirectory::open_root(driver_root);
  return root && root->exists("/run/gpulet-sim/state");
}

CollectedFacts collect_facts(ProbeTargets targets) {
  CollectedFacts gathered;
  Facts& facts = gathered.facts;
  Prober prober;
  const HostTrees trees =
      prober
          .run_on_thread<HostTrees>("the node's directories",
                                    [targets] { return Result<HostTrees>(locate_trees(targets)); })
          .value_or(assumed_trees(targets));
  facts.driver_root = trees.driver;
  facts.simulated =
      prober
          .run_on_thread<bool>("the driver's kind",
                               [trees] { return Result<bool>(is_simulated_root(trees.driver)); })
          .value_or(false);
  using Platform = std::optional<inventory::PlatformEvidence>;
  facts.platform =
      prober
          .run_on_thread<Platform>(
              "the kind of machine",
              [trees] {
                return Result<Platform>(inventory::find_unserved_platform({trees.driver, trees.host, "/"}));
              })
          .value_or(std::nullopt);
  facts.bus = prober.run_on_thread<PciBus>("the PCI bus", [trees] { return read_pci_bus(trees); });
  const auto installed = prober.run_on_thread<DriverFiles>(
      "the driver's files", [trees] { return Result<DriverFiles>(read_driver_files(trees)); });
  facts.installed = installed.value_or(
      DriverFiles{.module = fail(Code::kDeadlineExceeded, "reading files timed out"), .libraries = {}});
  facts.nodes =
      prober.run_on_thread<DeviceNodes>("device nodes", [trees] { return read_device_nodes(trees); });
  facts.driver =
      probe_driver(prober, trees.driver, {trees.sys.substr(0, trees.sys.size() - 4), trees.driver, "/"});
  if (facts.driver && facts.installed.libraries.empty()) facts.installed.libraries = {facts.driver->version};

  facts.kubelet = probe_kubelet(prober, targets, trees);
  facts.programs = prober.run_on_thread<ProcessFacts>("processes", [trees] { return read_processes(trees); });
  std::string config;
  facts.agent = probe_agent(prober, targets, config, gathered.files);
  facts.in_agent_pod = targets.in_container && targets.agent_host.empty() && facts.agent.has_value();
  facts.settings = agent_settings(facts.agent, config, targets);
  const auto settings = facts.settings.value_or(AgentSettings{});
  const bool inside = targets.host_root == "/";
  const auto kubelets = facts.programs ? facts.programs->kubelets : std::vector<runtimes::CommandLine>();
  facts.engines = prober.run_on_thread<Engines>("container engines",
                                                [=] { return read_engines(trees, inside, kubelets); });
  const bool seen = !targets.in_container;
  facts.cdi = prober.run_on_thread<CdiSpecs>("CDI specs", [trees, directory = settings.cdi_directory, seen] {
    return read_cdi_specs(trees, directory, seen);
  });
  facts.mps = probe_mps_daemons(prober, trees, settings.mps_root);
  facts.cluster = probe_cluster(prober, targets);
  if (facts.cluster && facts.cluster->pods) explain_pending_pods(prober, targets, *facts.cluster->pods);
  facts.clock_synchronised = is_clock_synchronised();
  if (facts.agent && facts.agent->memory_limit) {
    facts.limit_host = prober.run_on_thread<LimitHost>(
        "cgroups", [trees] { return Result<LimitHost>(read_limit_host(trees)); });
  }

  const std::string plugins = facts.kubelet.directory + "/device-plugins";
  if (facts.bus) gathered.files.push_back({"pci.txt", pci_bus_text(*facts.bus)});
  std::set<std::string> settings_files;
  if (facts.engines) {
    for (const auto& engine : facts.engines->all)
      settings_files.insert(engine.report.files.begin(), engine.report.files.end());
  }
  auto raw = prober.run_on_thread<std::vector<ArchiveFile>>("files for the archive", [=] {
    return Result<std::vector<ArchiveFile>>(collect_raw_files(trees, plugins, settings_files));
  });
  if (raw) std::move(raw->begin(), raw->end(), std::back_inserter(gathered.files));
  return gathered;
}

}  // namespace gpulet::doctor
