#include "cdi/generate.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/cuda_version.h"
#include "base/text.h"

namespace gpulet::cdi {
namespace {

NodeFiles::GpuNodes nodes_of(const inventory::Gpu& gpu, DeviceFiles& files) {
  NodeFiles::GpuNodes nodes;
  nodes.node = files.gpu_node(gpu.minor);
  bool with_drm = !gpu.mig_enabled;
  for (const auto& mig : gpu.mig_devices) {
    nodes.mig[{mig.gpu_instance, mig.compute_instance}] =
        files.mig_nodes(gpu.minor, mig.gpu_instance, mig.compute_instance);
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

NodeFiles collect_node_files(Mode mode, const Roots& roots, DeviceFiles& files,
                             const inventory::Snapshot& snapshot) {
  NodeFiles found;
  switch (mode) {
    case Mode::kNvml:
      found.control = files.control_nodes();
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

Result<NameStrategy> parse_name_strategy(std::string_view text) {
  if (text == "index") return NameStrategy::kIndex;
  if (text == "uuid") return NameStrategy::kUuid;
  if (text == "type-index") return NameStrategy::kTypeIndex;
  return fail(Code::kInvalidArgument,
              "unknown device name strategy '" + std::string(text) + "'; expected index, uuid or type-index");
}

std::string gpu_name(NameStrategy strategy, const inventory::Gpu& gpu) {
  if (strategy == NameStrategy::kUuid) return gpu.uuid.str();
  return (strategy == NameStrategy::kTypeIndex ? "gpu" : "") + std::to_string(gpu.index);
}

std::string mig_name(NameStrategy strategy, const inventory::Gpu& gpu, const inventory::MigDevice& mig) {
  if (strategy == NameStrategy::kUuid) return mig.uuid.str();
  return (strategy == NameStrategy::kTypeIndex ? "mig" : "") + std::to_string(gpu.index) + ":" +
         std::to_string(mig.index);
}

namespace {

using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;

struct ModeName {
  Mode mode;
  std::string_view name, device_class;
};
constexpr std::array<ModeName, 8> kModes{{{Mode::kNvml, "nvml", "gpu"},
                                          {Mode::kGds, "gds", "gds"},
                                          {Mode::kMofed, "mofed", "mofed"},
                                          {Mode::kGdrcopy, "gdrcopy", "gdrcopy"},
                                          {Mode::kNvswitch, "nvswitch", "nvswitch"},
                                          {Mode::kImex, "imex", "imex-channel"},
                                          {Mode::kManagement, "management", "gpu"},
                                          {Mode::kWsl, "wsl", "gpu"}}};

NodeEdit node_edit(const DeviceNode& node) {
  NodeEdit edit{node.path};
  if (node.host_path != node.path) edit.host_path = node.host_path;
  edit.major = node.major;
  edit.minor = node.minor;
  edit.file_mode = node.mode;
  edit.permissions = "rwm";
  if (node.gid != 0) edit.gid = node.gid;
  return edit;
}

class Generator {
 public:
  Generator(const Snapshot& snapshot, const DriverFiles& driver, const NodeFiles& found,
            const GenerateOptions& options)
      : snapshot_(snapshot), driver_(driver), found_(found), options_(options) {}

  Result<GeneratedSpec> generate_spec() {
    GPULET_TRY(check_vendor(options_.vendor));
    GPULET_TRY(check_class(options_.device_class));
    spec_.kind = options_.vendor + "/" + options_.device_class;
    add_common();
    for (const auto& id : options_.device_ids) GPULET_TRY(add_by_id(id));
    if (spec_.devices.empty()) return fail(nothing_found_error());
    if (options_.all_device && !names_.contains(kNoDevice)) add_all();
    canonicalize_spec(spec_);
    return GeneratedSpec{std::move(spec_), std::move(warnings_)};
  }

 private:
  void add_nodes(ContainerEdits& edits, const std::vector<DeviceNode>& nodes) const {
    for (const auto& node : nodes) add_node(edits, node);
  }
  void add_node(ContainerEdits& edits, const DeviceNode& node) const {
    edits.device_nodes.push_back(node_edit(node));
    constexpr mode_t kForAll = 06;
    if (options_.additional_gids && node.gid != 0 && (node.mode & kForAll) != kForAll) {
      edits.additional_gids.push_back(node.gid);
    }
  }
  static void add_mounts(ContainerEdits& edits, const std::vector<FileMount>& mounts) {
    static const std::vector<std::string> kReadOnly{"ro", "nosuid", "nodev", "rbind", "rprivate"};
    static const std::vector<std::string> kSocket{"nosuid", "nodev", "rbind", "rprivate", "noexec"};
    for (const auto& mount : mounts) {
      edits.mounts.push_back({mount.host_path, mount.container_path, mount.ipc ? kSocket : kReadOnly});
    }
  }

  bool has_driver() const {
    return options_.mode == Mode::kNvml || options_.mode == Mode::kManagement || options_.mode == Mode::kWsl;
  }

  void add_common() {
    auto& edits = spec_.edits;
    if (has_driver()) {
      if (!driver_.cuda_library_dirs.empty()) {
        edits.env.push_back("NVIDIA_CTK_LIBCUDA_DIR=" + text::join(driver_.cuda_library_dirs, ":"));
      }
      for (const auto* mounts :
           {&driver_.libraries, &driver_.binaries, &driver_.firmware, &driver_.configs, &driver_.sockets}) {
        add_mounts(edits, *mounts);
      }
      edits.hooks = common_hooks(options_.hooks, hook_host(), driver_.links, driver_.library_dirs,
                                 options_.mode == Mode::kManagement);
    }
    edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
    add_nodes(edits, found_.control);
    add_mounts(edits, found_.mounts);
  }

  HookHost hook_host() const {
    HookHost host{driver_.version.empty() ? snapshot_.driver.version : driver_.version, {}, {}, {}};
    const unsigned cuda = snapshot_.driver.cuda_version;
    if (cuda != 0) host.cuda_version = cuda_version_text(cuda);
    std::set<std::string> archs, brands;
    for (const auto& gpu : snapshot_.gpus) {
      if (gpu.model.empty()) continue;
      archs.insert(std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor));
      std::string brand = text::lower(gpu.brand);  // "GeForce RTX" is "geforcertx" in NVIDIA_REQUIRE_*
      std::erase(brand, ' ');
      brands.insert(std::move(brand));
    }
    if (archs.size() == 1 && *archs.begin() != "0.0") host.arch = *archs.begin();
    if (brands.size() == 1) host.brand = *brands.begin();
    return host;
  }

  Status add_by_id(const std::string& id) {
    if (id == kNoDevice) {
      add_device(std::string(kNoDevice), {.env = {"NVCT_EMPTY_DEVICE="}});
      return {};
    }
    switch (options_.mode) {
      case Mode::kNvml:
        return add_gpus(id);
      case Mode::kImex:
        return add_channels(id);
      default:
        return add_single(id);
    }
  }

  // The single device `all` of modes without other devices.
  Status add_single(const std::string& id) {
    if (id != kAllDevices) return unknown_device_error(id);
    if (found_.nodes.empty()) return {};
    ContainerEdits edits;
    add_nodes(edits, found_.nodes);
    const auto hooks = device_hooks(options_.hooks, {}, edits.device_nodes);
    edits.hooks.insert(edits.hooks.end(), hooks.begin(), hooks.end());
    add_device(std::string(kAllDevices), std::move(edits));
    return {};
  }

  Status add_channels(const std::string& id) {
    const std::string channel = id.starts_with("channel") ? id.substr(7) : id;
    bool matched = id == kAllDevices;
    for (const auto& [number, node] : found_.channels) {
      if (id != kAllDevices && channel != std::to_string(number)) continue;
      matched = true;
      ContainerEdits edits;
      add_node(edits, node);
      add_device(std::to_string(number), std::move(edits));
    }
    return matched ? Status{} : unknown_device_error(id);
  }

  Status add_gpus(const std::string& id) {
    bool matched = id == kAllDevices;
    for (std::size_t i = 0; i < snapshot_.gpus.size() && i < found_.gpus.size(); ++i) {
      const Gpu& gpu = snapshot_.gpus[i];
      const bool whole = id == kAllDevices || is_named(id, [&](auto s) { return gpu_name(s, gpu); });
      matched = matched || whole;
      excluded_ = gpu.excluded;
      if (!gpu.mig_enabled) {
        if (whole) add_gpu(gpu, found_.gpus[i]);
        continue;
      }
      for (const auto& mig : gpu.mig_devices) {
        const bool named = is_named(id, [&](auto s) { return mig_name(s, gpu, mig); });
        matched = matched || named;
        if (whole || named) add_mig(gpu, mig, found_.gpus[i]);
      }
    }
    excluded_.clear();
    return matched ? Status{} : unknown_device_error(id);
  }

  template <class Name>
  static bool is_named(const std::string& id, Name name) {
    return id == name(NameStrategy::kIndex) || id == name(NameStrategy::kUuid) ||
           id == name(NameStrategy::kTypeIndex);
  }

  void add_gpu(const Gpu& gpu, const NodeFiles::GpuNodes& nodes) {
    const std::string about = "GPU " + std::to_string(gpu.index);
    if (gpu.uuid.empty() || (gpu.unreadable && gpu.model.empty()))
      return warn_left_out(about, "it cannot be read");
    if (!nodes.node)
      return warn_left_out(about, "there is no device node /dev/nvidia" + std::to_string(gpu.minor));
    ContainerEdits edits;
    add_node(edits, *nodes.node);
    add_drm(edits, nodes);
    warn_not_in_all(about);
    for (const auto strategy : options_.names) add_device(gpu_name(strategy, gpu), edits);
  }

  void add_mig(const Gpu& gpu, const MigDevice& mig, const NodeFiles::GpuNodes& nodes) {
    const std::string about = "MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index);
    if (!nodes.node)
      return warn_left_out(about, "there is no device node /dev/nvidia" + std::to_string(gpu.minor));
    constexpr std::size_t kCapabilities = 2;  // of the GPU instance and of the compute instance
    const auto caps = nodes.mig.find({mig.gpu_instance, mig.compute_instance});
    if (caps == nodes.mig.end() || caps->second.size() != kCapabilities) {
      return warn_left_out(about, "its capabilities in /dev/nvidia-caps do not exist");
    }
    ContainerEdits edits;
    add_node(edits, *nodes.node);
    add_nodes(edits, caps->second);
    if (has_graphics(mig)) {
      add_drm(edits, nodes);
    } else {
      edits.hooks = device_hooks(options_.hooks, {}, edits.device_nodes);
    }
    warn_not_in_all(about);
    for (const auto strategy : options_.names) add_device(mig_name(strategy, gpu, mig), edits);
  }

  void add_drm(ContainerEdits& edits, const NodeFiles::GpuNodes& nodes) {
    add_nodes(edits, nodes.drm.nodes);
    edits.hooks = device_hooks(options_.hooks, nodes.drm.links, edits.device_nodes);
    if (!excluded_.empty()) return;
    for (const auto& link : nodes.drm.links) {
      if (std::ranges::find(links_, link) == links_.end()) links_.push_back(link);
    }
  }

  void add_device(std::string name, ContainerEdits edits) {
    if (!names_.insert(name).second) return;
    if (!excluded_.empty()) not_in_all_.insert(name);
    spec_.devices.push_back({std::move(name), {}, std::move(edits)});
  }

  // One process makes the links of all GPUs: they are the arguments of one hook.
  void add_all() {
    if (not_in_all_.size() == spec_.devices.size()) return;
    if (!names_.insert(std::string(kAllDevices)).second) return;
    ContainerEdits all;
    for (const auto& device : spec_.devices) {
      if (not_in_all_.contains(device.name)) continue;
      ContainerEdits edits = device.edits;
      edits.hooks.clear();
      append_edits(all, edits);
    }
    all.hooks = device_hooks(options_.hooks, links_, all.device_nodes);
    spec_.devices.push_back({std::string(kAllDevices), {}, std::move(all)});
  }

  void warn_left_out(const std::string& device, const std::string& why) {
    add_warning(device + " is left out: " + why);
  }

  void warn_not_in_all(const std::string& device) {
    if (!excluded_.empty() && options_.all_device)
      add_warning(device + " is not in the device all: it " + excluded_);
  }

  void add_warning(std::string line) {
    if (std::ranges::find(warnings_, line) == warnings_.end()) warnings_.push_back(std::move(line));
  }

  Status unknown_device_error(const std::string& id) const {
    return fail(Code::kNotFound,
                "there is no device '" + id + "' in mode " + std::string(mode_name(options_.mode)));
  }

  Error nothing_found_error() const {
    std::string why = "there are no devices in mode " + std::string(mode_name(options_.mode));
    if (!warnings_.empty()) why += ": " + warnings_.front();
    return {Code::kNotFound, why, spec_.kind};
  }

  const Snapshot& snapshot_;
  const DriverFiles& driver_;
  const NodeFiles& found_;
  const GenerateOptions& options_;
  Spec spec_;
  std::set<std::string, std::less<>> names_;
  std::string excluded_;  // Gpu::excluded of the GPU whose devices are being added
  std::set<std::string, std::less<>> not_in_all_;
  std::vector<Link> links_;  // of the devices in `all` so far
  std::vector<std::string> warnings_;
};

}  // namespace

std::string_view mode_name(Mode mode) { return std::ranges::find(kModes, mode, &ModeName::mode)->name; }

std::string_view mode_class(Mode mode) {
  return std::ranges::find(kModes, mode, &ModeName::mode)->device_class;
}

Result<Mode> parse_mode(std::string_view text) {
  const auto found = std::ranges::find(kModes, text, &ModeName::name);
  if (found != kModes.end()) return found->mode;
  std::string names = "auto";
  for (const auto& mode : kModes) names += ", " + std::string(mode.name);
  if (text == "csv")
    return fail(Code::kUnsupported,
                "mode csv is for Tegra, which gpulet does not support; expected one of " + names);
  return fail(Code::kInvalidArgument, "unknown mode '" + std::string(text) + "'; expected one of " + names);
}

Result<GeneratedSpec> generate(const Snapshot& snapshot, const DriverFiles& driver, const NodeFiles& found,
                               const GenerateOptions& options) {
  GPULET_TRY(check_hook_options(options.hooks));
  return Generator(snapshot, driver, found, options).generate_spec();
}

namespace {

void add_all(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

NodeSpecs make_node_specs(const Roots& roots, const inventory::Snapshot& snapshot,
                          const NodeSpecOptions& options) {
  NodeSpecs result;
  auto files = DeviceFiles::scan_dev_root(roots);
  GenerateOptions generating;
  generating.vendor = options.vendor;
  generating.names = {options.names};
  generating.all_device = false;
  generating.hooks = options.hooks;
  generating.additional_gids = options.additional_gids;
  const auto add = [&](Mode mode, const DriverFiles& driver) -> Status {
    generating.mode = mode;
    generating.device_class = mode_class(mode);
    GPULET_TRY_ASSIGN(
        auto made, generate(snapshot, driver, collect_node_files(mode, roots, files, snapshot), generating));
    add_all(result.warnings, made.warnings);
    result.specs.push_back(std::move(made.spec));
    return {};
  };
  if (const auto driver = find_driver_files(roots, snapshot.driver.version, options.driver); !driver) {
    result.no_gpus = driver.error();
  } else {
    add_all(result.warnings, driver->warnings);
    if (const auto done = add(Mode::kNvml, *driver); !done) result.no_gpus = done.error();
  }
  const std::array<std::pair<bool, Mode>, 4> others{{{options.gds, Mode::kGds},
                                                     {options.mofed, Mode::kMofed},
                                                     {options.gdrcopy, Mode::kGdrcopy},
                                                     {options.imex, Mode::kImex}}};
  for (const auto& [enabled, mode] : others) {
    if (!enabled) continue;
    const auto done = add(mode, {});
    // Most nodes have no IMEX channel, but a requested class that is missing is worth a warning.
    if (!done && mode != Mode::kImex) result.warnings.push_back(done.error().full_message());
  }
  add_all(result.warnings, files.warnings());
  return result;
}

Status apply_feature_flag(const std::string& flag, DriverFileOptions& driver, bool& additional_gids) {
  if (flag == "enable-explicit-driver-libraries") {
    driver.explicit_libraries = true;
  } else if (flag == "disable-ipc-discoverer") {
    driver.sockets = false;
  } else if (flag == "additional-gids-for-device-nodes") {
    additional_gids = true;
  } else if (flag == "no-additional-gids-for-device-nodes") {
    additional_gids = false;
  } else if (flag != "disable-nvsandboxutils" && flag != "enable-coherent-annotations" &&
             flag !=
                 "disable-multiple-csv-devices") {  // affects libraries and machines that are not read here
    return fail(Code::kInvalidArgument, "unknown feature flag '" + flag + "'");
  }
  return {};
}

}  // namespace gpulet::cdi
