// Which device nodes a mode's containers need: what generate.cpp makes a document of.
#include "cdi/generate.h"

namespace gpulet::cdi {
namespace {

Found::GpuNodes nodes_of(const inventory::Gpu& gpu, DeviceFiles& files) {
  Found::GpuNodes nodes;
  nodes.node = files.gpu(gpu.minor);
  bool with_drm = !gpu.mig_enabled;
  for (const auto& mig : gpu.mig_devices) {
    nodes.mig[{mig.gpu_instance, mig.compute_instance}] =
        files.mig(gpu.minor, mig.gpu_instance, mig.compute_instance);
    with_drm = with_drm || has_graphics(mig);
  }
  if (with_drm && gpu.pci != inventory::PciAddress{}) nodes.drm = files.drm(gpu.pci);
  return nodes;
}

}  // namespace

bool has_graphics(const inventory::MigDevice& mig) {
  const auto attributes = mig.profile.find('+');
  return attributes != std::string::npos && mig.profile.find("gfx", attributes) != std::string::npos;
}

Found collect(Mode mode, const Roots& roots, DeviceFiles& files, const inventory::Snapshot& snapshot) {
  Found found;
  switch (mode) {
    case Mode::kNvml:
      found.control = files.control();
      for (const auto& gpu : snapshot.gpus) found.gpus.push_back(nodes_of(gpu, files));
      break;
    case Mode::kGds:
      found.nodes = files.gds();
      if (!found.nodes.empty()) found.mounts = find_gds_files(roots);
      break;
    case Mode::kMofed:
      found.nodes = files.mofed();
      break;
    case Mode::kGdrcopy:
      found.nodes = files.gdrcopy();
      break;
    case Mode::kNvswitch:
      found.nodes = files.nvswitch();
      break;
    case Mode::kImex:
      for (const unsigned id : files.imex_channel_ids()) {
        if (auto node = files.imex_channel(id)) found.channels.emplace_back(id, std::move(*node));
      }
      break;
    case Mode::kManagement:
      found.nodes = files.management();
      break;
    case Mode::kWsl:
      found.nodes = files.wsl();
      break;
  }
  return found;
}

}  // namespace gpulet::cdi
