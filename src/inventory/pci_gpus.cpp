#include "inventory/pci_gpus.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/file.h"
#include "base/text.h"
#include "inventory/host_files.h"

namespace gpulet::inventory {
namespace {

constexpr std::string_view kDevices = "/sys/bus/pci/devices";
constexpr std::string_view kPassthroughDriver = "vfio-pci";
constexpr std::size_t kSysfsPage = 4096;  // the maximum size of a text file in sysfs
constexpr std::uint32_t kNvidia = 0x10de;

// The first `bytes` of a file of the device's directory in sysfs, from the first root that has it; empty if
// none has.
std::string read_sys(const PciAddress& pci, const char* name, const std::vector<std::string>& sys_roots,
                     std::size_t bytes = kSysfsPage) {
  for (const auto& root : sys_roots) {
    if (auto content = read_prefix(root + std::string(kDevices) + "/" + pci.sysfs_text() + "/" + name, bytes))
      return *content;
  }
  return {};
}

std::optional<int> read_numa_node(const PciAddress& pci, const std::vector<std::string>& sys_roots) {
  // The kernel reports -1 if the firmware has no value.
  const auto node = text::parse_unsigned(text::trim(read_sys(pci, "numa_node", sys_roots)));
  return node && *node < 4096 ? std::optional(static_cast<int>(*node)) : std::nullopt;
}

// By number. Source: the PCI ID database, https://pci-ids.ucw.cz.
struct Name {
  std::uint16_t device;
  std::string_view name;
};
constexpr Name kNames[] = {
    {0x1db1, "GV100GL [Tesla V100 SXM2 16GB]"},
    {0x1db3, "GV100GL [Tesla V100 FHHL 16GB]"},
    {0x1db4, "GV100GL [Tesla V100 PCIe 16GB]"},
    {0x1db5, "GV100GL [Tesla V100 SXM2 32GB]"},
    {0x1db6, "GV100GL [Tesla V100 PCIe 32GB]"},
    {0x1db8, "GV100GL [Tesla V100 SXM3 32GB]"},
    {0x1df5, "GV100GL [Tesla V100 SXM2 16GB]"},
    {0x1df6, "GV100GL [Tesla V100S PCIe 32GB]"},
    {0x1e30, "TU102GL [Quadro RTX 6000/8000]"},
    {0x1e37, "TU102GL [Tesla T10 16GB / GRID RTX T10-2/T10-4/T10-8]"},
    {0x1eb8, "TU104GL [Tesla T4]"},
    {0x20b0, "GA100 [A100 SXM4 40GB]"},
    {0x20b1, "GA100 [A100 PCIe 40GB]"},
    {0x20b2, "GA100 [A100 SXM4 80GB]"},
    {0x20b3, "GA100 [A100-SXM-64GB]"},
    {0x20b5, "GA100 [A100 PCIe 80GB]"},
    {0x20b7, "GA100GL [A30 PCIe]"},
    {0x20b8, "GA100 [A100X]"},
    {0x20b9, "GA100 [A30X]"},
    {0x20f1, "GA100 [A100 PCIe 40GB]"},
    {0x20f3, "GA100 [A800-SXM4-80GB]"},
    {0x20f5, "GA100 [A800 80GB PCIe]"},
    {0x20f6, "GA100 [A800 40GB PCIe]"},
    {0x20fd, "GA100 [A100T]"},
    {0x2230, "GA102GL [RTX A6000]"},
    {0x2231, "GA102GL [RTX A5000]"},
    {0x2232, "GA102GL [RTX A4500]"},
    {0x2233, "GA102GL [RTX A5500]"},
    {0x2235, "GA102GL [A40]"},
    {0x2236, "GA102GL [A10]"},
    {0x2237, "GA102GL [A10G]"},
    {0x2321, "GH100 [H100L 94GB]"},
    {0x2322, "GH100 [H800 PCIe]"},
    {0x2324, "GH100 [H800]"},
    {0x2329, "GH100 [H20]"},
    {0x2330, "GH100 [H100 SXM5 80GB]"},
    {0x2331, "GH100 [H100 PCIe]"},
    {0x2335, "GH100 [H200 SXM 141GB]"},
    {0x233b, "GH100 [H200 NVL]"},
    {0x24b0, "GA104GL [RTX A4000]"},
    {0x25b6, "GA107GL [A2 / A16]"},
    {0x26b1, "AD102GL [L6000 / RTX 6000 Ada Generation]"},
    {0x26b5, "AD102GL [L40]"},
    {0x26b9, "AD102GL [L40S]"},
    {0x27b0, "AD104GL [RTX 4000 SFF Ada Generation]"},
    {0x27b8, "AD104GL [L4]"},
    {0x2901, "GB100 [B200]"},
    {0x2941, "GB100 [HGX GB200]"},
    {0x29bc, "GB102 [B100]"},
    {0x31c2, "GB110 [GB300]"},
};
static_assert(std::ranges::is_sorted(kNames, {}, &Name::device));

// Whether the function at `address` is a GPU that vfio-pci has.
bool is_passed_through(const RootDirectory& root, const std::string& address) {
  const std::string directory = std::string(kDevices) + "/" + address;
  const auto read = [&](const char* name) {
    const auto content = root.read_text_file(directory + "/" + name, kSysfsPage);
    return content ? std::string(text::trim(*content)) : std::string();
  };
  if (read("vendor") != kPciVendor || !is_display_controller(parse_pci_class(read("class")))) return false;
  const auto driver = root.resolve(directory + "/driver");
  return driver && text::base_name(*driver) == kPassthroughDriver;
}

}  // namespace

void read_sysfs_details(const std::vector<std::string>& sys_roots, Gpu& gpu) {
  gpu.numa_node = read_numa_node(gpu.pci, sys_roots);
  gpu.pci_class = parse_pci_class(read_sys(gpu.pci, "class", sys_roots));
  const auto pci_config = read_sys(gpu.pci, "config", sys_roots, kPciHeaderBytes);
  gpu.vgpu = parse_vgpu_host(pci_config);
  gpu.vgpu_known = pci_config.size() > kUnprivilegedPciBytes ||
                   (!pci_config.empty() &&
                    !may_be_virtual_machine(read_prefix("/proc/cpuinfo", kCpuInfoBytes).value_or("")));
}

std::string pci_gpu_name(std::uint16_t device) {
  const auto found = std::ranges::lower_bound(kNames, device, {}, &Name::device);
  if (found != std::end(kNames) && found->device == device) return std::string(found->name);
  return "PCI device 10de-" + hex_text(device, 4);
}

Result<Snapshot> read_vfio_gpus(const std::vector<std::string>& sys_roots) {
  for (const auto& path : sys_roots) {
    const auto root = RootDirectory::open_root(path);
    const auto addresses =
        root ? root->list_directory(kDevices) : Result<std::vector<std::string>>(fail(root.error()));
    if (!addresses) continue;
    Snapshot snapshot;
    snapshot.driver.version = kNoDriverVersion;
    for (const auto& address : *addresses) {
      const auto pci = PciAddress::from_text(address);
      if (!pci || !is_passed_through(*root, address)) continue;
      Gpu gpu;
      gpu.index = static_cast<unsigned>(snapshot.gpus.size());
      gpu.pci = *pci;
      read_sysfs_details({path}, gpu);
      // "0x2330", as the class has.
      const auto device = parse_pci_class(read_sys(*pci, "device", {path}));
      gpu.pci_device_id = device << 16 | kNvidia;
      gpu.model = pci_gpu_name(static_cast<std::uint16_t>(device));
      snapshot.gpus.push_back(std::move(gpu));
    }
    snapshot.pcie.resize(snapshot.gpus.size() * snapshot.gpus.size());
    return snapshot;
  }
  return fail(Code::kUnavailable, "there is no PCI bus in sysfs", std::string(kDevices));
}

}  // namespace gpulet::inventory
