#include "doctor/host_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <set>

#include "base/driver_root.h"
#include "base/text.h"
#include "cdi/spec_files.h"
#include "inventory/host_files.h"

namespace gpulet::doctor {
namespace {

constexpr std::size_t kFirstCapability = 0x100, kConfigSpaceEnd = 0x1000, kControlOffset = 6;
constexpr std::uint32_t kAcs = 0x000D, kRequestRedirect = 1u << 2;

std::uint32_t read_little_endian(std::string_view config, std::size_t at, std::size_t size) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(config[at + i])) << (8 * i);
  return value;
}

}  // namespace

bool acs_redirects(std::string_view config) {
  // Capabilities are at least four bytes apart: this bounds a circular list.
  std::size_t at = kFirstCapability;
  for (std::size_t left = (kConfigSpaceEnd - kFirstCapability) / 4;
       left > 0 && at >= kFirstCapability && at + kControlOffset + 2 <= config.size(); --left) {
    const auto header = read_little_endian(config, at, 4);
    if ((header & 0xffff) == kAcs)
      return (read_little_endian(config, at + kControlOffset, 2) & kRequestRedirect) != 0;
    at = header >> 20;
  }
  return false;
}

// Facts from kernel files: the bus, the driver's halves, device nodes, processes.

namespace {

constexpr std::size_t kUnprivilegedConfigBytes = 64;  // bytes of a configuration space that are readable
                                                      // without CAP_SYS_ADMIN
constexpr std::string_view kLibrary = "libnvidia-ml.so.";
constexpr const char* kDriverContainerRoot = "/run/nvidia/driver";  // the GPU operator's
constexpr std::uint32_t kNvSwitch = 0x068000;

std::string trimmed_text(const Result<std::string>& text) {
  return text ? std::string(text::trim(*text)) : std::string();
}

// "570.124.06"
bool is_dotted_version(std::string_view word) {
  return !word.empty() && text::is_digit(word.front()) && text::is_digit(word.back()) &&
         word.find('.') != std::string_view::npos &&
         std::ranges::all_of(word, [](char c) { return text::is_digit(c) || c == '.'; });
}

// The bridges above a GPU: its parent directories in sysfs, named by address.
void add_bridges(const RootDirectory& sys, const std::string& device, PciBus& bus,
                 std::set<std::string>& redirecting) {
  std::string directory = device.substr(0, device.rfind('/'));
  for (; inventory::PciAddress::from_text(std::string(text::base_name(directory)));
       directory.resize(directory.rfind('/'))) {
    const auto config = sys.read_text_file(directory + "/config");
    bus.bridges_hidden = bus.bridges_hidden || !config || config->size() <= kUnprivilegedConfigBytes;
    if (config && acs_redirects(*config)) redirecting.emplace(text::base_name(directory));
  }
}

void add_pci_function(const RootDirectory& sys, const std::string& name, PciBus& bus,
                      std::set<std::string>& redirecting) {
  const auto device = sys.resolve("/bus/pci/devices/" + name);
  if (!device || trimmed_text(sys.read_text_file(*device + "/vendor")) != inventory::kPciVendor) return;
  const auto pci_class =
      inventory::parse_pci_class(sys.read_text_file(*device + "/class").value_or(std::string()));
  if (pci_class == kNvSwitch) ++bus.switches;
  if (!inventory::is_display_controller(pci_class)) return;
  const auto driver = sys.resolve(*device + "/driver");
  bus.gpus.push_back({name, driver ? std::string(text::base_name(*driver)) : std::string()});
  const auto type = trimmed_text(sys.read_text_file(*device + "/iommu_group/type"));
  if (type == "DMA" || type == "DMA-FQ") bus.translated_gpus.push_back(name);
  add_bridges(sys, *device, bus, redirecting);
}

std::string find_version(const std::string& text) {
  const auto line = text.substr(0, text.find('\n'));
  for (const auto& word : text::split(line, ' ')) {
    if (is_dotted_version(word)) return word;
  }
  return {};
}

// The driver names of a node in /proc/devices; drivers before 545 have one for all but UVM.
std::vector<std::string> driver_names(const std::string& path) {
  if (path == "/dev/nvidia-uvm") return {"nvidia-uvm"};
  if (path == "/dev/nvidiactl") return {"nvidiactl", "nvidia-frontend", "nvidia"};
  return {"nvidia", "nvidia-frontend"};
}

std::optional<Error> device_node_error(const RootDirectory& dev, const std::string& path,
                                       const std::map<std::string, unsigned, std::less<>>& majors) {
  const auto found = dev.character_device(path);
  if (!found) return found.error();
  for (const auto& driver : driver_names(path)) {
    const auto known = majors.find(driver);
    if (known == majors.end()) continue;
    if (known->second == major(*found)) break;
    return Error(Code::kFailedPrecondition, "has the major number " + std::to_string(major(*found)) +
                                                ", the driver's is " + std::to_string(known->second));
  }
  // GPU nodes are left to NVML, because opening one wakes the GPU.
  if (path != "/dev/nvidiactl" && path != "/dev/nvidia-uvm") return std::nullopt;
  const auto opened = dev.open_file(path, O_RDWR | O_NONBLOCK);
  if (!opened && opened.error().code() == Code::kPermissionDenied) return opened.error();
  return std::nullopt;
}

bool is_world_accessible(const RootDirectory& dev, const std::string& path) {
  const auto opened = dev.open_file(path, O_PATH);
  struct stat status{};
  return !opened || ::fstat(opened->get(), &status) != 0 || (status.st_mode & 0666) == 0666;
}

bool has_entries(const std::string& directory) {
  const auto root = RootDirectory::open_root(directory);
  const auto names = root ? root->list_directory("/") : Result<std::vector<std::string>>(fail(root.error()));
  return names && !names->empty();
}

std::string find_tree(const ProbeTargets& targets, const std::string& name) {
  const std::string driver_root = targets.driver_root.empty() ? targets.host_root : targets.driver_root;
  for (const auto& root : {targets.host_root, driver_root}) {
    if (has_entries(path_below(root, name))) return path_below(root, name);
  }
  return name;
}

// The versions of libnvidia-ml below a driver root, ascending.
std::vector<std::string> library_versions(const std::string& driver_root) {
  std::set<std::string> versions;
  const auto root = RootDirectory::open_root(driver_root);
  for (const auto directory : library_directories()) {
    if (!root) break;
    for (const auto& name : root->list_directory(directory).value_or(std::vector<std::string>())) {
      if (name.starts_with(kLibrary) && is_dotted_version(name.substr(kLibrary.size())))
        versions.insert(name.substr(kLibrary.size()));
    }
  }
  return {versions.begin(), versions.end()};
}

std::string find_driver_root(const ProbeTargets& targets) {
  if (!targets.driver_root.empty()) return targets.driver_root;
  const std::string container = path_below(targets.host_root, kDriverContainerRoot);
  const bool only_container =
      library_versions(targets.host_root).empty() && !library_versions(container).empty();
  return only_container ? container : targets.host_root;
}

bool has_control_node(const std::string& root) {
  const auto directory = RootDirectory::open_root(root);
  return directory && directory->exists("/dev/nvidiactl");
}

// The directory that contains a tree: "/host" of "/host/dev".
std::string parent_root(const std::string& tree) {
  const auto parent = tree.substr(0, tree.rfind('/'));
  return parent.empty() ? "/" : parent;
}

}  // namespace

