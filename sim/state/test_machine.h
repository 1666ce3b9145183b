// For tests: a machine without YAML, `gpu_count` GPUs like H100 (MIG capable, linked through one NVSwitch,
// two NUMA nodes), driver 570.124.06.
#pragma once

#include <algorithm>
#include <memory>

#include "sim/state/mig.h"
#include "sim/state/state.h"

namespace gpulet::sim {
namespace test_machine {

inline constexpr std::uint64_t kMiB = 1u << 20;

struct ProfileRow {
  std::uint32_t index, id;
  const char* name;
  std::uint32_t slices, memory_slices, max_instances, multiprocessors, copy_engines, decoders, jpegs, ofas;
  std::uint64_t memory_mib;
  std::uint32_t placement_count;
  std::uint8_t placements[8];
};

// NVIDIA's MIG user guide, H100 80GB.
inline constexpr ProfileRow kProfiles[] = {
    {0, 19, "1g.10gb", 1, 1, 7, 16, 1, 1, 1, 0, 9856, 7, {0, 1, 2, 3, 4, 5, 6}},
    {7, 20, "1g.10gb+me", 1, 1, 1, 16, 1, 1, 1, 1, 9856, 7, {0, 1, 2, 3, 4, 5, 6}},
    {9, 15, "1g.20gb", 1, 2, 4, 26, 1, 1, 1, 0, 19968, 4, {0, 2, 4, 6}},
    {1, 14, "2g.20gb", 2, 2, 3, 32, 2, 2, 2, 0, 19968, 3, {0, 2, 4}},
    {2, 9, "3g.40gb", 3, 4, 2, 60, 3, 3, 3, 0, 40320, 2, {0, 4}},
    {3, 5, "4g.40gb", 4, 4, 1, 64, 4, 4, 4, 0, 40320, 1, {0}},
    {4, 0, "7g.80gb", 7, 8, 1, 132, 8, 7, 7, 1, 81152, 1, {0}},
};

inline void fill_mig(Mig& mig) {
  mig.capable = 1;
  mig.memory_slices = 8;
  for (const ProfileRow& row : kProfiles) {
    MigProfile& profile = mig.profiles[mig.profile_count++];
    profile.index = row.index;
    profile.id = row.id;
    set_text(profile.name, row.name);
    profile.slices = row.slices;
    profile.memory_slices = row.memory_slices;
    profile.max_instances = row.max_instances;
    profile.multiprocessors = row.multiprocessors;
    profile.copy_engines = row.copy_engines;
    profile.decoders = row.decoders;
    profile.jpegs = row.jpegs;
    profile.ofas = row.ofas;
    profile.memory_mib = row.memory_mib;
    profile.placement_count = row.placement_count;
    std::copy(std::begin(row.placements), std::end(row.placements), profile.placements);
    derive_compute_profiles(profile);
  }
}

inline void fill_identity(Gpu& gpu, std::uint32_t index) {
  set_text(gpu.name, "NVIDIA H100 80GB HBM3");
  set_text(gpu.uuid, make_uuid("GPU-", "small/" + std::to_string(index)));
  set_text(gpu.serial, "165012300000" + std::to_string(index));
  set_text(gpu.board_part_number, "692-2G520-0200-000");
  set_text(gpu.vbios_version, "96.00.89.00.01");
  set_text(gpu.inforom_image, "G520.0200.00.05");
  set_text(gpu.inforom_oem, "2.1");
  set_text(gpu.inforom_ecc, "7.16");
  gpu.brand = 14;
  gpu.architecture = 9;
  gpu.compute_major = 9;
  gpu.minor = index;
  gpu.render_minor = 128 + index;
  gpu.module_id = index + 1;
  gpu.cores = 16896;
  gpu.multiprocessors = 132;
  gpu.memory_bus_bits = 5120;
  gpu.pci = PciAddress{0, static_cast<std::uint8_t>(0x18 + 0x10 * index), 0, 0, 0};
  gpu.board_id = static_cast<std::uint32_t>(gpu.pci.bus) << 8;
  gpu.pci_device_id = 0x233010de;
  gpu.pci_subsystem_id = 0x16c110de;
  gpu.memory_numa_node = kNotReported;
  gpu.pcie_generation = gpu.pcie_generation_max = 5;
  gpu.pcie_width = gpu.pcie_width_max = 16;
}

inline void fill_sensors(Gpu& gpu) {
  gpu.memory_total = 81559 * kMiB;
  gpu.memory_reserved = 551 * kMiB;
  gpu.bar1_total = 131072 * kMiB;
  gpu.clocks = Clocks{{345, 345, 2619, 765},
                      {1980, 1980, 2619, 1545},
                      {1980, 1980, 2619, 1545},
                      {1980, 1980, 2619, 1545},
                      {0, 0},
                      {0, 0}};
  gpu.clock_event_reasons = 1;
  gpu.fan_percent = kNotReported;
  gpu.temperature = 30;
  gpu.memory_temperature = 42;
  gpu.temperature_shutdown = 92;
  gpu.temperature_slowdown = 89;
  gpu.temperature_memory_max = 95;
  gpu.temperature_gpu_max = 87;
  gpu.power_usage_mw = 70'000;
  gpu.power_limit_mw = gpu.power_limit_default_mw = gpu.power_limit_max_mw = 700'000;
  gpu.power_limit_min_mw = 200'000;
  gpu.idle = Idle{70'000, 30, 42, {345, 345, 2619, 765}, 0};
  gpu.ecc_supported = 1;
  gpu.ecc_current = gpu.ecc_pending = 1;
  gpu.remapped_rows.supported = 1;
  gpu.remapped_rows.bank_histogram[0] = 2560;
  gpu.persistence_mode = 1;
  gpu.gsp_firmware_mode = 1;
  gpu.supported_events = kEventSingleBitEcc | kEventDoubleBitEcc | kEventPState | kEventXid | kEventClock |
                         kEventMigConfig | kEventGpuUnavailable | kEventGpuRecoveryAction;
}

}  // namespace test_machine

inline std::unique_ptr<Machine> small_machine(std::uint32_t gpu_count) {
  auto machine = std::make_unique<Machine>();
  set_text(machine->name, "small");
  set_text(machine->product, "Small H100");
  machine->gpu_count = std::min<std::uint32_t>(gpu_count, kMaxGpus);
  set_text(machine->driver.version, "570.124.06");
  set_text(machine->driver.nvml_version, "12.570.124.06");
  machine->driver.cuda_version = 12080;
  machine->driver.loaded = 1;
  machine->driver.generation = 1;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) {
    Gpu& gpu = machine->gpus[i];
    test_machine::fill_identity(gpu, i);
    test_machine::fill_sensors(gpu);
    test_machine::fill_mig(gpu.mig);
    const std::uint32_t half = (machine->gpu_count + 1) / 2;
    gpu.numa_node = static_cast<std::int32_t>(i / half);
    gpu.cpu_affinity[0] = gpu.numa_node == 0 ? 0xffff : 0xffff0000;
    for (std::uint32_t j = 0; j < machine->gpu_count; ++j) {
      gpu.topology[j] = i == j ? kTopologyInternal : i / half == j / half ? kTopologyNode : kTopologySystem;
    }
    for (std::uint32_t link = 0; link < 18; ++link) {
      gpu.links[link] = NvLink{};
      gpu.links[link].present = gpu.links[link].active = 1;
      gpu.links[link].version = 6;
      gpu.links[link].remote = kRemoteSwitch;
      gpu.links[link].remote_pci = PciAddress{0, 7, 0, 0, 0};
      gpu.links[link].remote_device_id = 0x22a310de;
      gpu.links[link].remote_link = i * 18 + link;
      gpu.links[link].speed_mbps = 26562;
    }
  }
  return machine;
}

// With a driver that limits the memory of cgroups.
inline std::unique_ptr<Machine> machine_with_memory_limits(MemoryBackend backend) {
  auto machine = small_machine(2);
  set_text(machine->driver.version, "615.71.09");
  machine->memory.mode = backend;
  return machine;
}

}  // namespace gpulet::sim
