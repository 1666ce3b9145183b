#include "sim/root/driver_root.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "sim/root/driver_files.h"
#include "sim/state/mig.h"

namespace gpulet::sim {

void kill_programs(const std::string& root) {
  std::error_code error;
  const auto directory = std::filesystem::canonical(root, error).string() + "/";
  if (error) return;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const auto id = text::parse_unsigned(process.path().filename().string());
    if (!id) continue;
    std::error_code gone;
    const auto program = std::filesystem::read_symlink(process.path() / "exe", gone);
    if (!gone && program.string().starts_with(directory)) ::kill(static_cast<pid_t>(*id), SIGKILL);
  }
}

namespace {

constexpr std::string_view kListPath = "run/gpulet-sim/made";
constexpr std::string_view kCapabilities = "proc/driver/nvidia/capabilities";
constexpr std::string_view kCapsDirectory = "dev/nvidia-caps";
constexpr mode_t kConfigMode = 0400;
constexpr mode_t kMonitorMode = 0444;

std::string state_path(const std::string& root) { return root + "/" + std::string(kStatePathInRoot); }

bool has_fabric_domain(const Machine& machine) {
  const auto& uuid = machine.gpus[0].fabric.cluster_uuid;
  return std::any_of(std::begin(uuid), std::end(uuid), [](std::uint8_t byte) { return byte != 0; });
}

// Returns the NVSwitches on this node's PCI bus, by address, with their device ids.
std::map<std::string, std::uint32_t> find_switches(const Machine& machine) {
  std::map<std::string, std::uint32_t> found;
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    for (const NvLink& link : machine.gpus[i].links) {
      if (link.present != 0 && link.remote == kRemoteSwitch && link.remote_device_id != 0) {
        found[address_text(link.remote_pci)] = link.remote_device_id;
      }
    }
  }
  return found;
}

struct MachineNode {
  std::string path;  // relative to the root
  unsigned major = 0, minor = 0;
  mode_t mode = 0666;
};

// Without the capabilities of MIG devices, which sync_capabilities makes.
std::vector<MachineNode> device_nodes(const Machine& machine) {
  std::vector<MachineNode> nodes{{"dev/nvidiactl", kNvidiaMajor, kControlMinor},
                                 {"dev/nvidia-modeset", kNvidiaMajor, kModesetMinor},
                                 {"dev/nvidia-uvm", kUvmMajor, 0},
                                 {"dev/nvidia-uvm-tools", kUvmMajor, 1}};
  bool mig = false;
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    mig = mig || gpu.mig.capable != 0;
    nodes.push_back({"dev/nvidia" + std::to_string(gpu.minor), kNvidiaMajor, gpu.minor});
    if (gpu.render_minor == 0) continue;
    nodes.push_back({"dev/dri/card" + std::to_string(i), kDrmMajor, i});
    nodes.push_back({"dev/dri/renderD" + std::to_string(gpu.render_minor), kDrmMajor, gpu.render_minor});
  }
  if (mig) {
    const std::string caps(kCapsDirectory);
    nodes.push_back({caps + "/nvidia-cap1", kCapsMajor, kConfigMinor, kConfigMode});
    nodes.push_back({caps + "/nvidia-cap2", kCapsMajor, kMonitorMinor, kMonitorMode});
  }
  if (has_fabric_domain(machine)) nodes.push_back({"dev/nvidia-caps-imex-channels/channel0", kImexMajor, 0});
  unsigned number = 0;
  for (const auto& entry : find_switches(machine)) {
    if (entry.second == 0) continue;
    nodes.push_back({"dev/nvidia-nvswitch" + std::to_string(number), kSwitchMajor, number});
    ++number;
  }
  if (number != 0) nodes.push_back({"dev/nvidia-nvswitchctl", kSwitchMajor, kControlMinor});
  return nodes;
}

bool belongs_to_uvm(const MachineNode& node) { return node.major == kUvmMajor; }

Status add_device_nodes(FileTree& tree, const Machine& machine, bool uvm) {
  for (const MachineNode& node : device_nodes(machine)) {
    if (!uvm && belongs_to_uvm(node)) continue;
    GPULET_TRY(tree.add_device_node(node.path, node.major, node.minor, node.mode));
  }
  return {};
}

