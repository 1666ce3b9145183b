#include "cdi/generate.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace gpulet::cdi {
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
  Generator(const Snapshot& snapshot, const DriverFiles& driver, const Found& found,
            const GenerateOptions& options)
      : snapshot_(snapshot), driver_(driver), found_(found), options_(options) {}

  Result<Generated> run() {
    GPULET_TRY(check_vendor(options_.vendor));
    GPULET_TRY(check_class(options_.device_class));
    spec_.kind = options_.vendor + "/" + options_.device_class;
    add_common();
    for (const auto& id : options_.device_ids) GPULET_TRY(add_by_id(id));
    if (spec_.devices.empty()) return fail(nothing());
    if (options_.all_device && !names_.contains(kNoDevice)) add_all();
    put_in_order(spec_);
    return Generated{std::move(spec_), std::move(warnings_)};
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
      edits.hooks = common_hooks(options_.hooks, host(), driver_.links, driver_.library_dirs,
                                 options_.mode == Mode::kManagement);
    }
    edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
    add_nodes(edits, found_.control);
    add_mounts(edits, found_.mounts);
  }

  HookHost host() const {
    HookHost host{driver_.version.empty() ? snapshot_.driver.version : driver_.version, {}, {}, {}};
    const unsigned cuda = snapshot_.driver.cuda_version;
    if (cuda != 0) host.cuda_version = std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
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

  // The one device `all` of the modes that have no others.
  Status add_single(const std::string& id) {
    if (id != kAllDevices) return unknown(id);
    if (found_.nodes.empty()) return {};
    ContainerEdits edits;
    add_nodes(edits, found_.nodes);
    const auto hooks = device_hooks(options_.hooks, {}, edits.device_nodes);
    edits.hooks.insert(edits.hooks.end(), hooks.begin(), hooks.end());
    add_device(std::string(kAllDevices), std::move(edits));
    return {};
  }

  Status add_channels(const std::string& id) {
    const std::string wanted = id.starts_with("channel") ? id.substr(7) : id;
    bool there = id == kAllDevices;
    for (const auto& [number, node] : found_.channels) {
      if (id != kAllDevices && wanted != std::to_string(number)) continue;
      there = true;
      ContainerEdits edits;
      add_node(edits, node);
      add_device(std::to_string(number), std::move(edits));
    }
    return there ? Status{} : unknown(id);
  }

  Status add_gpus(const std::string& id) {
    bool there = id == kAllDevices;
    for (std::size_t i = 0; i < snapshot_.gpus.size() && i < found_.gpus.size(); ++i) {
      const Gpu& gpu = snapshot_.gpus[i];
      const bool whole = id == kAllDevices || is_named(id, [&](auto s) { return gpu_name(s, gpu); });
      there = there || whole;
      if (!gpu.mig_enabled) {
        if (whole) add_gpu(gpu, found_.gpus[i]);
        continue;
      }
      for (const auto& mig : gpu.mig_devices) {
        const bool named = is_named(id, [&](auto s) { return mig_name(s, gpu, mig); });
        there = there || named;
        if (whole || named) add_mig(gpu, mig, found_.gpus[i]);
      }
    }
    return there ? Status{} : unknown(id);
  }

  template <class Name>
  static bool is_named(const std::string& id, Name name) {
    return id == name(NameStrategy::kIndex) || id == name(NameStrategy::kUuid) ||
           id == name(NameStrategy::kTypeIndex);
  }

  void add_gpu(const Gpu& gpu, const Found::GpuNodes& nodes) {
    const std::string about = "GPU " + std::to_string(gpu.index);
    if (gpu.uuid.empty() || (gpu.unreadable && gpu.model.empty()))
      return left_out(about, "it cannot be read");
    if (!nodes.node)
      return left_out(about, "there is no device node /dev/nvidia" + std::to_string(gpu.minor));
    ContainerEdits edits;
    add_node(edits, *nodes.node);
    add_drm(edits, nodes);
    for (const auto strategy : options_.names) add_device(gpu_name(strategy, gpu), edits);
  }

  void add_mig(const Gpu& gpu, const MigDevice& mig, const Found::GpuNodes& nodes) {
    const std::string about = "MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index);
    if (!nodes.node)
      return left_out(about, "there is no device node /dev/nvidia" + std::to_string(gpu.minor));
    constexpr std::size_t kCapabilities = 2;  // of the GPU instance and of the compute instance
    const auto caps = nodes.mig.find({mig.gpu_instance, mig.compute_instance});
    if (caps == nodes.mig.end() || caps->second.size() != kCapabilities) {
      return left_out(about, "its capabilities in /dev/nvidia-caps are not there");
    }
    ContainerEdits edits;
    add_node(edits, *nodes.node);
    add_nodes(edits, caps->second);
    if (has_graphics(mig)) {
      add_drm(edits, nodes);
    } else {
      edits.hooks = device_hooks(options_.hooks, {}, edits.device_nodes);
    }
    for (const auto strategy : options_.names) add_device(mig_name(strategy, gpu, mig), edits);
  }

  void add_drm(ContainerEdits& edits, const Found::GpuNodes& nodes) {
    add_nodes(edits, nodes.drm.nodes);
    edits.hooks = device_hooks(options_.hooks, nodes.drm.links, edits.device_nodes);
    for (const auto& link : nodes.drm.links) {
      if (std::ranges::find(links_, link) == links_.end()) links_.push_back(link);
    }
  }

  void add_device(std::string name, ContainerEdits edits) {
    if (!names_.insert(name).second) return;
    spec_.devices.push_back({std::move(name), {}, std::move(edits)});
  }

  // The links of all GPUs by one process: they are the arguments of one hook.
  void add_all() {
    if (!names_.insert(std::string(kAllDevices)).second) return;
    ContainerEdits all;
    for (const auto& device : spec_.devices) {
      ContainerEdits edits = device.edits;
      edits.hooks.clear();
      append(all, edits);
    }
    all.hooks = device_hooks(options_.hooks, links_, all.device_nodes);
    spec_.devices.push_back({std::string(kAllDevices), {}, std::move(all)});
  }

  void left_out(const std::string& device, const std::string& why) {
    std::string line = device + " is left out: " + why;
    if (std::ranges::find(warnings_, line) == warnings_.end()) warnings_.push_back(std::move(line));
  }

  Status unknown(const std::string& id) const {
    return fail(Code::kNotFound,
                "there is no device '" + id + "' in mode " + std::string(name(options_.mode)));
  }

  Error nothing() const {
    std::string why = "there are no devices in mode " + std::string(name(options_.mode));
    if (!warnings_.empty()) why += ": " + warnings_.front();
    return {Code::kNotFound, why, spec_.kind};
  }

  const Snapshot& snapshot_;
  const DriverFiles& driver_;
  const Found& found_;
  const GenerateOptions& options_;
  Spec spec_;
  std::set<std::string, std::less<>> names_;
  std::vector<Link> links_;  // of the devices so far
  std::vector<std::string> warnings_;
};

}  // namespace

std::string_view name(Mode mode) { return std::ranges::find(kModes, mode, &ModeName::mode)->name; }

std::string_view class_of(Mode mode) {
  return std::ranges::find(kModes, mode, &ModeName::mode)->device_class;
}

Result<Mode> parse_mode(std::string_view text) {
  const auto found = std::ranges::find(kModes, text, &ModeName::name);
  if (found != kModes.end()) return found->mode;
  if (text == "csv") return fail(Code::kUnsupported, "mode csv is for Tegra, which gpulet does not know");
  std::string names = "auto";
  for (const auto& mode : kModes) names += ", " + std::string(mode.name);
  return fail(Code::kInvalidArgument, "there is no mode '" + std::string(text) + "': " + names);
}

Result<Generated> generate(const Snapshot& snapshot, const DriverFiles& driver, const Found& found,
                           const GenerateOptions& options) {
  return Generator(snapshot, driver, found, options).run();
}

}  // namespace gpulet::cdi
