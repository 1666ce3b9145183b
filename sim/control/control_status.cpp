#include "sim/control/control.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "sim/root/driver_files.h"

namespace gpulet::sim::control {
namespace {

std::vector<std::string> fault_summary(const Gpu& gpu) {
  std::vector<std::string> faults;
  if (gpu.faults.lost != 0) faults.emplace_back("lost");
  if (gpu.faults.hang != 0) faults.emplace_back("hangs");
  if (gpu.faults.delay_us != 0) faults.push_back("slow " + std::to_string(gpu.faults.delay_us) + " us");
  if (gpu.faults.error != 0) faults.push_back("error " + std::to_string(gpu.faults.error));
  if (gpu.faults.reset_hang != 0) faults.emplace_back("reset hangs");
  if (gpu.faults.reset_error != 0) faults.push_back("reset error " + std::to_string(gpu.faults.reset_error));
  if (gpu.faults.bad_memory != 0) faults.emplace_back("bad memory");
  if (gpu.faults.wrong_results != 0) faults.emplace_back("wrong results");
  if (gpu.faults.copy_percent != 0)
    faults.push_back("copies at " + std::to_string(gpu.faults.copy_percent) + " %");
  if (gpu.faults.launch_error != 0)
    faults.push_back("launch error " + std::to_string(gpu.faults.launch_error));
  if (gpu.faults.cuda_hang != 0) faults.emplace_back("CUDA hangs");
  if (gpu.faults.mig_hang != 0) faults.emplace_back("MIG hangs");
  if (gpu.faults.mig_error != 0) faults.push_back("MIG error " + std::to_string(gpu.faults.mig_error));
  if (gpu.recovery_action != 0) faults.push_back("recovery action " + std::to_string(gpu.recovery_action));
  if (gpu.remapped_rows.pending != 0) faults.emplace_back("remap pending");
  if (gpu.remapped_rows.failed != 0) faults.emplace_back("remap failed");
  if (gpu.retired_pages_pending != 0) faults.emplace_back("page retirement pending");
  if (gpu.sram_threshold != 0) faults.emplace_back("SRAM threshold");
  if (gpu.faults.inforom != 0) faults.emplace_back("InfoROM corrupted");
  if (gpu.pcie_width < gpu.pcie_width_max) {
    faults.push_back("PCIe x" + std::to_string(gpu.pcie_width) + " of x" +
                     std::to_string(gpu.pcie_width_max));
  }
  if (gpu.fabric.state != 0) {
    if (gpu.fabric.state != kFabricCompleted)
      faults.emplace_back("not in its fabric");
    else if (gpu.fabric.status != 0)
      faults.emplace_back("fabric failed");
    else if (gpu.fabric.health_mask != 0)
      faults.emplace_back("fabric degraded");
  }
  std::size_t down = 0;
  for (const NvLink& link : gpu.links) down += link.present != 0 && link.active == 0 ? 1 : 0;
  if (down != 0) faults.push_back(std::to_string(down) + " links down");
  return faults;
}

std::vector<std::string> fault_summary(const Driver& driver) {
  std::vector<std::string> faults;
  if (driver.loaded == 0) faults.emplace_back("not loaded");
  if (driver.hang != 0) faults.emplace_back("hangs");
  if (driver.delay_us != 0) faults.push_back("slow " + std::to_string(driver.delay_us) + " us");
  if (driver.init_error != 0) faults.push_back("init error " + std::to_string(driver.init_error));
  if (driver.event_wait_error != 0)
    faults.push_back("event wait error " + std::to_string(driver.event_wait_error));
  return faults;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "ok" : text;
}

std::size_t process_summary(const Gpu& gpu) {
  std::size_t count = 0;
  for (const Process& process : gpu.processes) count += process.pid != 0 ? 1 : 0;
  return count;
}

nlohmann::ordered_json mig_summary(const Gpu& gpu) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used == 0) continue;
    for (const ComputeInstance& compute : instance.compute) {
      if (compute.used == 0) continue;
      devices.push_back({{"uuid", compute.uuid},
                         {"profile", gpu.mig.profiles[instance.profile].name},
                         {"gpuInstance", instance.id},
                         {"computeInstance", compute.id}});
    }
  }
  return devices;
}

}  // namespace

std::string status_table(const Machine& machine, bool headers) {
  std::string text;
  char line[320];
  if (headers) {
    text = std::string(machine.name) + " (" + machine.product + "), driver " + machine.driver.version + ": " +
           joined(fault_summary(machine.driver)) + "\n";
    std::snprintf(line, sizeof(line), "%-3s  %-40s  %-12s  %4s  %15s  %5s  %6s  %5s  %s\n", "GPU", "UUID",
                  "PCI", "LOAD", "MEMORY MiB", "TEMP", "POWER", "PROCS", "STATE");
    text += line;
  }
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    const std::string memory =
        std::to_string(memory_in_use(gpu) >> 20) + " / " + std::to_string(gpu.memory_total >> 20);
    std::snprintf(line, sizeof(line), "%-3u  %-40s  %-12s  %3u%%  %15s  %4dC  %5dW  %5zu  %s\n", i, gpu.uuid,
                  address_text(gpu.pci).c_str(), gpu.utilization_gpu, memory.c_str(), gpu.temperature,
                  gpu.power_usage_mw / 1000, process_summary(gpu), joined(fault_summary(gpu)).c_str());
    text += line;
  }
  return text;
}

std::string status_json(const Machine& machine) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    gpus.push_back({{"index", i},
                    {"uuid", gpu.uuid},
                    {"name", gpu.name},
                    {"serial", gpu.serial},
                    {"pci", address_text(gpu.pci)},
                    {"minor", gpu.minor},
                    {"numaNode", gpu.numa_node},
                    {"memoryTotalMiB", gpu.memory_total >> 20},
                    {"memoryUsedMiB", memory_in_use(gpu) >> 20},
                    {"utilization", gpu.utilization_gpu},
                    {"temperature", gpu.temperature},
                    {"powerWatts", gpu.power_usage_mw / 1000},
                    {"processes", process_summary(gpu)},
                    {"migEnabled", gpu.mig.current != 0},
                    {"migDevices", mig_summary(gpu)},
                    {"recoveryAction", gpu.recovery_action},
                    {"faults", fault_summary(gpu)}});
  }
  const nlohmann::ordered_json whole = {{"name", machine.name},
                                        {"product", machine.product},
                                        {"driver",
                                         {{"version", machine.driver.version},
                                          {"cuda", machine.driver.cuda_version},
                                          {"loaded", machine.driver.loaded != 0},
                                          {"generation", machine.driver.generation},
                                          {"faults", fault_summary(machine.driver)}}},
                                        {"lastEvent", machine.last_event},
                                        {"gpus", gpus}};
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::sim::control
