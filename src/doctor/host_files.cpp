// What the kernel says by files: the bus, the driver's halves, device nodes, programs.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "doctor/acs.h"
#include "doctor/probes.h"
#include "inventory/pci_config.h"

namespace gpulet::doctor {
namespace {

constexpr std::string_view kNvidia = "0x10de";
constexpr std::size_t kShownToAll = 64;  // bytes of a configuration space, without CAP_SYS_ADMIN
constexpr std::string_view kLibrary = "libnvidia-ml.so.";
constexpr std::uint32_t kDisplay = 0x03, kNvSwitch = 0x068000;
constexpr const char* kLibraryFolders[] = {"/usr/lib64",
                                           "/usr/lib/x86_64-linux-gnu",
                                           "/usr/lib/aarch64-linux-gnu",
                                           "/usr/lib/x86_64-linux-gnu/nvidia/current",
                                           "/usr/lib/aarch64-linux-gnu/nvidia/current",
                                           "/lib64",
                                           "/lib/x86_64-linux-gnu",
                                           "/lib/aarch64-linux-gnu",
                                           "/usr/local/nvidia/lib64",
                                           "/usr/lib"};

std::string trimmed(const Result<std::string>& text) {
  return text ? std::string(text::trim(*text)) : std::string();
}

// "570.124.06"
bool is_version(std::string_view word) {
  return !word.empty() && text::is_digit(word.front()) && text::is_digit(word.back()) &&
         word.find('.') != std::string_view::npos &&
         std::ranges::all_of(word, [](char c) { return text::is_digit(c) || c == '.'; });
}

// What lies above a GPU in sysfs' tree of devices: bridges, whose names are addresses.
void add_bridges(const RootDirectory& sys, const std::string& device, Bus& bus,
                 std::set<std::string>& redirecting) {
  std::string folder = device.substr(0, device.rfind('/'));
  for (; inventory::PciAddress::parse(std::string(text::base_name(folder)));
       folder.resize(folder.rfind('/'))) {
    const auto config = sys.read(folder + "/config");
    bus.bridges_unseen = bus.bridges_unseen || !config || config->size() <= kShownToAll;
    if (config && acs_redirects(*config)) redirecting.emplace(text::base_name(folder));
  }
}

void add_function(const RootDirectory& sys, const std::string& name, Bus& bus,
                  std::set<std::string>& redirecting) {
  const auto device = sys.resolve("/bus/pci/devices/" + name);
  if (!device || trimmed(sys.read(*device + "/vendor")) != kNvidia) return;
  const auto pci_class = inventory::pci_class(sys.read(*device + "/class").value_or(std::string()));
  if (pci_class == kNvSwitch) ++bus.switches;
  if (pci_class >> 16 != kDisplay) return;
  const auto driver = sys.resolve(*device + "/driver");
  bus.gpus.push_back({name, driver ? std::string(text::base_name(*driver)) : std::string()});
  const auto type = trimmed(sys.read(*device + "/iommu_group/type"));
  if (type == "DMA" || type == "DMA-FQ") bus.translated_gpus.push_back(name);
  add_bridges(sys, *device, bus, redirecting);
}

std::string version_in(const std::string& text) {
  const auto line = text.substr(0, text.find('\n'));
  for (const auto& word : text::split(line, ' ')) {
    if (is_version(word)) return word;
  }
  return {};
}

// Majors of character devices by name. Source: /proc/devices.
std::map<std::string, unsigned> majors_of(const RootDirectory& proc) {
  std::map<std::string, unsigned> majors;
  const auto text = proc.read("/devices").value_or(std::string());
  for (const auto& line : text::split(text.substr(0, text.find("Block devices")), '\n')) {
    const auto trimmed = text::trim(line);
    const auto blank = trimmed.find(' ');
    if (blank == std::string_view::npos) continue;
    if (const auto major = text::parse_unsigned(trimmed.substr(0, blank)))
      majors[std::string(trimmed.substr(blank + 1))] = static_cast<unsigned>(*major);
  }
  return majors;
}

// By which name /proc/devices has the node's driver; a driver before 545 has one for all but UVM.
std::vector<std::string> drivers_of(const std::string& path) {
  if (path == "/dev/nvidia-uvm") return {"nvidia-uvm"};
  if (path == "/dev/nvidiactl") return {"nvidiactl", "nvidia-frontend", "nvidia"};
  return {"nvidia", "nvidia-frontend"};
}

std::optional<Error> trouble_of(const RootDirectory& dev, const std::string& path,
                                const std::map<std::string, unsigned>& majors) {
  const auto found = dev.character_device(path);
  if (!found) return found.error();
  for (const auto& driver : drivers_of(path)) {
    const auto known = majors.find(driver);
    if (known == majors.end()) continue;
    if (known->second == major(*found)) break;
    return Error(Code::kFailedPrecondition, "has the major number " + std::to_string(major(*found)) +
                                                ", and the driver's is " + std::to_string(known->second));
  }
  // A GPU's own node is left to NVML: opening it wakes the GPU up.
  if (path != "/dev/nvidiactl" && path != "/dev/nvidia-uvm") return std::nullopt;
  const auto opened = dev.open_file(path, O_RDWR | O_NONBLOCK);
  if (!opened && opened.error().code() == Code::kPermissionDenied) return opened.error();
  return std::nullopt;
}

bool for_all(const RootDirectory& dev, const std::string& path) {
  const auto opened = dev.open_file(path, O_PATH);
  struct stat status{};
  return !opened || ::fstat(opened->get(), &status) != 0 || (status.st_mode & 0666) == 0666;
}

bool has_entries(const std::string& folder) {
  const auto root = RootDirectory::open(folder);
  const auto names = root ? root->list("/") : Result<std::vector<std::string>>(fail(root.error()));
  return names && !names->empty();
}

std::string tree(const Places& places, const std::string& name) {
  const std::string driver_root = places.driver_root.empty() ? places.host_root : places.driver_root;
  for (const auto& root : {places.host_root, driver_root}) {
    if (has_entries(below(root, name))) return below(root, name);
  }
  return name;
}

}  // namespace

std::string below(const std::string& root, const std::string& path) {
  return root == "/" ? path : root + path;
}

Trees trees_of(const Places& places) {
  return {.host = places.host_root,
          .driver = places.driver_root.empty() ? places.host_root : places.driver_root,
          .proc = tree(places, "/proc"),
          .sys = tree(places, "/sys"),
          .dev = tree(places, "/dev")};
}

Result<Bus> look_at_bus(const Trees& trees) {
  GPULET_TRY_ASSIGN(const auto sys, RootDirectory::open(trees.sys));
  GPULET_TRY_ASSIGN(const auto names, sys.list("/bus/pci/devices"));
  Bus bus;
  std::set<std::string> redirecting;
  for (const auto& name : names) add_function(sys, name, bus, redirecting);
  bus.redirecting_bridges.assign(redirecting.begin(), redirecting.end());
  bus.nouveau = sys.exists("/module/nouveau");
  return bus;
}

Installed look_at_driver_files(const Trees& trees) {
  Installed installed;
  installed.module = fail(Code::kNotFound, "the kernel module is not loaded");
  if (const auto proc = RootDirectory::open(trees.proc)) {
    const auto text = proc->read("/driver/nvidia/version");
    if (text && !version_in(*text).empty()) installed.module = version_in(*text);
  }
  if (const auto sys = RootDirectory::open(trees.sys); sys && !installed.module) {
    if (const auto text = sys->read("/module/nvidia/version")) installed.module = trimmed(text);
  }
  std::set<std::string> versions;
  const auto root = RootDirectory::open(trees.driver);
  for (const char* folder : kLibraryFolders) {
    if (!root) break;
    for (const auto& name : root->list(folder).value_or(std::vector<std::string>())) {
      if (name.starts_with(kLibrary) && is_version(name.substr(kLibrary.size())))
        versions.insert(name.substr(kLibrary.size()));
    }
  }
  installed.libraries.assign(versions.begin(), versions.end());
  return installed;
}

Result<Nodes> look_at_nodes(const Trees& trees) {
  GPULET_TRY_ASSIGN(
      const auto dev,
      RootDirectory::open(trees.dev == "/dev" ? "/" : trees.dev.substr(0, trees.dev.size() - 4)));
  GPULET_TRY_ASSIGN(const auto proc, RootDirectory::open(trees.proc));
  std::vector<std::string> paths{"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const auto& gpu : proc.list("/driver/nvidia/gpus").value_or(std::vector<std::string>())) {
    const auto text = proc.read("/driver/nvidia/gpus/" + gpu + "/information").value_or(std::string());
    for (const auto& line : text::split(text, '\n')) {
      constexpr std::string_view kMinor = "Device Minor:";
      if (!line.starts_with(kMinor)) continue;
      paths.push_back("/dev/nvidia" + std::string(text::trim(std::string_view(line).substr(kMinor.size()))));
    }
  }
  const auto majors = majors_of(proc);
  const bool links = dev.exists("/dev/char");
  Nodes nodes;
  for (const auto& path : paths) {
    Node node{path, trouble_of(dev, path, majors), true};
    if (!node.trouble) {
      node.for_all = for_all(dev, path);
      const auto number = dev.character_device(path);
      const auto link = "/dev/char/" + std::to_string(major(*number)) + ":" + std::to_string(minor(*number));
      if (links && !dev.exists(link)) nodes.without_char_link.push_back(path);
    }
    nodes.needed.push_back(std::move(node));
  }
  return nodes;
}

Result<Programs> look_at_programs(const Trees& trees) {
  constexpr std::string_view kFirstPrograms[] = {"systemd", "init",      "openrc-init",
                                                 "runit",   "s6-svscan", "tini"};
  GPULET_TRY_ASSIGN(const auto proc, RootDirectory::open(trees.proc));
  const auto first = trimmed(proc.read("/1/comm"));
  if (std::ranges::find(kFirstPrograms, first) == std::end(kFirstPrograms))
    return fail(Code::kUnavailable, "the host's processes are not seen from here (hostPID)");
  Programs programs;
  for (const auto& entry : proc.list("/").value_or(std::vector<std::string>())) {
    const auto pid = text::parse_unsigned(entry);
    if (!pid) continue;
    const auto arguments = text::split(proc.read("/" + entry + "/cmdline").value_or(std::string()), '\0');
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

}  // namespace gpulet::doctor
