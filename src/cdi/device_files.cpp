#include "cdi/device_files.h"

#include <algorithm>

#include "base/text.h"
#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kDev = "/dev";
constexpr std::string_view kDri = "/dev/dri";
constexpr std::string_view kByPath = "/dev/dri/by-path";
constexpr std::string_view kCaps = "/dev/nvidia-caps";
constexpr std::string_view kChannels = "/dev/nvidia-caps-imex-channels";
constexpr std::string_view kChannel = "channel";
constexpr std::uint64_t kMaxChannel = (1u << 20) - 1;
constexpr std::string_view kMigMinors = "/driver/nvidia-caps/mig-minors";
constexpr std::string_view kNotForManagement[] = {"nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"};

}  // namespace

DeviceFiles DeviceFiles::scan_dev_root(const Roots& roots) {
  DeviceFiles files(roots);
  static_cast<void>(files.find_directory(kDev));
  return files;
}

const Directory* DeviceFiles::find_directory(std::string_view path) {
  auto known = directories_.find(path);
  if (known == directories_.end()) {
    std::optional<Directory> listed;
    const Directory* above = path == kDev ? nullptr : find_directory(text::parent_directory(path));
    if (path == kDev || (above != nullptr && above->contains_entry(text::base_name(path)))) {
      if (auto directory = roots_->dev.list_directory(path)) {
        listed = std::move(*directory);
      } else {
        warn("not listed: " + directory.error().full_message());
      }
    }
    known = directories_.emplace(path, std::move(listed)).first;
  }
  return known->second ? &*known->second : nullptr;
}

void DeviceFiles::warn(std::string line) {
  if (std::ranges::find(warnings_, line) == warnings_.end()) warnings_.push_back(std::move(line));
}

std::optional<DeviceNode> DeviceFiles::device_node(std::string_view place, std::string_view name,
                                                   bool required) {
  std::string path = join_path(place, name);
  const Directory* listed = find_directory(place);
  if (listed == nullptr || !listed->contains_entry(name)) {
    if (required) warn("not found: " + path);
    return std::nullopt;
  }
  const auto status = listed->entry_status(name);
  if (!status || status->type != FileType::kCharacterDevice) {
    warn("left out: " + path + " is not a character device");
    return std::nullopt;
  }
  return DeviceNode{path, roots_->dev.on_host(path), status->major, status->minor, status->mode, status->gid};
}

void DeviceFiles::add_matching(std::vector<DeviceNode>& nodes, std::string_view place,
                               std::string_view pattern) {
  const Directory* listed = find_directory(place);
  if (listed == nullptr) return;
  const auto [first, last] = listed->with_prefix(pattern.substr(0, pattern.find('*')));
  for (std::size_t index = first; index < last; ++index) {
    const Directory::Entry entry = listed->entry(index);
    if (!matches_glob(pattern, entry.name) || entry.type == FileType::kDirectory) continue;
    if (auto found = device_node(place, entry.name)) nodes.push_back(std::move(*found));
  }
}

const inventory::MigMinors& DeviceFiles::mig_minors() {
  if (!mig_minors_) {
    mig_minors_.emplace();
    const auto text = roots_->proc.read_regular_file(kMigMinors);
    auto parsed = text ? inventory::parse_mig_minors(*text) : fail(text.error());
    if (parsed) {
      mig_minors_ = std::move(*parsed);
    } else {
      warn("no MIG capabilities: " + parsed.error().full_message());
    }
  }
  return *mig_minors_;
}

std::vector<DeviceNode> DeviceFiles::control_nodes() {
  std::vector<DeviceNode> nodes;
  for (const char* name : {"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"}) {
    if (auto found = device_node(kDev, name)) nodes.push_back(std::move(*found));
  }
  return nodes;
}

std::optional<DeviceNode> DeviceFiles::gpu_node(unsigned minor) {
  return device_node(kDev, "nvidia" + std::to_string(minor));
}

std::vector<DeviceNode> DeviceFiles::mig_nodes(unsigned gpu_minor, unsigned gpu_instance,
                                               unsigned compute_instance) {
  std::vector<DeviceNode> nodes;
  const auto paths = inventory::mig_device_nodes(mig_minors(), gpu_minor, gpu_instance, compute_instance);
  if (paths.empty())
    warn("no MIG capability of gpu" + std::to_string(gpu_minor) + "/gi" + std::to_string(gpu_instance) +
         "/ci" + std::to_string(compute_instance) + " in mig-minors");
  for (const std::string& path : paths) {
    if (auto found = device_node(text::parent_directory(path), text::base_name(path)))
      nodes.push_back(std::move(*found));
  }
  return nodes;
}

