#include "sim/root/texts.h"

#include <algorithm>
#include <cstdio>

#include "sim/state/capabilities.h"

namespace gpulet::sim {
namespace {

constexpr std::uint32_t kTuring = 6;

void put_le(std::string& bytes, std::size_t at, std::uint32_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<char>(value >> 8 * i & 0xff);
}

std::string device_line(unsigned major, const char* name) {
  char line[64];
  std::snprintf(line, sizeof(line), "%3u %s\n", major, name);
  return line;
}

}  // namespace

std::string address_text(const PciAddress& address) {
  char text[24];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", address.domain, address.bus, address.device,
                address.function & 0xfU);
  return text;
}

std::string proc_version(const Machine& machine) {
  // The open kernel modules are for Turing and later; one older GPU needs the others.
  const bool open = std::all_of(machine.gpus, machine.gpus + machine.gpu_count,
                                [](const Gpu& gpu) { return gpu.architecture >= kTuring; });
  const std::string version = machine.driver.version;
  const std::string module =
      open ? "NVIDIA UNIX Open Kernel Module for x86_64  " + version + "  Release Build  (simulated)"
           : "NVIDIA UNIX x86_64 Kernel Module  " + version;
  return "NVRM version: " + module +
         "  Wed Feb 26 02:03:00 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
}

std::string proc_params() {
  return "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: "
         "0\n"
         "DeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\n"
         "EnableMSI: 1\nEnablePCIeGen3: 0\nMemoryPoolSize: 0\nKMallocHeapMaxSize: 0\nVMallocHeapMaxSize: 0\n"
         "IgnoreMMIOCheck: 0\nEnableStreamMemOPs: 0\nEnableUserNUMAManagement: 1\nNvLinkDisable: 0\n"
         "RmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\nEnableS0ixPowerManagement: 0\n"
         "DynamicPowerManagement: 3\nEnableGpuFirmware: 18\nEnableResizableBar: 0\n"
         "EnableDbgBreakpoint: 0\nOpenRmEnableUnsupportedGpus: 1\nRegistryDwords: "
         "\"\"\nRegistryDwordsPerDevice: \"\"\n"
         "RmMsg: \"\"\nGpuBlacklist: \"\"\nTemporaryFilePath: \"\"\nExcludedGpus: \"\"\n";
}

std::string proc_devices() {
  return "Character devices:\n" + device_line(1, "mem") + device_line(5, "/dev/tty") +
         device_line(10, "misc") + device_line(kNvidiaMajor, "nvidia") +
         device_line(kNvidiaMajor, "nvidia-modeset") + device_line(kNvidiaMajor, "nvidiactl") +
         device_line(kDrmMajor, "drm") + device_line(kUvmMajor, "nvidia-uvm") +
         device_line(kCapsMajor, "nvidia-caps") + device_line(kImexMajor, "nvidia-caps-imex-channels") +
         device_line(kSwitchMajor, "nvidia-nvswitch") + "\nBlock devices:\n" + device_line(259, "blkext");
}

std::string proc_information(const Machine& machine, const Gpu& gpu) {
  const std::string firmware = gpu.gsp_firmware_mode != 0 ? machine.driver.version : "N/A";
  return std::string("Model: \t\t ") + gpu.name + "\nIRQ:   \t\t " + std::to_string(64 + gpu.minor) +
         "\nGPU UUID: \t " + gpu.uuid + "\nVideo BIOS: \t " + gpu.vbios_version +
         "\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n" + "Bus Location: \t " +
         address_text(gpu.pci) + "\nDevice Minor: \t " + std::to_string(gpu.minor) + "\nGPU Firmware: \t " +
         firmware + "\nGPU Excluded:\t No\n";
}

std::string cpu_list(const Gpu& gpu) {
  const auto has = [&gpu](std::size_t cpu) {
    return cpu < kMaxCpuWords * 64 && (gpu.cpu_affinity[cpu / 64] >> cpu % 64 & 1) != 0;
  };
  std::string list;
  for (std::size_t cpu = 0; cpu < kMaxCpuWords * 64; ++cpu) {
    if (!has(cpu)) continue;
    const std::size_t first = cpu;
    while (has(cpu + 1)) ++cpu;
    if (!list.empty()) list += ',';
    list += std::to_string(first);
    if (cpu != first) list += '-' + std::to_string(cpu);
  }
  return list;
}

std::string pci_config(std::uint32_t device_id, std::uint32_t subsystem_id, std::uint32_t class_code) {
  std::string bytes(256, '\0');
  put_le(bytes, 0x00, device_id & 0xffff, 2);  // vendor
  put_le(bytes, 0x02, device_id >> 16, 2);
  put_le(bytes, 0x04, 0x0406, 2);                  // command: memory, bus master, no INTx
  put_le(bytes, 0x06, 0x0010, 2);                  // status: has capabilities
  put_le(bytes, 0x08, class_code << 8 | 0xa1, 4);  // class, revision a1
  put_le(bytes, 0x14, 0x0000000c, 4);              // BAR 1: 64 bits, prefetchable
  put_le(bytes, 0x1c, 0x0000000c, 4);              // BAR 3: likewise
  put_le(bytes, 0x2c, subsystem_id & 0xffff, 2);
  put_le(bytes, 0x2e, subsystem_id >> 16, 2);
  // The list: each capability's id, then where the next one is.
  put_le(bytes, 0x34, 0x60, 1);
  put_le(bytes, 0x60, 0x01, 1);  // power management
  put_le(bytes, 0x61, 0x68, 1);
  put_le(bytes, 0x62, 0x0003, 2);
  put_le(bytes, 0x68, 0x05, 1);  // MSI
  put_le(bytes, 0x69, 0x78, 1);
  put_le(bytes, 0x6a, 0x0080, 2);  // 64 bit addresses
  put_le(bytes, 0x78, 0x10, 1);    // PCI Express endpoint, the last
  put_le(bytes, 0x7a, 0x0002, 2);
  return bytes;
}

}  // namespace gpulet::sim