Status add_proc(FileTree& tree, const Machine& machine, bool uvm) {
  GPULET_TRY(tree.add_file("proc/devices", proc_devices_text(uvm), 0444));
  GPULET_TRY(tree.add_file("proc/driver/nvidia/version", proc_version_text(machine), 0444));
  GPULET_TRY(tree.add_file("proc/driver/nvidia/params", proc_params_text(machine), 0444));
  GPULET_TRY(tree.add_file("proc/driver/nvidia-caps/mig-minors", mig_minors_text(), 0444));
  const std::string capabilities(kCapabilities);
  GPULET_TRY(tree.add_file(capabilities + "/mig/config", capability_text(kConfigMinor, kConfigMode), 0400));
  GPULET_TRY(
      tree.add_file(capabilities + "/mig/monitor", capability_text(kMonitorMinor, kMonitorMode), 0444));
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    GPULET_TRY(tree.add_file("proc/driver/nvidia/gpus/" + address_text(gpu.pci) + "/information",
                             proc_information_text(machine, gpu), 0444));
    // The library creates instances here, as any user.
    if (gpu.mig.capable != 0)
      GPULET_TRY(tree.add_directory(capabilities + "/gpu" + std::to_string(gpu.minor) + "/mig"));
  }
  return {};
}

struct PciFunction {
  std::string address;
  std::uint32_t device_id;
  std::uint32_t subsystem_id;
  std::uint32_t class_code;
  std::int32_t numa_node;
  std::string cpus;
  PciBars bars;
};

std::string hex_text(std::uint32_t value, int digits) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%0*x\n", digits, value);
  return text;
}

// Adds /sys/devices/pci0000:1b/0000:1b:00.0 and its link in /sys/bus/pci/devices.
Status add_pci_function(FileTree& tree, const PciFunction& function, std::string& directory) {
  const std::string place =
      "devices/pci" + function.address.substr(0, function.address.rfind(':')) + "/" + function.address;
  directory = "sys/" + place;
  GPULET_TRY(tree.add_file(directory + "/class", hex_text(function.class_code, 6), 0444));
  GPULET_TRY(tree.add_file(directory + "/vendor", hex_text(function.device_id & 0xffff, 4), 0444));
  GPULET_TRY(tree.add_file(directory + "/device", hex_text(function.device_id >> 16, 4), 0444));
  GPULET_TRY(
      tree.add_file(directory + "/subsystem_vendor", hex_text(function.subsystem_id & 0xffff, 4), 0444));
  GPULET_TRY(tree.add_file(directory + "/subsystem_device", hex_text(function.subsystem_id >> 16, 4), 0444));
  GPULET_TRY(tree.add_file(directory + "/revision", hex_text(0xa1, 2), 0444));
  GPULET_TRY(tree.add_file(directory + "/numa_node", std::to_string(function.numa_node) + "\n", 0444));
  GPULET_TRY(tree.add_file(directory + "/local_cpulist", function.cpus + "\n", 0444));
  GPULET_TRY(tree.add_file(directory + "/resource", pci_resource_text(function.bars), 0444));
  GPULET_TRY(tree.add_file(
      directory + "/config",
      pci_config_bytes(function.device_id, function.subsystem_id, function.class_code, function.bars), 0644));
  return tree.add_symlink("sys/bus/pci/devices/" + function.address, "../../../" + place);
}

Status add_sys(FileTree& tree, const Machine& machine) {
  GPULET_TRY(tree.add_file("sys/class/dmi/id/product_name", std::string(machine.product) + "\n", 0444));
  GPULET_TRY(tree.add_directory("sys/bus/pci/drivers/nvidia"));
  GPULET_TRY(tree.add_file("sys/module/nvidia/version", std::string(machine.driver.version) + "\n", 0444));
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    const PciFunction function{address_text(gpu.pci), gpu.pci_device_id,  gpu.pci_subsystem_id, kGpuClass,
                               gpu.numa_node,         cpu_list_text(gpu), gpu_bars(gpu, i)};
    std::string directory;
    GPULET_TRY(add_pci_function(tree, function, directory));
    GPULET_TRY(tree.add_symlink(directory + "/driver", "../../../bus/pci/drivers/nvidia"));
    GPULET_TRY(tree.add_symlink("sys/bus/pci/drivers/nvidia/" + function.address,
                                "../../../../" + directory.substr(4)));
    if (gpu.render_minor == 0) continue;
    GPULET_TRY(tree.add_directory(directory + "/drm/card" + std::to_string(i)));
    GPULET_TRY(tree.add_directory(directory + "/drm/renderD" + std::to_string(gpu.render_minor)));
  }
  std::uint32_t switches = 0;
  for (const auto& [address, device_id] : find_switches(machine)) {
    std::string directory;
    GPULET_TRY(add_pci_function(
        tree,
        {address, device_id, device_id, kSwitchClass, machine.gpus[0].numa_node, "", switch_bars(switches++)},
        directory));
  }
  return {};
}