DeviceFiles::Drm DeviceFiles::drm(const inventory::PciAddress& pci) {
  Drm found;
  const auto listed = roots_->sys.list_directory("/bus/pci/devices/" + pci.sysfs_text() + "/drm");
  if (!listed) return found;  // a GPU without a DRM driver loaded
  for (std::size_t index = 0; index < listed->size(); ++index) {
    const std::string_view name = listed->entry(index).name;
    if (auto drm_node = device_node(kDri, name)) found.nodes.push_back(std::move(*drm_node));
  }
  const Directory* by_path = find_directory(kByPath);
  if (by_path == nullptr) return found;
  const auto [first, last] = by_path->with_prefix("pci-" + pci.sysfs_text() + "-");
  for (std::size_t index = first; index < last; ++index) {
    const Directory::Entry entry = by_path->entry(index);
    if (entry.type != FileType::kLink) continue;
    const auto target = by_path->read_link(entry.name);
    if (!target) continue;
    const std::string path = join_path(kDri, text::base_name(*target));
    if (std::ranges::find(found.nodes, path, &DeviceNode::path) == found.nodes.end()) continue;
    found.links.push_back({"../" + std::string(text::base_name(*target)), join_path(kByPath, entry.name)});
  }
  return found;
}

std::vector<DeviceNode> DeviceFiles::gds() {
  std::vector<DeviceNode> nodes;
  add_matching(nodes, kDev, "nvidia-fs*");
  return nodes;
}

std::vector<DeviceNode> DeviceFiles::mofed() {
  std::vector<DeviceNode> nodes;
  if (auto manager = device_node("/dev/infiniband", "rdma_cm")) nodes.push_back(std::move(*manager));
  add_matching(nodes, "/dev/infiniband", "uverbs*");
  return nodes;
}

std::vector<DeviceNode> DeviceFiles::gdrcopy() {
  auto found = device_node(kDev, "gdrdrv");
  return found ? std::vector{std::move(*found)} : std::vector<DeviceNode>{};
}

std::vector<DeviceNode> DeviceFiles::nvswitch() {
  std::vector<DeviceNode> nodes;
  add_matching(nodes, kDev, "nvidia-nvswitch*");  // nvidia-nvswitchctl among them
  return nodes;
}

std::vector<DeviceNode> DeviceFiles::wsl() {
  auto found = device_node(kDev, "dxg");
  return found ? std::vector{std::move(*found)} : std::vector<DeviceNode>{};
}

std::vector<unsigned> DeviceFiles::imex_channel_ids() {
  std::vector<unsigned> ids;
  const Directory* listed = find_directory(kChannels);
  if (listed == nullptr) return ids;
  const auto [first, last] = listed->with_prefix(kChannel);
  for (std::size_t index = first; index < last; ++index) {
    const std::string_view number = listed->entry(index).name.substr(kChannel.size());
    const auto id = text::parse_unsigned(number);
    const bool plain = number == "0" || !text::starts_with(number, "0");
    if (id && *id <= kMaxChannel && plain) ids.push_back(static_cast<unsigned>(*id));
  }
  std::ranges::sort(ids);
  return ids;
}

std::optional<DeviceNode> DeviceFiles::imex_channel(unsigned id) {
  return device_node(kChannels, std::string(kChannel) + std::to_string(id));
}

std::vector<DeviceNode> DeviceFiles::management() {
  std::vector<DeviceNode> nodes;
  const Directory* dev = find_directory(kDev);
  if (dev == nullptr) return nodes;
  const auto [first, last] = dev->with_prefix("nvidia");
  for (std::size_t index = first; index < last; ++index) {
    const Directory::Entry entry = dev->entry(index);
    const bool other = std::ranges::any_of(
        kNotForManagement, [&](std::string_view prefix) { return text::starts_with(entry.name, prefix); });
    if (other || entry.type == FileType::kDirectory) continue;
    if (auto found = device_node(kDev, entry.name)) nodes.push_back(std::move(*found));
  }
  add_matching(nodes, kCaps, "*");
  add_matching(nodes, kChannels, "*");
  return nodes;
}

}  // namespace gpulet::cdi
