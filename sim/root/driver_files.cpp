#include "sim/root/driver_files.h"

#include "base/file.h"
#include "sim/root/shared_object.h"

namespace gpulet::sim {
namespace {

struct Library {
  std::string_view name;
  std::string_view soname_suffix;  // after ".so."; empty: the driver's version, and no link
  bool development_link = false;   // a plain ".so" too
};

constexpr Library kLibraries[] = {
    {"libcuda", "1", true},
    {"libcudadebugger", "1"},
    {"libnvcuvid", "1", true},
    {"libnvidia-allocator", "1", true},
    {"libnvidia-cfg", "1", true},
    {"libnvidia-encode", "1", true},
    {"libnvidia-fbc", "1"},
    {"libnvidia-gpucomp", ""},
    {"libnvidia-ngx", "1"},
    {"libnvidia-nvvm", "4", true},
    {"libnvidia-opencl", "1"},
    {"libnvidia-opticalflow", "1", true},
    {"libnvidia-pkcs11-openssl3", ""},
    {"libnvidia-ptxjitcompiler", "1", true},
    {"libnvidia-rtcore", ""},
    {"libnvidia-tls", ""},
    {"libnvidia-glcore", ""},
    {"libnvidia-eglcore", ""},
    {"libnvidia-glsi", ""},
    {"libnvidia-glvkspirv", ""},
    {"libnvoptix", "1"},
    {"libEGL_nvidia", "0"},
    {"libGLESv1_CM_nvidia", "1"},
    {"libGLESv2_nvidia", "2"},
    {"libGLX_nvidia", "0"},
};
constexpr Library kNvml{"libnvidia-ml", "1", true};
constexpr std::string_view kFirmware[] = {"gsp_ga10x.bin", "gsp_tu10x.bin"};

std::string in_libraries(const std::string& name) { return std::string(kLibraryFolder) + "/" + name; }

std::string real_name(const Library& library, const std::string& version) {
  return std::string(library.name) + ".so." + version;
}

std::string link_name(const Library& library) {
  return std::string(library.name) + ".so." + std::string(library.soname_suffix);
}

Status add_links(Tree& tree, const Library& library, const std::string& version) {
  if (library.soname_suffix.empty()) return {};
  const std::string link = link_name(library);
  GPULET_TRY(tree.link(in_libraries(link), real_name(library, version)));
  if (library.development_link) GPULET_TRY(tree.link(in_libraries(std::string(library.name) + ".so"), link));
  return {};
}

Status add_stubs(Tree& tree, const std::string& version) {
  for (const Library& library : kLibraries) {
    const std::string real = real_name(library, version);
    GPULET_TRY(tree.file(in_libraries(real),
                         make_shared_object(library.soname_suffix.empty() ? real : link_name(library))));
    GPULET_TRY(add_links(tree, library, version));
  }
  for (const std::string_view name : kFirmware) {
    GPULET_TRY(tree.file("lib/firmware/nvidia/" + version + "/" + std::string(name), "simulated firmware\n"));
  }
  return {};
}

void remove_library(Tree& tree, const Library& library, const std::string& version) {
  tree.remove(in_libraries(std::string(library.name) + ".so"));
  tree.remove(in_libraries(link_name(library)));
  tree.remove(in_libraries(real_name(library, version)));
}

}  // namespace

Status add_driver_files(Tree& tree, const DriverFiles& files) {
  GPULET_TRY(add_stubs(tree, files.version));
  GPULET_TRY(tree.copy(in_libraries(real_name(kNvml, files.version)), files.nvml));
  GPULET_TRY(add_links(tree, kNvml, files.version));
  if (!files.nvidia_smi.empty()) GPULET_TRY(tree.copy("usr/bin/nvidia-smi", files.nvidia_smi));
  if (!files.mps_control.empty())
    GPULET_TRY(tree.copy("usr/bin/nvidia-cuda-mps-control", files.mps_control));
  return {};
}

Status change_driver_version(Tree& tree, const std::string& old_version, const std::string& new_version) {
  if (old_version == new_version) return {};
  const std::string nvml = tree.root() + "/" + in_libraries(real_name(kNvml, old_version));
  GPULET_TRY_ASSIGN(const std::string content, read_file(nvml));
  for (const Library& library : kLibraries) remove_library(tree, library, old_version);
  for (const std::string_view name : kFirmware)
    tree.remove("lib/firmware/nvidia/" + old_version + "/" + std::string(name));
  remove_library(tree, kNvml, old_version);
  GPULET_TRY(add_stubs(tree, new_version));
  GPULET_TRY(tree.file(in_libraries(real_name(kNvml, new_version)), content, 0755));
  return add_links(tree, kNvml, new_version);
}

}  // namespace gpulet::sim