// A device cgroup may allow to make nodes that nobody can open.
Status check_nodes_open(const FileTree& tree) {
  const std::string control = tree.root_path() + "/dev/nvidiactl";
  const FileDescriptor fd(::open(control.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open() && (errno == EPERM || errno == EACCES))
    return fail(Code::kPermissionDenied, "cannot be opened", control);
  return {};
}

Result<StateFile> build_root(FileTree& tree, const Machine& machine, const RootOptions& options) {
  if (options.device_nodes) {
    auto made = add_device_nodes(tree, machine, options.uvm);
    if (made) made = check_nodes_open(tree);
    if (!made) {
      const Error& error = made.error();
      if (error.code() != Code::kPermissionDenied) return fail(error);
      return fail(Code::kPermissionDenied,
                  "device nodes are refused: run as root with CAP_MKNOD and access to devices, or pass "
                  "--no-device-nodes",
                  options.root);
    }
  }
  GPULET_TRY(add_proc(tree, machine, options.uvm));
  GPULET_TRY(add_sys(tree, machine));
  GPULET_TRY(add_driver_files(tree, {machine.driver.version, options.nvml_library, options.nvidia_smi,
                                     options.mps_control, options.cuda_library}));
  GPULET_TRY(tree.add_directory("run/gpulet-sim"));
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) sync_capabilities(options.root, machine.gpus[i]);
  GPULET_TRY(tree.save_list(kListPath));
  const auto initial = std::make_unique<Machine>(machine);
  initial->driver.has_device_nodes = options.device_nodes ? 1 : 0;
  return StateFile::create_state(state_path(options.root), *initial);
}

// Removes what the library created there since.
void remove_contents(const std::string& directory) {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
}

void undo_root(FileTree& tree) {
  const std::set<std::string_view> made(tree.created_paths().begin(), tree.created_paths().end());
  for (const std::string_view directory : {kCapabilities, kCapsDirectory}) {
    if (made.contains(directory)) remove_contents(tree.root_path() + "/" + std::string(directory));
  }
  unlink(state_path(tree.root_path()).c_str());
  tree.remove_created();
}

Result<std::string> installed_version(const std::string& root) {
  const std::string link = root + "/" + std::string(kLibraryDirectory) + "/libcuda.so.1";
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(link, error);
  constexpr std::string_view kPrefix = "libcuda.so.";
  if (error || !target.starts_with(kPrefix)) return fail(Code::kNotFound, "no driver library found", link);
  return target.substr(kPrefix.size());
}

// Replaces a file atomically.
Status rewrite_file(const std::string& path, const std::string& content) {
  const auto before = read_file(path);
  if (before && *before == content) return {};
  return write_file_atomic(path, content, 0444);
}

}  // namespace

InstalledFiles installed_files() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length <= 0) return {};
  const std::string directory =
      std::filesystem::path(std::string(program, static_cast<std::size_t>(length))).parent_path();
  for (const std::string& place : {directory + "/../lib/gpulet/sim", directory, directory + "/../sim"}) {
    InstalledFiles files{place + "/libnvidia-ml.so.1", place + "/nvidia-smi",
                         place + "/nvidia-cuda-mps-control", place + "/libcuda.so.1"};
    if (access(files.nvml_library.c_str(), R_OK) != 0) continue;
    if (access(files.nvidia_smi.c_str(), X_OK) != 0) files.nvidia_smi.clear();
    if (access(files.mps_control.c_str(), X_OK) != 0) files.mps_control.clear();
    if (access(files.cuda_library.c_str(), R_OK) != 0) files.cuda_library.clear();
    return files;
  }
  return {};
}

Result<StateFile> create_driver_root(const Machine& machine, RootOptions options) {
  if (options.root.empty()) return fail(Code::kInvalidArgument, "missing the directory of the driver root");
  const InstalledFiles installed = installed_files();
  if (options.nvml_library.empty()) options.nvml_library = installed.nvml_library;
  if (options.nvidia_smi.empty()) options.nvidia_smi = installed.nvidia_smi;
  if (options.mps_control.empty()) options.mps_control = installed.mps_control;
  if (options.cuda_library.empty()) options.cuda_library = installed.cuda_library;
  if (options.nvml_library.empty()) {
    return fail(Code::kNotFound, "no simulated libnvidia-ml.so.1 next to this program: pass --library");
  }
  if (access((options.root + "/" + std::string(kListPath)).c_str(), F_OK) == 0) {
    return fail(Code::kFailedPrecondition, "a machine is already up here: run gpulet-sim down first",
                options.root);
  }
  GPULET_TRY(make_directories(options.root));
  FileTree tree(options.root);
  auto state = build_root(tree, machine, options);
  if (!state) undo_root(tree);
  return state;
}

