// The texts of a driver root's /proc and /sys, as the kernel and the driver write them.
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim {

// "0000:1b:00.0", as sysfs and /proc name a device.
std::string address_text(const PciAddress& address);

std::string proc_version(const Machine& machine);  // /proc/driver/nvidia/version
std::string proc_params();                         // /proc/driver/nvidia/params
std::string proc_devices();                        // /proc/devices
// /proc/driver/nvidia/gpus/<address>/information
std::string proc_information(const Machine& machine, const Gpu& gpu);

// "0-19,40-59" of an affinity; empty when there is none.
std::string cpu_list(const Gpu& gpu);

// The 256 bytes of a PCI function's configuration space: header, then power management, MSI and PCI Express
// capabilities.
std::string pci_config(std::uint32_t device_id, std::uint32_t subsystem_id, std::uint32_t class_code);

inline constexpr unsigned kNvidiaMajor = 195;  // fixed by the driver
inline constexpr unsigned kControlMinor = 255;
inline constexpr unsigned kModesetMinor = 254;
inline constexpr unsigned kDrmMajor = 226;
// Dynamic on hardware.
inline constexpr unsigned kUvmMajor = 505;
inline constexpr unsigned kImexMajor = 507;
inline constexpr unsigned kSwitchMajor = 508;

inline constexpr std::uint32_t kGpuClass = 0x030200;     // 3D controller
inline constexpr std::uint32_t kSwitchClass = 0x068000;  // bridge, other

}  // namespace gpulet::sim
