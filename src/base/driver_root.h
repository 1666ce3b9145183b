// The driver root: the directory that holds an NVIDIA driver installation (the host's root, a driver
// container's root), as this process sees it. Where its files lie, and how its programs start: a program of
// another root needs that root's loader and libraries, because those of two glibc do not mix.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet {

// The multiarch triplet of this build.
#if defined(__aarch64__)
#define GPULET_TRIPLET "aarch64-linux-gnu"
#else
#define GPULET_TRIPLET "x86_64-linux-gnu"
#endif
inline constexpr std::string_view kTriplet = GPULET_TRIPLET;

// `path` below `root`: "/host/etc" for "/host" and "/etc". Pure: any thread.
std::string path_below(const std::string& root, const std::string& path);

// Library directories in search order, relative to the root ("/usr/lib64"). Pure: any thread.
// Source: k8s-device-plugin v0.20.0, cmd/nvidia-device-plugin/root.go; the distributions' own layouts.
std::span<const std::string_view> library_directories();
// The first part: those of Debian, Ubuntu, RHEL, SUSE, Arch and Amazon Linux, and of GKE or a driver
// container as the root itself.
std::span<const std::string_view> distribution_library_directories();
// The rest: those of GKE, Flatcar and Talos below the host's own root, of NixOS, and of roots with a single
// library directory.
std::span<const std::string_view> vendor_library_directories();

// The directories of programs in search order, as above: "/usr/bin".
std::span<const std::string_view> program_directories();

// A program of the driver, ready for base/process.h. In this order of preference it starts
// - by chroot into the driver root, if that has the program's own interpreter (its loader) and this process
// may;
// - by the root's loader, with the root's libraries;
// - as it is, with the driver's library directories, if the root has no loader or is "/".
struct DriverProgram {
  std::string path;                      // as this process sees it: "/driver-root/usr/bin/nvidia-smi"
  std::string program;                   // ProcessOptions::program; inside `root` where that is set
  std::string root;                      // ProcessOptions::root; empty: no chroot
  std::vector<std::string> arguments;    // argv up to the first argument of the program itself
  std::vector<std::string> environment;  // PATH, LD_LIBRARY_PATH; nothing is inherited
  // ProcessOptions::bind_mounts: /proc and the device nodes, for a root that lacks them.
  std::vector<std::pair<std::string, std::string>> bind_mounts;
};

enum class ChrootRule { kIfPermitted, kNever };

// Finds `name` in program_directories() below `driver_root`, else below "/" (where the container toolkit puts
// it). Links are resolved inside the root. Errors: kNotFound, with the roots searched.
Result<DriverProgram> find_driver_program(const std::string& driver_root, std::string_view name,
                                          ChrootRule rule = ChrootRule::kIfPermitted);

// The first of `candidates`, paths inside `driver_root`, by which a program in that root can write to the
// same directory as this process does by `directory`. nullopt if there is none.
std::optional<std::string> find_path_in_root(const std::string& driver_root, const std::string& directory,
                                             std::span<const std::string> candidates);

// The interpreter in the first bytes of a program: its ELF loader, or the program of a "#!" line. Empty if it
// needs none. Errors: kInvalidArgument for anything else, and for a damaged one. Source: elf(5), PT_INTERP.
Result<std::string> parse_interpreter(std::string_view program_bytes);

}  // namespace gpulet