HostTrees locate_trees(const ProbeTargets& targets) {
  HostTrees trees{.host = targets.host_root,
                  .driver = find_driver_root(targets),
                  .proc = find_tree(targets, "/proc"),
                  .sys = find_tree(targets, "/sys"),
                  .dev = find_tree(targets, "/dev"),
                  .dev_root = targets.dev_root};
  if (!trees.dev_root.empty()) return trees;
  trees.dev_root = parent_root(trees.dev);
  const bool own_nodes = targets.in_container && has_control_node(trees.dev_root);
  if (!own_nodes && has_control_node(trees.driver)) trees.dev_root = trees.driver;
  return trees;
}

HostTrees assumed_trees(const ProbeTargets& targets) {
  const std::string& host = targets.host_root;
  return {.host = host,
          .driver = targets.driver_root.empty() ? host : targets.driver_root,
          .proc = path_below(host, "/proc"),
          .sys = path_below(host, "/sys"),
          .dev = path_below(host, "/dev"),
          .dev_root = targets.dev_root.empty() ? host : targets.dev_root};
}

Result<PciBus> read_pci_bus(const HostTrees& trees) {
  GPULET_TRY_ASSIGN(const auto sys, RootDirectory::open_root(trees.sys));
  GPULET_TRY_ASSIGN(const auto names, sys.list_directory("/bus/pci/devices"));
  PciBus bus;
  std::set<std::string> redirecting;
  for (const auto& name : names) add_pci_function(sys, name, bus, redirecting);
  bus.redirecting_bridges.assign(redirecting.begin(), redirecting.end());
  bus.nouveau = sys.exists("/module/nouveau");
  return bus;
}

