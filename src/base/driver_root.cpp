#include "base/driver_root.h"

namespace gpulet {
namespace {

constexpr std::string_view kLibraries[] = {
    "/usr/lib64",
    "/usr/lib/" GPULET_TRIPLET,
    "/usr/lib/" GPULET_TRIPLET "/nvidia/current",
    "/lib64",
    "/lib/" GPULET_TRIPLET,
    "/lib/" GPULET_TRIPLET "/nvidia/current",
    // kFirstVendorLibrary:
    "/home/kubernetes/bin/nvidia/lib64",  // GKE, Flatcar
    "/usr/local/nvidia/lib64",
    "/usr/local/glibc/usr/lib",  // Talos
    "/usr/local/glibc/lib",
    "/usr/local/glibc/lib64",
    "/usr/local/lib",
    "/run/opengl-driver/lib",  // NixOS
    "/usr/lib",
};
constexpr std::size_t kFirstVendorLibrary = 6;

}  // namespace

std::span<const std::string_view> library_directories() { return kLibraries; }

std::span<const std::string_view> distribution_library_directories() {
  return library_directories().first(kFirstVendorLibrary);
}

std::span<const std::string_view> vendor_library_directories() {
  return library_directories().subspan(kFirstVendorLibrary);
}

}  // namespace gpulet
