#include "doctor/checks.h"

#include <algorithm>

#include "base/text.h"
#include "doctor/agent_readings.h"
#include "health/report/health_report.h"
#include "nvml/usage.h"

namespace gpulet::doctor {

using health::FaultClass;

namespace {

constexpr const char *kDriver = "nvidia", *kNouveau = "nouveau";
constexpr const char* kReload =
    "reboot; or, with nothing on the GPUs, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && "
    "modprobe nvidia`";

std::vector<std::string> gpus_bound_to(const PciBus& bus, std::string_view driver) {
  std::vector<std::string> addresses;
  for (const auto& gpu : bus.gpus) {
    if (gpu.driver == driver) addresses.push_back(gpu.address);
  }
  return addresses;
}

// A driver that responds is loaded, even if its module is not visible: in a container, or simulated.
bool is_driver_loaded(const Facts& facts) {
  return facts.installed.module.has_value() || facts.driver.has_value();
}

}  // namespace

bool agent_offers_gpus(const Facts& facts) {
  return facts.in_agent_pod && facts.agent && !facts.agent->driver_version.empty() &&
         std::ranges::any_of(facts.agent->devices, &AgentDevice::offered);
}

CheckResult agent_knows_result(const Facts& facts, const std::string& what) {
  return pass_result("the agent has driver " + facts.agent->driver_version + " and offers its GPUs (" + what +
                     ")");
}

CheckResult check_pci_bus(const Facts& facts) {
  // Beside Tegra's own GPU there may be others, on the bus.
  if (facts.platform && (!facts.bus || facts.bus->gpus.empty()))
    return fail_result(inventory::platform_text(*facts.platform),
                       inventory::platform_advice(*facts.platform));
  if (!facts.bus) return unknown_result(facts.bus.error());
  const auto& gpus = facts.bus->gpus;
  if (gpus.empty() && facts.driver && !facts.driver->gpus.empty())
    return skip_result("no PCI bus visible here; the driver reports " +
                       text::count_text(facts.driver->gpus.size(), "GPU"));
  if (gpus.empty() && agent_offers_gpus(facts))
    return skip_result("no PCI bus visible here; the agent offers GPUs");
  if (gpus.empty()) {
    return fail_result("no NVIDIA GPU on the PCI bus",
                       "see `lspci -d 10de:`; reseat the card, enable its slot in the firmware, or pass it "
                       "through to this virtual machine");
  }
  const auto away = gpus_bound_to(*facts.bus, "vfio-pci");
  if (away.size() == gpus.size()) {
    return fail_result(
        "all of " + text::count_text(gpus.size(), "GPU") + " are assigned to virtual machines (vfio-pci)",
        "remove this node from the pool, or release them: `driverctl unset-override " + away.front() + "`");
  }
  std::string found = text::count_text(gpus.size(), "NVIDIA GPU") + " on the PCI bus";
  if (!away.empty()) found += ", " + std::to_string(away.size()) + " of them assigned to virtual machines";
  if (facts.platform) found += "; " + inventory::platform_text(*facts.platform);
  return pass_result(std::move(found));
}

CheckResult check_nouveau(const Facts& facts) {
  if (!facts.bus) return unknown_result(facts.bus.error());
  const std::string fix =
      "`printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/blacklist-nouveau.conf`, "
      "rebuild the initramfs (`update-initramfs -u` or `dracut --force`) and reboot";
  const auto held = gpus_bound_to(*facts.bus, kNouveau);
  if (!held.empty()) return fail_result("Nouveau is bound to " + text::join_limited(held), fix);
  if (!facts.bus->nouveau) return pass_result("Nouveau is not loaded");
  if (is_driver_loaded(facts)) return warn_result("Nouveau is loaded next to the NVIDIA driver", fix);
  return fail_result("Nouveau is loaded, and the NVIDIA driver is not", fix);
}

CheckResult check_driver_module(const Facts& facts) {
  const auto& module = facts.installed.module;
  if (module) return pass_result("the kernel module " + *module + " is loaded");
  if (module.error().code() != Code::kNotFound) return unknown_result(module.error());
  if (is_driver_loaded(facts))
    return pass_result("the kernel module is not visible here, but driver " + facts.driver->version +
                       " responds");
  if (agent_offers_gpus(facts)) return agent_knows_result(facts, "the kernel module is not visible here");
  if (facts.installed.libraries.empty()) {
    return fail_result(
        "no NVIDIA driver: the kernel module is not loaded and there are no libraries below " +
            facts.driver_root,
        "install the driver (`apt-get install nvidia-driver`, or NVIDIA's own package), then reboot");
  }
  return fail_result("the NVIDIA kernel module is not loaded",
                     "`modprobe nvidia`; if that fails, see `dmesg` (Secure Boot rejects an unsigned module; "
                     "a new kernel needs it rebuilt: `dkms autoinstall`)");
}

CheckResult check_driver_library(const Facts& facts) {
  const auto& libraries = facts.installed.libraries;
  if (!libraries.empty()) {
    return pass_result("libnvidia-ml " + text::join(libraries, ", ") +
                       (facts.driver_root == "/" ? "" : " below " + facts.driver_root));
  }
  if (agent_offers_gpus(facts))
    return agent_knows_result(facts, "its library is not below " + facts.driver_root + " here");
  return fail_result("libnvidia-ml.so.1 is not below " + facts.driver_root,
                     "install the driver's libraries (`apt-get install libnvidia-ml1 libcuda1`), or set "
                     "--driver-root (/run/nvidia/driver for a driver container)");
}

CheckResult check_driver_version(const Facts& facts) {
  const auto& installed = facts.installed;
  if (!installed.module && facts.driver)
    return pass_result("driver " + facts.driver->version + " responds to its library");
  if (agent_offers_gpus(facts) && (!installed.module || installed.libraries.empty()))
    return agent_knows_result(facts, "the versions are not visible here");
  if (!installed.module) return unknown_result(installed.module.error());
  const auto& libraries = installed.libraries;
  if (std::ranges::find(libraries, *installed.module) != libraries.end()) {
    if (libraries.size() == 1)
      return pass_result("libraries and kernel module are both " + *installed.module);
    return warn_result("libraries of several versions are installed: " + text::join(libraries, ", "),
                       "remove those that are not " + *installed.module);
  }
  return fail_result("the libraries are " + text::join(libraries, ", ") + ", the loaded kernel module is " +
                         *installed.module,
                     kReload);
}

CheckResult check_driver_rights(const Facts& facts) {
  if (!facts.agent) return unknown_result(facts.agent.error());
  const auto& missing = facts.agent->missing_driver_rights;
  if (missing.empty()) return pass_result("the agent reports no missing right");
  return warn_result(
      "the agent has " + text::join_limited(missing),
      "give its container the capability or the device node (docs/health.md), then restart it");
}

CheckResult check_driver_response(const Facts& facts) {
  if (!facts.driver) {
    const auto& error = facts.driver.error();
    if (agent_offers_gpus(facts)) return agent_knows_result(facts, "from here: " + error.full_message());
    if (error.code() == Code::kPermissionDenied)
      return fail_result("the driver denies access: " + error.full_message(),
                         "run this as root, with the GPUs' device nodes");
    if (error.full_message().find("version mismatch") != std::string::npos)
      return fail_result("the driver does not respond: " + error.full_message(), kReload);
    return fail_result("the driver does not respond: " + error.full_message(),
                       "see `dmesg | grep -e NVRM -e Xid`; reboot if the driver hangs");
  }
  const std::size_t seen = facts.driver->gpus.size();
  const std::size_t here = facts.bus ? gpus_bound_to(*facts.bus, kDriver).size() : seen;
  if (seen < here) {
    return fail_result(
        "the driver reports " + std::to_string(seen) + " of the " + text::count_text(here, "GPU") +
            " bound to it",
        "`dmesg | grep -e NVRM -e Xid`; reboot if a GPU fell off the bus, and check its power and seat");
  }
  if (seen == 0)
    return fail_result("the driver responds but reports no GPU",
                       "see `dmesg | grep NVRM` for why it rejects them");
  return pass_result("driver " + facts.driver->version + " reports " + text::count_text(seen, "GPU"));
}

// Checks for "GPU broken": faults of GPUs and of their links.

namespace {

std::string gpu_label(const GpuFacts& gpu) { return "GPU " + std::to_string(gpu.index); }

// A fault reported by the driver itself; empty if none.
std::string driver_fault(const GpuFacts& gpu) {
  if (gpu.unreadable) return gpu.unreadable->message();
  if (gpu.recovery_action != 0)
    return "the driver requests: " + std::string(health::recovery_action_text(gpu.recovery_action));
  if (gpu.rows_failed) return "a memory row could not be remapped";
  if (gpu.sram_threshold) return "too many SRAM errors";
  return {};
}
std::string driver_warning(const GpuFacts& gpu) {
  if (gpu.rows_pending) return "remapped rows wait for a reset";
  if (gpu.pages_pending) return "retired pages wait for a reset";
  if (!gpu.inforom_valid) return "its InfoROM is corrupted";
  return {};
}

std::string reset_fix(const std::string& gpu) {
  return "stop its workloads, then `" + health::reset_command(gpu) + "`";
}

std::string fault_fix(const GpuFacts& gpu) {
  const std::string reset = reset_fix(std::to_string(gpu.index));
  if (!gpu.unreadable) return gpu.rows_failed ? "replace the card" : reset;
  if (gpu.unreadable->code() == Code::kDeviceLost)
    return "reboot the node; if it happens again, check seat and power, then replace the card";
  return "`dmesg | grep -e NVRM -e Xid`; " + reset + ", else reboot";
}

CheckResult check_gpus_by_driver(const Facts& facts) {
  if (!facts.driver) return unknown_result(facts.driver.error());
  for (const auto& gpu : facts.driver->gpus) {
    if (const auto fault = driver_fault(gpu); !fault.empty())
      return fail_result(gpu_label(gpu) + ": " + fault, fault_fix(gpu));
  }
  for (const auto& gpu : facts.driver->gpus) {
    if (const auto flaw = driver_warning(gpu); !flaw.empty())
      return warn_result(gpu_label(gpu) + ": " + flaw, fault_fix(gpu));
  }
  return pass_result("the driver reports no fault of " + text::count_text(facts.driver->gpus.size(), "GPU") +
                     " (past XIDs are unknown without an agent)");
}

std::string device_line(const AgentDevice& device) {
  return device.name + " is " + device.state + (device.reason.empty() ? "" : ": " + device.reason);
}

// A line for each GPU for which `describe` returns text: "GPU 3 (…)".
template <class Says>
std::vector<std::string> describe_gpus_with(const DriverFacts& driver, const Says& describe) {
  std::vector<std::string> lines;
  for (const auto& gpu : driver.gpus) {
    if (gpu.unreadable) continue;
    if (const std::string what = describe(gpu); !what.empty()) lines.push_back(gpu_label(gpu) + " " + what);
  }
  return lines;
}

std::string throttle_reason(const GpuFacts& gpu) {
  const auto at = gpu.temperature == 0 ? std::string() : " at " + std::to_string(gpu.temperature) + " °C";
  const auto has = [&](std::uint64_t bit) { return (gpu.clock_events & bit) != 0; };
  if (has(nvml::kClocksHwThermal) || has(nvml::kClocksSwThermal)) return "is too hot" + at;
  if (has(nvml::kClocksHwPowerBrake)) return "is throttled by its power supply (power brake)";
  if (has(nvml::kClocksHwSlowdown)) return "is slowed down by hardware";
  return {};
}

CheckResult check_mig_configuration(const MigFacts& mig, const GpuFacts& gpu) {
  const std::string index = std::to_string(gpu.index);
  if (mig.pending) {
    return fail_result(gpu_label(gpu) + ": MIG is " + (mig.enabled ? "on" : "off") + ", and " +
                           (*mig.pending ? "on" : "off") + " after the next reset",
                       reset_fix(index));
  }
  if (mig.enabled && mig.instances == 0) {
    return fail_result(gpu_label(gpu) + ": MIG is on without instances, so none of it is offered",
                       "`gpulet mig apply --gpu " + index +
                           " -f FILE -c CONFIG`, or turn MIG off: `nvidia-smi -i " + index + " -mig 0`");
  }
  if (mig.empty_instances > 0) {
    return fail_result(gpu_label(gpu) + ": " + text::count_text(mig.empty_instances, "GPU instance") +
                           " without a compute instance",
                       "`gpulet mig apply --gpu " + index + " -f FILE -c CONFIG`, or `nvidia-smi mig -i " +
                           index + " -cci`");
  }
  return pass_result({});
}

}  // namespace

CheckResult check_gpu_health(const Facts& facts) {
  if (!facts.agent) return check_gpus_by_driver(facts);
  const AgentDevice *worst = nullptr, *flagged = nullptr, *first_waiting = nullptr;
  std::size_t withdrawn = 0, excluded = 0, waiting = 0;
  for (const auto& device : facts.agent->devices) {
    if (!device.excluded.empty()) {
      ++excluded;
      continue;
    }
    if (device.waits) {
      ++waiting;
      if (first_waiting == nullptr) first_waiting = &device;
      continue;
    }
    withdrawn += device.offered ? 0 : 1;
    if (!device.offered && worst == nullptr) worst = &device;
    if (device.offered && device.state == "degraded" && flagged == nullptr) flagged = &device;
  }
  const auto fix = [](const AgentDevice& device) {
    return "`gpulet health " + device.uuid + "` shows the next step";
  };
  const auto others = [](std::size_t count) {
    return count > 1 ? " (and " + std::to_string(count - 1) + " more)" : std::string();
  };
  if (worst != nullptr) return fail_result(device_line(*worst) + others(withdrawn), fix(*worst));
  if (first_waiting != nullptr)
    return warn_result(first_waiting->name + " " + first_waiting->reason + others(waiting),
                       "wait; `gpulet health " + first_waiting->uuid + "` shows when it is over");
  if (flagged != nullptr) return warn_result(device_line(*flagged), fix(*flagged));
  return pass_result("the agent reports " +
                     text::count_text(facts.agent->devices.size() - excluded, "device") + " as healthy" +
                     (excluded == 0 ? "" : "; rules exclude " + std::to_string(excluded)));
}

CheckResult check_mig(const Facts& facts) {
  if (facts.cluster && facts.cluster->mig_state == "failed") {
    return fail_result("the node's label nvidia.com/mig.config.state is failed",
                       "see the agent's log; `gpulet mig plan` shows what blocks the layout");
  }
  if (!facts.driver && !agent_reads_gpus(facts)) return unknown_result(facts.driver.error());
  const auto gpus = facts.driver ? facts.driver->gpus : gpus_by_agent(*facts.agent);
  const std::string origin = facts.driver ? "" : " (by the agent)";
  std::size_t on = 0;
  for (const auto& gpu : gpus) {
    if (gpu.unreadable) continue;
    if (auto result = check_mig_configuration(gpu.mig, gpu); result.verdict != Verdict::kPass) return result;
    on += gpu.mig.enabled ? 1 : 0;
  }
  return pass_result(
      (on == 0 ? "MIG is off" : "MIG is on and partitioned on " + text::count_text(on, "GPU")) + origin);
}

CheckResult check_mps_daemons(const Facts& facts) {
  if (!facts.mps) return unknown_result(facts.mps.error());
  for (const auto& daemon : *facts.mps) {
    if (!daemon.error) continue;
    return fail_result(
        "the MPS control daemon of " + daemon.name + " does not respond: " + daemon.error->message(),
        "the agent restarts it automatically; if it cannot, see its log; restart containers that use it");
  }
  if (facts.mps->empty()) return pass_result("no GPU is shared by MPS");
  return pass_result(text::count_text(facts.mps->size(), "MPS control daemon") +
                     (facts.mps->size() == 1 ? " responds" : " respond"));
}

CheckResult check_throttling(const Facts& facts) {
  const std::string good = "no GPU is throttled",
                    fix =
                        "check fans, filters, room temperature and power supply; to limit power for now: "
                        "`nvidia-smi -pl WATTS`";
  if (!facts.driver)
    return result_by_agent(facts, {FaultClass::kThermal, FaultClass::kPower}, health::Source::kViolations,
                           good, fix);
  const auto slow = describe_gpus_with(*facts.driver, throttle_reason);
  return slow.empty() ? pass_result(good) : warn_result(text::join_limited(slow), fix);
}

CheckResult check_processes_outside_pods(const Facts& facts) {
  if (!facts.agent) return unknown_result(facts.agent.error());
  if (!agent_reads_gpus(facts)) return skip_result("not applicable: the agent reads no GPU");
  std::vector<std::string> found;
  for (const auto& gpu : facts.agent->gpus) {
    for (const auto& process : gpu.outside_pods)
      found.push_back("GPU " + std::to_string(gpu.index) + ": " + process);
  }
  if (found.empty()) return pass_result("no process outside of Pods is known to hold GPU memory");
  return warn_result(text::join_limited(found) + ", in no Pod: the GPU is the last that a container gets",
                     "end the process, or keep its GPU from Kubernetes: `gpulet cordon INDEX`, or a rule of "
                     "gpulet.partition with exclude");
}

CheckResult check_iommu(const Facts& facts) {
  if (!facts.bus) return unknown_result(facts.bus.error());
  if (facts.bus->gpus.size() < 2) return skip_result("not applicable: only one GPU");
  if (!facts.bus->redirecting_bridges.empty()) {
    return warn_result("ACS routes GPU-to-GPU traffic through the CPU at " +
                           text::join_limited(facts.bus->redirecting_bridges),
                       "on bare metal turn ACS off in the firmware, or `setpci -s " +
                           facts.bus->redirecting_bridges.front() + " ECAP_ACS+0x6.w=0000`");
  }
  if (!facts.bus->translated_gpus.empty()) {
    return warn_result("the IOMMU translates the DMA of " + text::join_limited(facts.bus->translated_gpus) +
                           ": GPU-to-GPU transfers are slow, or hang",
                       "on bare metal boot with `iommu=pt`, or turn the IOMMU off in the firmware");
  }
  if (facts.bus->bridges_hidden)
    return unknown_result("only root can read the bridges' settings", "run this as root");
  return pass_result("neither ACS nor the IOMMU affects GPU-to-GPU traffic");
}

CheckResult check_pcie_width(const Facts& facts) {
  const std::string good = "every GPU has all of its PCIe lanes",
                    fix = "reseat the card or its riser; `lspci -vv` shows LnkSta and LnkCap";
  if (!facts.driver)
    return result_by_agent(facts, {FaultClass::kPcieWidth}, health::Source::kPcie, good, fix);
  const auto narrow = describe_gpus_with(*facts.driver, [](const GpuFacts& gpu) {
    if (gpu.width == 0 || gpu.width >= gpu.full_width) return std::string();
    return "has " + std::to_string(gpu.width) + " of " + std::to_string(gpu.full_width) + " lanes";
  });
  return narrow.empty() ? pass_result(good) : warn_result(text::join_limited(narrow), fix);
}

namespace {

constexpr const char* kFabricFix =
    "`systemctl status nvidia-fabricmanager`; its version must be the driver's: `apt-get install "
    "nvidia-fabricmanager-BRANCH`, then `systemctl enable --now nvidia-fabricmanager`";
constexpr const char* kFabricGood = "every GPU has joined its NVLink fabric";

// GPUs before Hopper do not report their registration.
CheckResult check_fabric_manager(const Facts& facts, bool has_switches) {
  if (!has_switches) return skip_result("not applicable: no NVSwitch on this node");
  if (!facts.programs) return unknown_result(facts.programs.error());
  if (facts.programs->fabric_manager) return pass_result("the fabric manager runs");
  return fail_result("this node has NVSwitches but no fabric manager: CUDA does not start (error 802)",
                     kFabricFix);
}

CheckResult check_fabric_by_agent(const Facts& facts) {
  auto result = result_by_agent(facts, {FaultClass::kFabric, FaultClass::kFabricDegraded},
                                health::Source::kFabric, kFabricGood, kFabricFix);
  if (!agent_reads_gpus(facts) || result.verdict == Verdict::kFail || result.verdict == Verdict::kWarn)
    return result;
  const auto& gpus = facts.agent->gpus;
  if (std::ranges::any_of(gpus, &AgentGpu::in_fabric)) return result;
  return check_fabric_manager(
      facts, std::ranges::any_of(gpus, [](const auto& gpu) { return gpu.nvswitch_links > 0; }));
}

}  // namespace

CheckResult check_nvlink_fabric(const Facts& facts) {
  if (!facts.driver) return check_fabric_by_agent(facts);
  const auto in_state = [&](health::FabricState state, const char* describe) {
    return describe_gpus_with(*facts.driver, [&](const GpuFacts& gpu) {
      return gpu.fabric == state ? std::string(describe) : std::string();
    });
  };
  const auto failed = in_state(health::FabricState::kFailed, "was rejected by its NVLink fabric");
  if (!failed.empty())
    return fail_result(text::join_limited(failed) + ": CUDA does not start there", kFabricFix);
  const auto joining = in_state(health::FabricState::kJoining, "has not joined its NVLink fabric");
  if (!joining.empty())
    return fail_result(text::join_limited(joining) + ": CUDA does not start there", kFabricFix);
  const auto slow = in_state(health::FabricState::kDegraded, "has reduced NVLink fabric bandwidth");
  if (!slow.empty()) return warn_result(text::join_limited(slow), kFabricFix);
  if (!in_state(health::FabricState::kHealthy, "is in").empty()) return pass_result(kFabricGood);
  if (!facts.bus) return unknown_result(facts.bus.error());
  return check_fabric_manager(facts, facts.bus->switches != 0);
}

}  // namespace gpulet::doctor