DriverFiles read_driver_files(const HostTrees& trees) {
  DriverFiles installed;
  installed.module = fail(Code::kNotFound, "the kernel module is not loaded");
  if (const auto proc = RootDirectory::open_root(trees.proc)) {
    const auto text = proc->read_text_file("/driver/nvidia/version");
    if (text && !find_version(*text).empty()) installed.module = find_version(*text);
  }
  if (const auto sys = RootDirectory::open_root(trees.sys); sys && !installed.module) {
    if (const auto text = sys->read_text_file("/module/nvidia/version"))
      installed.module = trimmed_text(text);
  }
  installed.libraries = library_versions(trees.driver);
  return installed;
}

Result<DeviceNodes> read_device_nodes(const HostTrees& trees) {
  GPULET_TRY_ASSIGN(const auto dev, RootDirectory::open_root(trees.dev_root));
  GPULET_TRY_ASSIGN(const auto proc, RootDirectory::open_root(trees.proc));
  std::vector<std::string> paths{"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const auto& gpu : proc.list_directory("/driver/nvidia/gpus").value_or(std::vector<std::string>())) {
    const auto text =
        proc.read_text_file("/driver/nvidia/gpus/" + gpu + "/information").value_or(std::string());
    for (const auto& line : text::split(text, '\n')) {
      constexpr std::string_view kMinor = "Device Minor:";
      if (!line.starts_with(kMinor)) continue;
      paths.push_back("/dev/nvidia" + std::string(text::trim(std::string_view(line).substr(kMinor.size()))));
    }
  }
  const auto majors = inventory::parse_device_majors(proc.read_text_file("/devices").value_or(std::string()));
  // systemd follows the host's links, wherever the nodes are.
  const auto host = RootDirectory::open_root(parent_root(trees.dev));
  const bool links = host && host->exists("/dev/char");
  DeviceNodes nodes;
  if (trees.dev_root != parent_root(trees.dev)) nodes.root = trees.dev_root;
  for (const auto& path : paths) {
    DeviceNode node{path, device_node_error(dev, path, majors), true};
    if (!node.error) {
      node.world_accessible = is_world_accessible(dev, path);
      const auto number = dev.character_device(path);
      const auto link = "/dev/char/" + std::to_string(major(*number)) + ":" + std::to_string(minor(*number));
      if (links && !host->exists(link)) nodes.without_char_link_nodes.push_back(path);
    }
    nodes.needed.push_back(std::move(node));
  }
  return nodes;
}

// The host's own process namespace has kernel threads; that of a node in a container begins with an init
// system.
Result<ProcessFacts> read_processes(const HostTrees& trees) {
  constexpr std::string_view kFirstPrograms[] = {"systemd", "init",      "openrc-init",
                                                 "runit",   "s6-svscan", "tini"};
  GPULET_TRY_ASSIGN(const auto proc, RootDirectory::open_root(trees.proc));
  const auto first = trimmed_text(proc.read_text_file("/1/comm"));
  const bool has_kernel_threads = trimmed_text(proc.read_text_file("/2/comm")) == "kthreadd";
  if (!has_kernel_threads && std::ranges::find(kFirstPrograms, first) == std::end(kFirstPrograms))
    return fail(Code::kUnavailable, "the host's processes are not visible (needs hostPID)");
  ProcessFacts programs;
  for (const auto& entry : proc.list_directory("/").value_or(std::vector<std::string>())) {
    const auto pid = text::parse_unsigned(entry);
    if (!pid) continue;
    const auto arguments =
        text::split(proc.read_text_file("/" + entry + "/cmdline").value_or(std::string()), '\0');
    if (arguments.empty()) continue;
    const auto name = text::base_name(arguments[0]);
    const bool agent = name == "gpulet" && arguments.size() > 1 && arguments[1] == "agent";
    if (agent || name == "nvidia-device-plugin")
      programs.device_plugins.emplace_back(static_cast<int>(*pid), agent ? "gpulet agent" : name);
    if (runtimes::is_kubelet(arguments)) programs.kubelets.push_back(arguments);
    programs.fabric_manager = programs.fabric_manager || name == "nv-fabricmanager";
  }
  return programs;
}

