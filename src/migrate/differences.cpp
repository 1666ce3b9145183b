#include "migrate/differences.h"

#include <algorithm>
#include <array>

namespace gpulet::migrate {
namespace {

struct Seen {
  Met met;
  bool plugin = false, discovery = false, mps = false, manager = false, exporter = false, toolkit = false;
};

struct Rule {
  bool (*holds)(const Seen&);
  std::string_view what, page;
};

bool plugin(const Seen& seen) { return seen.plugin; }
bool cdi(const Seen& seen) { return seen.met.cdi || seen.toolkit; }

constexpr std::array<Rule, 16> kRules{{
    {plugin,
     "a request that cannot be granted gets a code and one line, where NVIDIA's plugin answers "
     "Unknown, or nothing",
     "0002-bad-requests-are-refused.md"},
    {plugin, "an unhealthy device is not given out; NVIDIA's plugin does",
     "0003-unhealthy-devices-are-not-allocated.md"},
    {plugin,
     "a fault marks every share of the GPU, and is over once it is proved to be; NVIDIA's plugin marks one "
     "share until it restarts",
     "0004-a-fault-marks-the-whole-gpu-and-heals.md"},
    {plugin, "a restarted kubelet, a changed config or a lost GPU ends and restarts nothing",
     "0005-nothing-restarts.md"},
    {plugin,
     "of several GPUs the best linked set is chosen exactly, NVSwitch counted: on such machines it may be "
     "another",
     "0006-placement-is-exact-and-sees-nvswitch.md"},
    {[](const Seen& seen) { return seen.met.unknown_keys; },
     "a key that is no setting is a warning under NVIDIA's name, and an error to `gpulet agent`",
     "0007-unknown-keys-are-errors.md"},
    {[](const Seen& seen) { return seen.met.dormant; },
     "resources, rename and devices of the config file do what they say: names and counts of resources "
     "change",
     "0008-dormant-settings-work.md"},
    {[](const Seen& seen) { return seen.plugin || seen.exporter; },
     "health, readiness, metrics and a page are served at port 9400, by a process without rights",
     "0009-the-network-sees-a-child-without-rights.md"},
    {[](const Seen& seen) { return seen.mps; }, "MPS shares MIG devices too", "0013-mps-on-mig-devices.md"},
    {[](const Seen& seen) { return seen.mps; },
     "MPS control daemons are watched, see their own GPUs alone, and end with the agent's Pod",
     "0014-mps-daemons-are-watched.md"},
    {[](const Seen& seen) { return seen.manager; },
     "a node's label that names no config falls back, where config-manager ends; new content of a ConfigMap "
     "counts "
     "at once",
     "0015-an-unknown-config-label-falls-back.md"},
    {cdi, "one static hook finishes a container, in place of five runs of nvidia-cdi-hook",
     "0016-one-static-hook-that-trusts-no-image.md"},
    {cdi, "CDI specs are 0.5.0 at most, without the groups of /dev/dri",
     "0017-cdi-documents-that-older-engines-read.md"},
    {cdi, "the loader's cache of a container is made on a read-only view of it",
     "0018-ldconfig-looks-and-does-not-touch.md"},
    {[](const Seen& seen) { return seen.exporter; },
     "memory and utilization of a shared GPU are divided by process and add up to the device",
     "0019-a-shared-gpu-is-divided-by-process.md"},
    {[](const Seen& seen) { return seen.discovery; },
     "labels stay when the program ends, and a node of several models has one rule for them",
     "0021-labels-outlive-the-program.md"},
}};

}  // namespace

std::vector<Difference> differences_of(const Facts& facts, const Met& met) {
  const auto runs = [&](Part part) {
    return std::ranges::any_of(facts.programs, [&](const auto& program) { return program.part == part; });
  };
  const auto lies = [&](Part part) {
    return std::ranges::any_of(facts.traces, [&](const auto& trace) { return trace.part == part; });
  };
  Seen seen{.met = met};
  // A spec may lie there long after; a socket does not.
  const bool socket = std::ranges::any_of(facts.traces, [](const auto& trace) {
    return trace.part == Part::kDevicePlugin && trace.path.ends_with(".sock");
  });
  seen.plugin = runs(Part::kDevicePlugin) || runs(Part::kCloudPlugin) || socket;
  seen.discovery = runs(Part::kFeatureDiscovery) || lies(Part::kFeatureDiscovery);
  seen.mps = met.mps;
  seen.manager = runs(Part::kConfigManager);
  seen.exporter = runs(Part::kDcgmExporter) || lies(Part::kDcgmExporter);
  seen.toolkit = runs(Part::kContainerToolkit) || lies(Part::kContainerToolkit);
  std::vector<Difference> differences;
  for (const auto& rule : kRules) {
    if (rule.holds(seen))
      differences.push_back({std::string(rule.what), "docs/adr/" + std::string(rule.page)});
  }
  return differences;
}

}  // namespace gpulet::migrate
