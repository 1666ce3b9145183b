#include "doctor/gather.h"

#include <sys/timex.h>

#include "doctor/probes.h"

namespace gpulet::doctor {
namespace {

Result<bool> clock_synchronised() {
  timex clock{};
  if (::adjtimex(&clock) < 0) return fail(errno_error("adjtimex", errno));
  return (clock.status & STA_UNSYNC) == 0;
}

std::string bus_text(const Bus& bus) {
  std::string text;
  for (const auto& gpu : bus.gpus) text += gpu.address + " " + (gpu.driver.empty() ? "-" : gpu.driver) + "\n";
  return text + std::to_string(bus.switches) + " NVSwitches\n";
}

}  // namespace

Gathered gather(Places places) {
  Gathered gathered;
  Facts& facts = gathered.facts;
  Prober prober;
  const auto trees =
      prober.on_thread<Trees>("the node's folders", [places] { return Result<Trees>(trees_of(places)); });
  if (!trees) return gathered;
  facts.driver_root = trees->driver;
  facts.bus = prober.on_thread<Bus>("the PCI bus", [trees] { return look_at_bus(*trees); });
  const auto installed = prober.on_thread<Installed>(
      "the driver's files", [trees] { return Result<Installed>(look_at_driver_files(*trees)); });
  facts.installed = installed.value_or(
      Installed{.module = fail(Code::kDeadlineExceeded, "files do not answer"), .libraries = {}});
  facts.nodes = prober.on_thread<Nodes>("device nodes", [trees] { return look_at_nodes(*trees); });
  facts.driver =
      ask_driver(prober, trees->driver, {trees->sys.substr(0, trees->sys.size() - 4), trees->driver, "/"});
  if (facts.driver && facts.installed.libraries.empty()) facts.installed.libraries = {facts.driver->version};

  facts.kubelet = ask_kubelet(prober, places, *trees);
  facts.programs = prober.on_thread<Programs>("processes", [trees] { return look_at_programs(*trees); });
  std::string config;
  facts.agent = ask_agent(prober, places, config, gathered.files);
  facts.settings = settings_of(facts.agent, config, places);
  const auto settings = facts.settings.value_or(Settings{});
  const bool inside = places.host_root == "/";
  const auto kubelets = facts.programs ? facts.programs->kubelets : std::vector<runtimes::CommandLine>();
  facts.engines = prober.on_thread<Engines>("container engines",
                                            [=] { return look_at_engines(*trees, inside, kubelets); });
  const bool seen = !places.in_container;
  facts.cdi = prober.on_thread<CdiSpecs>(
      "CDI specs", [trees, folder = settings.cdi_folder, seen] { return look_at_cdi(*trees, folder, seen); });
  facts.mps = ask_mps(prober, *trees, settings.mps_root);
  facts.cluster = ask_cluster(prober, places);
  if (facts.cluster && facts.cluster->pods) explain(prober, places, *facts.cluster->pods);
  facts.clock_synchronised = clock_synchronised();

  const std::string plugins = facts.kubelet.folder + "/device-plugins";
  if (facts.bus) gathered.files.push_back({"pci.txt", bus_text(*facts.bus)});
  std::set<std::string> settings_files;
  if (facts.engines) {
    for (const auto& engine : facts.engines->all)
      settings_files.insert(engine.report.files.begin(), engine.report.files.end());
  }
  auto raw = prober.on_thread<std::vector<ArchiveFile>>("files for the archive", [=] {
    return Result<std::vector<ArchiveFile>>(raw_files(*trees, plugins, settings_files));
  });
  if (raw) std::move(raw->begin(), raw->end(), std::back_inserter(gathered.files));
  return gathered;
}

}  // namespace gpulet::doctor