// Container engines, CDI specs, MPS directories, and the raw files of an archive.

namespace {

constexpr std::string_view kRuntime = "nvidia-container-runtime";
constexpr int kMpsDepth = 4;  // <root>/nvidia.com/gpu/<UUID>

std::string read_text(const runtimes::Host& host, const std::string& path) {
  const auto text = host.read_settings(path);
  return text && *text ? **text : std::string();
}

bool mentions_nvidia(const std::string& file) {
  const auto text = read_file(file);
  return text && text->find("nvidia.com") != std::string::npos;
}

// Host paths in a spec's edits; device nodes have their own check.
struct SpecReferences {
  std::set<std::string> paths, versions;
  void add_edits(const cdi::ContainerEdits& edits) {
    for (const auto& hook : edits.hooks) paths.insert(hook.path);
    for (const auto& mount : edits.mounts) {
      paths.insert(mount.host_path);
      const std::string name(text::base_name(mount.host_path));
      for (const std::string_view library : {"libcuda.so.", "libnvidia-ml.so."}) {
        if (name.starts_with(library) && name.find('.', library.size()) != std::string::npos)
          versions.insert(name.substr(library.size()));
      }
    }
  }
};

// Kernel log lines about the driver and PCI errors. Each read returns one record; it does not block at the
// end.
std::string read_kernel_log(const HostTrees& trees) {
  constexpr std::string_view kWords[] = {"NVRM", "nvidia", "Nouveau", "nouveau", "AER:", "pcieport"};
  constexpr std::size_t kMost = 1u << 20;
  const auto root = RootDirectory::open_root(trees.dev);
  const auto log =
      root ? root->open_file("/kmsg", O_RDONLY | O_NONBLOCK) : Result<FileDescriptor>(fail(root.error()));
  std::string lines;
  std::array<char, 8192> record;
  while (log && lines.size() < kMost) {
    const ssize_t got = ::read(log->get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // records overwritten meanwhile
    if (got <= 0) break;
    for (const auto& line :
         text::split(std::string_view(record.data(), static_cast<std::size_t>(got)), '\n')) {
      const auto names = [&](std::string_view word) { return line.find(word) != std::string::npos; };
      if (std::ranges::any_of(kWords, names)) lines += line + "\n";
    }
  }
  return lines;
}

void add_archive_file(std::vector<ArchiveFile>& files, const std::string& root, const std::string& path) {
  const auto directory = RootDirectory::open_root(root);
  if (!directory) return;
  if (auto text = directory->read_text_file(path)) files.push_back({"node" + path, std::move(*text)});
}

}  // namespace

Result<Engines> read_engines(const HostTrees& trees, bool inside,
                             const std::vector<runtimes::CommandLine>& kubelets) {
  GPULET_TRY_ASSIGN(const auto host, runtimes::Host::open_host({.root = trees.host, .is_own_root = inside}));
  Engines engines;
  for (auto& report : runtimes::check_engines(host)) {
    Engine engine{.report = std::move(report), .nvidia_runtime = false};
    engine.nvidia_runtime = std::ranges::any_of(engine.report.files, [&](const auto& file) {
      return read_text(host, file).find(kRuntime) != std::string::npos;
    });
    engines.all.push_back(std::move(engine));
  }
  engines.endpoint = runtimes::find_kubelet_endpoint(host, kubelets);
  engines.nvidia_runtime_config = runtimes::nvidia::read_runtime_config(host.make_reader());
  return engines;
}

Result<CdiSpecs> read_cdi_specs(const HostTrees& trees, const std::string& agent_folder,
                                bool host_files_seen) {
  GPULET_TRY_ASSIGN(const auto host, RootDirectory::open_root(trees.host));
  CdiSpecs specs;
  specs.directories = cdi::kSpecDirs;
  if (std::ranges::find(specs.directories, agent_folder) == specs.directories.end())
    specs.directories.push_back(agent_folder);
  std::vector<std::string> directories;  // as seen by this process
  for (const auto& directory : specs.directories) {
    if (const auto path = host.resolve(directory)) directories.push_back(path_below(trees.host, *path));
  }
  const auto read = cdi::read_spec_dirs(directories);
  for (const auto& problem : read.problems) {
    const auto line = problem.problem_text();
    const auto about = [&](const std::string& file) {
      return line.starts_with(file + ":") && mentions_nvidia(file);
    };
    if (std::ranges::any_of(read.files, about)) specs.problems.push_back(line);
  }
  for (const auto& device : read.devices) {
    if (device.substr(0, device.find('/')).ends_with("nvidia.com")) specs.devices.push_back(device);
  }
  SpecReferences named;
  for (const auto& file : read.files) {
    const auto spec = cdi::read_spec_file(file).spec;
    if (!spec || spec->kind.find(kNvidiaPrefix) == std::string::npos) continue;
    specs.files.push_back(file);
    named.add_edits(spec->edits);
    for (const auto& device : spec->devices) named.add_edits(device.edits);
  }
  specs.versions = std::move(named.versions);
  for (const auto& path : named.paths) {
    if (host_files_seen && !host.exists(path)) specs.missing.push_back(path);
  }
  return specs;
}

Result<std::vector<std::string>> find_mps_daemons(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(root, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kMpsDepth) entry.disable_recursion_pending();
    if (entry->path().filename() != ".started") continue;
    names.push_back(entry->path().parent_path().lexically_relative(root).string());
  }
  if (error && error.value() != ENOENT) return fail(errno_error("cannot be traversed", error.value(), root));
  std::ranges::sort(names);
  return names;
}