Status remove_driver_root(const std::string& root) {
  auto tree = FileTree::load_list(root, kListPath);
  if (!tree) {
    if (tree.error().code() != Code::kNotFound) return fail(tree.error());
    return fail(Code::kNotFound, "no simulated machine is up", root);
  }
  if (const auto state = StateFile::open_state(state_path(root))) unload_driver(*state->lock_for_edit());
  kill_programs(root);
  undo_root(*tree);
  return {};
}

Result<StateFile> open_driver_state(const std::string& root) {
  auto state = StateFile::open_state(state_path(root));
  if (!state && state.error().code() == Code::kNotFound) {
    return fail(Code::kNotFound, "no simulated machine is up: run gpulet-sim up MACHINE --root " + root,
                root);
  }
  return state;
}

namespace {

// Kept in the list of created files while it is removed, so that `down` removes whoever's comes after it.
Status make_node(const std::string& root, const MachineNode& node) {
  GPULET_TRY_ASSIGN(FileTree tree, FileTree::load_list(root, kListPath));
  const auto& listed = tree.created_paths();
  if (std::ranges::find(listed, node.path) != listed.end())
    return FileTree(root).add_device_node(node.path, node.major, node.minor, node.mode);
  GPULET_TRY(tree.add_device_node(node.path, node.major, node.minor, node.mode));
  return tree.save_list(kListPath);
}

Status remove_node(const std::string& root, const std::string& path) {
  const std::string there = root + "/" + path;
  if (unlink(there.c_str()) != 0) return fail(errno_error("remove", errno, there));
  return {};
}

Result<MachineNode> find_device_node(const std::string& root, const std::string& name) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(root));
  const auto nodes = device_nodes(*state.lock_for_read());
  const auto found = std::ranges::find(nodes, "dev/" + name, &MachineNode::path);
  if (found == nodes.end()) return fail(Code::kNotFound, "the machine has no such device node", name);
  return *found;
}

}  // namespace

Status add_device_node(const std::string& root, const std::string& name) {
  GPULET_TRY_ASSIGN(const MachineNode node, find_device_node(root, name));
  return make_node(root, node);
}

Status remove_device_node(const std::string& root, const std::string& name) {
  GPULET_TRY_ASSIGN(const MachineNode node, find_device_node(root, name));
  return remove_node(root, node.path);
}

Status load_uvm(const std::string& root, bool with_nodes) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(root));
  GPULET_TRY(rewrite_file(root + "/proc/devices", proc_devices_text(true)));
  const auto nodes = device_nodes(*state.lock_for_read());
  for (const MachineNode& node : nodes) {
    if (!with_nodes || !belongs_to_uvm(node)) continue;
    if (const auto made = make_node(root, node); !made && made.error().code() != Code::kFailedPrecondition)
      return made;
  }
  return {};
}

Status unload_uvm(const std::string& root) {
  GPULET_TRY_ASSIGN(const StateFile state, open_driver_state(root));
  const auto nodes = device_nodes(*state.lock_for_read());
  for (const MachineNode& node : nodes) {
    if (!belongs_to_uvm(node)) continue;
    if (const auto removed = remove_node(root, node.path);
        !removed && removed.error().code() != Code::kNotFound)
      return removed;
  }
  return rewrite_file(root + "/proc/devices", proc_devices_text(false));
}

Status refresh_driver_root(const std::string& root, const Machine& machine) {
  GPULET_TRY_ASSIGN(const std::string before, installed_version(root));
  if (before != machine.driver.version) {
    GPULET_TRY_ASSIGN(FileTree tree, FileTree::load_list(root, kListPath));
    GPULET_TRY(change_driver_version(tree, before, machine.driver.version));
    GPULET_TRY(tree.save_list(kListPath));
    GPULET_TRY(rewrite_file(root + "/sys/module/nvidia/version", std::string(machine.driver.version) + "\n"));
  }
  GPULET_TRY(rewrite_file(root + "/proc/driver/nvidia/version", proc_version_text(machine)));
  GPULET_TRY(rewrite_file(root + "/proc/driver/nvidia/params", proc_params_text(machine)));
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    const std::string directory = root + "/proc/driver/nvidia/gpus/" + address_text(gpu.pci);
    GPULET_TRY(rewrite_file(directory + "/information", proc_information_text(machine, gpu)));
    sync_capabilities(root, gpu);
  }
  return {};
}

}  // namespace gpulet::sim
