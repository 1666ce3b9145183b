// "GPU broken": what the agent or the driver holds of each GPU, and of what joins them.
#include <algorithm>

#include "doctor/judges.h"
#include "nvml/usage.h"

namespace gpulet::doctor {
namespace {

std::string gpu_name(const GpuFacts& gpu) { return "GPU " + std::to_string(gpu.index); }

// What the driver itself says against a GPU; empty for nothing. `asks`: something can be done later.
std::string fault_of(const GpuFacts& gpu) {
  if (gpu.unreadable) return gpu.unreadable->message();
  if (gpu.recovery_action != 0)
    return "the driver asks for: " + std::string(health::describe_recovery_action(gpu.recovery_action));
  if (gpu.rows_failed) return "a row of its memory could not be remapped";
  if (gpu.sram_threshold) return "too many errors in its SRAM";
  return {};
}
std::string flaw_of(const GpuFacts& gpu) {
  if (gpu.rows_pending) return "remapped rows wait for a reset";
  if (gpu.pages_pending) return "retired pages wait for a reset";
  if (!gpu.inforom_valid) return "its InfoROM is corrupted";
  return {};
}

std::string fix_of(const GpuFacts& gpu) {
  const std::string reset =
      "end what runs on it, then `nvidia-smi --gpu-reset -i " + std::to_string(gpu.index) + "`";
  if (!gpu.unreadable) return gpu.rows_failed ? "replace the card" : reset;
  if (gpu.unreadable->code() == Code::kDeviceLost)
    return "reboot the node; where it happens again, check seat and power, then replace the card";
  return "`dmesg | grep -e NVRM -e Xid`; " + reset + ", else reboot";
}

Judgement by_driver(const Facts& facts) {
  if (!facts.driver) return cannot_tell(facts.driver.error());
  for (const auto& gpu : facts.driver->gpus) {
    if (const auto fault = fault_of(gpu); !fault.empty())
      return fails(gpu_name(gpu) + ": " + fault, fix_of(gpu));
  }
  for (const auto& gpu : facts.driver->gpus) {
    if (const auto flaw = flaw_of(gpu); !flaw.empty()) return warn(gpu_name(gpu) + ": " + flaw, fix_of(gpu));
  }
  return pass("the driver says nothing against " + counted(facts.driver->gpus.size(), "GPU") +
              " (without an agent XIDs of the past are not known)");
}

std::string line_of(const AgentDevice& device) {
  return device.name + " is " + device.state + (device.reason.empty() ? "" : ": " + device.reason);
}

// The GPUs of which `says` something, "GPU 3 (…)".
template <class Says>
std::vector<std::string> gpus_with(const Driver& driver, const Says& says) {
  std::vector<std::string> lines;
  for (const auto& gpu : driver.gpus) {
    if (gpu.unreadable) continue;
    if (const std::string what = says(gpu); !what.empty()) lines.push_back(gpu_name(gpu) + " " + what);
  }
  return lines;
}

std::string throttle_of(const GpuFacts& gpu) {
  const auto at = gpu.temperature == 0 ? std::string() : " at " + std::to_string(gpu.temperature) + " °C";
  const auto has = [&](std::uint64_t bit) { return (gpu.clock_events & bit) != 0; };
  if (has(nvml::kClocksHwThermal) || has(nvml::kClocksSwThermal)) return "is too hot" + at;
  if (has(nvml::kClocksHwPowerBrake)) return "is held down by its power supply (power brake)";
  if (has(nvml::kClocksHwSlowdown)) return "is slowed down by hardware";
  return {};
}

Judgement half_configured(const MigFacts& mig, const GpuFacts& gpu) {
  const std::string index = std::to_string(gpu.index);
  if (mig.pending) {
    return fails(gpu_name(gpu) + ": MIG is " + (mig.enabled ? "on" : "off") + ", and " +
                     (*mig.pending ? "on" : "off") + " after the next reset",
                 "end what runs on it, then `nvidia-smi --gpu-reset -i " + index + "`");
  }
  if (mig.enabled && mig.instances == 0) {
    return fails(gpu_name(gpu) + ": MIG is on, and no instance is on it: nothing of it is offered",
                 "`gpulet mig apply --gpu " + index + " -f FILE -c CONFIG`, or MIG off: `nvidia-smi -i " +
                     index + " -mig 0`");
  }
  if (mig.empty_instances > 0) {
    return fails(
        gpu_name(gpu) + ": " + counted(mig.empty_instances, "GPU instance") + " without a compute instance",
        "`gpulet mig apply --gpu " + index + " -f FILE -c CONFIG`, or `nvidia-smi mig -i " + index +
            " -cci`");
  }
  return pass({});
}

}  // namespace

Judgement judge_gpus(const Facts& facts) {
  if (!facts.agent) return by_driver(facts);
  const AgentDevice *worst = nullptr, *flagged = nullptr;
  std::size_t withdrawn = 0;
  for (const auto& device : facts.agent->devices) {
    withdrawn += device.offered ? 0 : 1;
    if (!device.offered && worst == nullptr) worst = &device;
    if (device.offered && device.state == "degraded" && flagged == nullptr) flagged = &device;
  }
  const auto fix = [](const AgentDevice& device) {
    return "`gpulet health " + device.uuid + "` says what to do next";
  };
  if (worst != nullptr) {
    const std::string others = withdrawn > 1 ? " (and " + std::to_string(withdrawn - 1) + " more)" : "";
    return fails(line_of(*worst) + others, fix(*worst));
  }
  if (flagged != nullptr) return warn(line_of(*flagged), fix(*flagged));
  return pass("the agent holds " + counted(facts.agent->devices.size(), "device") + " for fit");
}

Judgement judge_mig(const Facts& facts) {
  if (facts.cluster && facts.cluster->mig_state == "failed") {
    return fails("the node's label nvidia.com/mig.config.state is failed",
                 "the agent's log says why; `gpulet mig plan` shows what is in the way");
  }
  if (!facts.driver) return cannot_tell(facts.driver.error());
  std::size_t on = 0;
  for (const auto& gpu : facts.driver->gpus) {
    if (gpu.unreadable) continue;
    if (auto judged = half_configured(gpu.mig, gpu); judged.verdict != Verdict::kPass) return judged;
    on += gpu.mig.enabled ? 1 : 0;
  }
  return pass(on == 0 ? "MIG is off" : "MIG is on and cut up on " + counted(on, "GPU"));
}

Judgement judge_mps(const Facts& facts) {
  if (!facts.mps) return cannot_tell(facts.mps.error());
  for (const auto& daemon : *facts.mps) {
    if (!daemon.trouble) continue;
    return fails(
        "the MPS control daemon of " + daemon.name + " does not answer: " + daemon.trouble->message(),
        "the agent starts it again by itself: its log says why it cannot; containers that use it must be "
        "restarted");
  }
  if (facts.mps->empty()) return pass("no GPU is shared by MPS");
  return pass(counted(facts.mps->size(), "MPS control daemon") +
              (facts.mps->size() == 1 ? " answers" : " answer"));
}

Judgement judge_throttling(const Facts& facts) {
  if (!facts.driver) return cannot_tell(facts.driver.error());
  const auto slow = gpus_with(*facts.driver, throttle_of);
  if (slow.empty()) return pass("no GPU's clocks are held down");
  return warn(some_of(slow),
              "see to fans, filters and the room's air, or to the power supply; a limit that holds for "
              "now: `nvidia-smi -pl WATTS`");
}

Judgement judge_iommu(const Facts& facts) {
  if (!facts.bus) return cannot_tell(facts.bus.error());
  if (facts.bus->gpus.size() < 2) return pass("one GPU needs no way to another");
  if (!facts.bus->redirecting_bridges.empty()) {
    return warn(
        "ACS sends what goes from GPU to GPU over the CPU at " + some_of(facts.bus->redirecting_bridges),
        "on bare metal switch ACS off in the firmware, or `setpci -s " +
            facts.bus->redirecting_bridges.front() + " ECAP_ACS+0x6.w=0000`");
  }
  if (!facts.bus->translated_gpus.empty()) {
    return warn("the IOMMU translates the DMA of " + some_of(facts.bus->translated_gpus) +
                    ": GPU to GPU is slow, or hangs",
                "on bare metal boot with `iommu=pt`, or switch the IOMMU off in the firmware");
  }
  if (facts.bus->bridges_unseen)
    return cannot_tell("the bridges' settings are root's to read", "run this as root");
  return pass("neither ACS nor the IOMMU is between the GPUs");
}

Judgement judge_width(const Facts& facts) {
  if (!facts.driver) return cannot_tell(facts.driver.error());
  const auto narrow = gpus_with(*facts.driver, [](const GpuFacts& gpu) {
    if (gpu.width == 0 || gpu.width >= gpu.full_width) return std::string();
    return "has " + std::to_string(gpu.width) + " of " + std::to_string(gpu.full_width) + " lanes";
  });
  if (narrow.empty()) return pass("every GPU has all of its PCIe lanes");
  return warn(some_of(narrow), "reseat the card or its riser; `lspci -vv` shows LnkSta beside LnkCap");
}

Judgement judge_fabric(const Facts& facts) {
  const std::string fix =
      "`systemctl status nvidia-fabricmanager`; its version must be the driver's: `apt-get install "
      "nvidia-fabricmanager-BRANCH`, then `systemctl enable --now nvidia-fabricmanager`";
  if (!facts.driver) return cannot_tell(facts.driver.error());
  const auto in_state = [&](health::FabricState state, const char* says) {
    return gpus_with(*facts.driver, [&](const GpuFacts& gpu) {
      return gpu.fabric == state ? std::string(says) : std::string();
    });
  };
  const auto failed = in_state(health::FabricState::kFailed, "was refused by its NVLink fabric");
  if (!failed.empty()) return fails(some_of(failed) + ": CUDA does not start there", fix);
  const auto joining = in_state(health::FabricState::kJoining, "has not joined its NVLink fabric");
  if (!joining.empty()) return fails(some_of(joining) + ": CUDA does not start there", fix);
  const auto slow = in_state(health::FabricState::kDegraded, "has less of its NVLink fabric");
  if (!slow.empty()) return warn(some_of(slow), fix);
  if (!in_state(health::FabricState::kHealthy, "is in").empty())
    return pass("every GPU has joined its NVLink fabric");
  if (!facts.bus) return cannot_tell(facts.bus.error());
  if (facts.bus->switches == 0) return pass("no NVSwitch on this node");
  // GPUs before Hopper do not say whether they are registered.
  if (!facts.programs) return cannot_tell(facts.programs.error());
  if (facts.programs->fabric_manager) return pass("the fabric manager runs");
  return fails("there are NVSwitches and no fabric manager: CUDA does not start (error 802)", fix);
}

}  // namespace gpulet::doctor