std::vector<ArchiveFile> collect_raw_files(const HostTrees& trees, const std::string& device_plugins,
                                           const std::set<std::string>& settings) {
  std::vector<ArchiveFile> files;
  const auto proc_root = trees.proc.substr(0, trees.proc.size() - 5);  // the directory that contains proc/
  for (const char* path : {"/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/proc/devices",
                           "/proc/cmdline", "/proc/version", "/proc/modules"})
    add_archive_file(files, proc_root.empty() ? "/" : proc_root, path);
  const auto host = RootDirectory::open_root(trees.host);
  const auto add_directory = [&](const std::string& directory) {
    for (const auto& name : host->list_directory(directory).value_or(std::vector<std::string>()))
      add_archive_file(files, trees.host, directory + "/" + name);
  };
  if (host) {
    for (const auto& directory : cdi::kSpecDirs) add_directory(directory);
    for (const char* path : {"/etc/os-release", "/run/gpulet/health.json", "/var/lib/kubelet/config.yaml",
                             "/var/lib/kubelet/kubeadm-flags.env"})
      add_archive_file(files, trees.host, path);
    for (const auto& path : settings) add_archive_file(files, trees.host, path);
    for (const std::string directory : {"/etc/containerd/conf.d", "/etc/crio/crio.conf.d"}) {
      for (const auto& name : host->list_directory(directory).value_or(std::vector<std::string>())) {
        if (!settings.contains(directory + "/" + name))
          add_archive_file(files, trees.host, directory + "/" + name);
      }
    }
  }
  if (auto lines = read_kernel_log(trees); !lines.empty()) files.push_back({"kernel.txt", std::move(lines)});
  if (const auto directory = RootDirectory::open_root(device_plugins)) {
    const auto names = directory->list_directory("/").value_or(std::vector<std::string>());
    files.push_back({"kubelet/device-plugins.txt", text::join(names, "\n") + "\n"});
  }
  return files;
}

}  // namespace gpulet::doctor
