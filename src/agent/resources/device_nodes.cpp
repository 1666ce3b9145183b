#include "agent/resources/device_nodes.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/driver_root.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "inventory/host_files.h"

namespace gpulet::agent {
namespace {

constexpr const char* kControlNode = "/dev/nvidiactl";
constexpr const char* kUvmToolsNode = "/dev/nvidia-uvm-tools";
constexpr std::string_view kUvmDriver = "nvidia-uvm", kCapsDriver = "nvidia-caps";
constexpr mode_t kUvmMode = 0666, kCapabilityMode = 0444;
constexpr std::string_view kNodePrefix = "nvidia";
constexpr const char* kNodeDirectories[] = {"/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"};
constexpr Duration kModprobeLimit = std::chrono::seconds(30);
// nvidia-modprobe creates several nodes and then sets their modes.
constexpr Duration kNodesSettle = std::chrono::milliseconds(50);
constexpr std::uint32_t kNodeEvents = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |
                                      IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

// One line for each node of the driver: equal texts, equal nodes.
std::string list_nodes(const std::vector<std::string>& roots) {
  std::string text;
  for (const auto& path : roots) {
    const auto root = RootDirectory::open_root(path);
    if (!root) continue;
    for (const auto& node : list_driver_nodes(*root)) {
      const auto opened = root->open_file(node, O_PATH | O_NOFOLLOW);
      struct stat status{};
      if (!opened || ::fstat(opened->get(), &status) != 0) continue;
      text += path_below(path, node) + " " + std::to_string(status.st_mode) + " " +
              std::to_string(status.st_rdev) + " " + std::to_string(status.st_gid) + "\n";
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> driver_roots(const config::Config& config) {
  const auto& root = config.flags.container_driver_root;
  return root == "/" ? std::vector<std::string>{root} : std::vector<std::string>{root, "/"};
}

std::optional<RootDirectory> find_device_root(const config::Config& config) {
  for (const auto& path : driver_roots(config)) {
    auto root = RootDirectory::open_root(path);
    if (root && root->exists(kControlNode)) return std::move(*root);
  }
  return std::nullopt;
}

std::vector<std::string> list_driver_nodes(const RootDirectory& root) {
  std::vector<std::string> nodes;
  for (const std::string directory : kNodeDirectories) {
    for (const auto& name : root.list_directory(directory).value_or(std::vector<std::string>())) {
      if (directory != "/dev" || name.starts_with(kNodePrefix)) nodes.push_back(directory + "/" + name);
    }
  }
  return nodes;
}

// "22 1 0:21 / /dev rw,nosuid shared:2 - devtmpfs udev rw": fields 5 and the one after the hyphen. The last
// mount at a path is the visible one.
bool mounts_devtmpfs(std::string_view mountinfo) {
  bool found = false;
  for (const auto& line : text::split(mountinfo, '\n')) {
    const auto fields = text::split(line, ' ');
    const auto hyphen = std::ranges::find(fields, "-");
    if (fields.size() < 5 || fields[4] != "/dev" || hyphen == fields.end() || hyphen + 1 == fields.end())
      continue;
    found = *(hyphen + 1) == "devtmpfs";
  }
  return found;
}

Result<RootDirectory> open_driver_proc(const RootDirectory& root) {
  if (root.exists("/proc/driver/nvidia"))
    return RootDirectory::open_root(path_below(root.root_path(), "/proc"));
  return RootDirectory::open_root("/proc");
}

bool has_all_device_nodes(const RootDirectory& root) {
  if (root.root_path() != "/") return true;
  const auto mounts = read_file("/proc/self/mountinfo");
  return mounts && mounts_devtmpfs(*mounts);
}

std::string find_compute_problem(const RootDirectory& root) {
  if (root.exists(kUvmNode) || !has_all_device_nodes(root)) return {};
  return std::string(kUvmNode) + " is missing: load nvidia-uvm, for example with `nvidia-modprobe -u -c 0`";
}

std::vector<DeviceNodeSpec> required_device_nodes(std::string_view proc_devices, std::string_view mig_minors,
                                                  const inventory::Snapshot* snapshot) {
  const auto majors = inventory::parse_device_majors(proc_devices);
  std::vector<DeviceNodeSpec> nodes;
  if (const auto uvm = majors.find(kUvmDriver); uvm != majors.end()) {
    nodes.push_back({kUvmNode, makedev(uvm->second, 0), kUvmMode});
    nodes.push_back({kUvmToolsNode, makedev(uvm->second, 1), kUvmMode});
  }
  const auto caps = majors.find(kCapsDriver);
  const auto minors = inventory::parse_mig_minors(mig_minors);
  if (snapshot == nullptr || caps == majors.end() || !minors) return nodes;
  std::set<unsigned> needed;
  for (const auto& gpu : snapshot->gpus) {
    if (gpu.mig_enabled && minors->monitor_minor()) needed.insert(*minors->monitor_minor());
    for (const auto& mig : gpu.mig_devices) {
      const auto gi = minors->gpu_instance_minor(gpu.minor, mig.gpu_instance);
      const auto ci = minors->compute_instance_minor(gpu.minor, mig.gpu_instance, mig.compute_instance);
      if (gi && ci) needed.insert({*gi, *ci});
    }
  }
  for (const unsigned minor : needed) {
    nodes.push_back({inventory::capability_node(minor), makedev(caps->second, minor), kCapabilityMode});
  }
  return nodes;
}

DeviceNodeWatcher::DeviceNodeWatcher(Loop& loop, std::function<void()> changed,
                                     std::function<bool()> is_missed)
    : loop_(loop), changed_(std::move(changed)), is_missed_(std::move(is_missed)) {}

void DeviceNodeWatcher::watch_roots(const std::vector<std::string>& roots) {
  std::string directories;
  for (const auto& root : roots) {
    for (const std::string directory : {"/", kNodeDirectories[0], kNodeDirectories[1], kNodeDirectories[2]}) {
      const auto identity = file_identity(path_below(root, directory));
      directories += root + directory;
      if (identity)
        directories += " " + std::to_string(identity->device) + ":" + std::to_string(identity->inode);
      directories += "\n";
    }
  }
  if (directories == directories_seen_) return;
  const bool first = directories_seen_.empty();
  directories_seen_ = std::move(directories);
  roots_ = roots;
  add_watches();
  if (first) {
    nodes_seen_ = list_nodes(roots_);
  } else if (!settling_) {
    settling_ = loop_.after(kNodesSettle, [this] { on_settled(); });
  }
}

void DeviceNodeWatcher::add_watches() {
  std::vector<Subscription> watches;
  const auto watch = [&](const std::string& directory, std::uint32_t events) {
    auto added = watch_events(loop_, directory, events,
                              [this](const std::string& name, std::uint32_t mask) { on_event(name, mask); });
    if (added) {
      watches.push_back(std::move(*added));
    } else if (added.error().code() == Code::kIo) {
      log::warning("cannot watch the driver's device nodes", added.error());
    }
  };
  for (const auto& root : roots_) {
    if (root != "/") watch(root, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);  // dev itself
    for (const char* directory : kNodeDirectories) watch(path_below(root, directory), kNodeEvents);
  }
  watches_ = std::move(watches);
}

void DeviceNodeWatcher::on_event(const std::string& name, std::uint32_t mask) {
  constexpr std::uint32_t kDirectoryItself =
      IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW;
  const bool lost = (mask & kDirectoryItself) != 0;
  if (lost) directories_seen_ = "lost";  // a new directory may have the number of the old one
  const bool matters = lost || name == "dev" || name.starts_with("channel") || name.starts_with(kNodePrefix);
  if (matters && !settling_) settling_ = loop_.after(kNodesSettle, [this] { on_settled(); });
}

void DeviceNodeWatcher::on_settled() {
  settling_.reset();
  // Directories that are new are watched before they are read.
  watch_roots(roots_);
  std::string nodes = list_nodes(roots_);
  if (nodes == nodes_seen_ && !(is_missed_ && is_missed_())) return;
  nodes_seen_ = std::move(nodes);
  changed_();
}

bool DeviceNodeCreator::create_missing_nodes(const config::Config& config,
                                             const inventory::Snapshot* snapshot) {
  if (!config.gpulet.create_device_nodes) return false;
  const auto root = find_device_root(config);
  if (!root || !has_all_device_nodes(*root)) return false;
  const auto proc = open_driver_proc(*root);
  if (!proc) return false;
  const auto devices = proc->read_text_file("/devices");
  if (!devices) return false;
  const bool has_mig =
      snapshot != nullptr && std::ranges::any_of(snapshot->gpus, [](const inventory::Gpu& gpu) {
        return gpu.mig_enabled || !gpu.mig_devices.empty();
      });
  const std::string minors =
      has_mig ? proc->read_text_file(kMigMinorsBelowProc).value_or(std::string()) : std::string();
  const auto required = required_device_nodes(*devices, minors, snapshot);
  if (root->exists(kUvmNode)) load_tried_ = false;
  if (!root->exists(kUvmNode) &&
      std::ranges::find(required, kUvmNode, &DeviceNodeSpec::path) == required.end())
    load_uvm(config.flags.container_driver_root);
  bool created_any = false;
  for (const auto& node : required) {
    if (root->exists(node.path)) continue;
    const auto created = root->create_character_device(node.path, node.device, node.mode);
    if (!created && created.error().code() == Code::kFailedPrecondition) continue;
    if (!created) {
      report_failure(created.error().full_message() +
                     (created.error().code() == Code::kPermissionDenied
                          ? "; the agent needs CAP_MKNOD and a writable /dev in the driver root, or "
                            "gpulet.createDeviceNodes: false"
                          : ""));
      return created_any;
    }
    created_any = true;
    log::info("created a device node",
              {{"path", path_below(root->root_path(), node.path)},
               {"number", std::to_string(major(node.device)) + ":" + std::to_string(minor(node.device))}});
  }
  if (created_any) reported_.clear();
  return created_any;
}

// Its nodes appear in /dev, where the watcher sees them.
void DeviceNodeCreator::load_uvm(const std::string& driver_root) {
  if (load_tried_ || modprobe_ || !has_capability(CAP_SYS_MODULE)) return;
  auto program = find_driver_program(driver_root, "nvidia-modprobe");
  if (!program) return;
  load_tried_ = true;
  auto call = mps::ProgramCall::start_call(
      loop_, {.program = std::move(*program), .arguments = {"-u", "-c", "0"}}, kModprobeLimit,
      [this](const Result<std::string>& output) {
        const auto ended = std::move(modprobe_);
        if (!output) return report_failure("cannot load nvidia-uvm: " + output.error().full_message());
        log::info("loaded nvidia-uvm with nvidia-modprobe");
      });
  if (!call) return report_failure("cannot load nvidia-uvm: " + call.error().full_message());
  modprobe_ = std::move(*call);
}

void DeviceNodeCreator::report_failure(const std::string& message) {
  if (message == reported_) return;
  reported_ = message;
  reporter_.report_event(Reporter::Severity::kWarning, "DeviceNodeNotCreated", message);
}

}  // namespace gpulet::agent
