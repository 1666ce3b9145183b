#include "sim/root/driver_files.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/file.h"
#include "base/text.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

bool escapes_root(const std::string& path) {
  if (path.empty() || path.front() == '/') return true;
  const auto parts = text::split(path, '/');
  return std::find(parts.begin(), parts.end(), "..") != parts.end();
}

Error creation_error(int error_number, const std::string& path) {
  if (error_number == EEXIST) return Error(Code::kFailedPrecondition, "is there already and not ours", path);
  return errno_error("make", error_number, path);
}

Status write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(errno_error("write", errno, path));
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<FileTree> FileTree::load_list(std::string root, std::string_view list_path) {
  FileTree tree(std::move(root));
  GPULET_TRY_ASSIGN(const std::string list, read_file(tree.full_path(list_path)));
  for (const std::string& path : text::split(list, '\n')) {
    if (path.empty()) continue;
    if (escapes_root(path))
      return fail(Code::kInvalidArgument, "not a list of created files: '" + path + "'",
                  tree.full_path(list_path));
    tree.created_.push_back(path);
  }
  return tree;
}

Status FileTree::save_list(std::string_view list_path) {
  if (std::find(created_.begin(), created_.end(), list_path) == created_.end()) {
    GPULET_TRY(parents_of(list_path));
    created_.emplace_back(list_path);
  }
  std::string list;
  for (const std::string& path : created_) list += path + "\n";
  return write_file_atomic(full_path(list_path), list);
}

Status FileTree::parents_of(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? Status{} : add_directory(path.substr(0, slash));
}

Status FileTree::add_directory(std::string_view path) {
  const std::string there = full_path(path);
  if (mkdir(there.c_str(), 0755) == 0) {
    created_.emplace_back(path);
    return {};
  }
  if (errno == EEXIST) return {};
  if (errno != ENOENT) return fail(creation_error(errno, there));
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return fail(creation_error(errno, there));
  GPULET_TRY(add_directory(path.substr(0, slash)));
  if (mkdir(there.c_str(), 0755) != 0) return fail(creation_error(errno, there));
  created_.emplace_back(path);
  return {};
}

Status FileTree::add_file(std::string_view path, std::string_view content, mode_t mode) {
  GPULET_TRY(parents_of(path));
  const std::string there = full_path(path);
  const FileDescriptor fd(::open(there.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return fail(creation_error(errno, there));
  created_.emplace_back(path);
  GPULET_TRY(write_all(fd.get(), content, there));
  if (fchmod(fd.get(), mode) != 0) return fail(errno_error("chmod", errno, there));
  return {};
}

Status FileTree::add_copy(std::string_view path, const std::string& source, mode_t mode) {
  GPULET_TRY_ASSIGN(const std::string content, read_file(source));
  return add_file(path, content, mode);
}

Status FileTree::add_symlink(std::string_view path, std::string_view target) {
  GPULET_TRY(parents_of(path));
  const std::string there = full_path(path);
  if (symlink(std::string(target).c_str(), there.c_str()) != 0) return fail(creation_error(errno, there));
  created_.emplace_back(path);
  return {};
}

Status FileTree::add_device_node(std::string_view path, unsigned major, unsigned minor, mode_t mode) {
  GPULET_TRY(parents_of(path));
  const std::string there = full_path(path);
  if (mknod(there.c_str(), S_IFCHR | mode, makedev(major, minor)) != 0)
    return fail(creation_error(errno, there));
  created_.emplace_back(path);
  if (chmod(there.c_str(), mode) != 0) return fail(errno_error("chmod", errno, there));
  return {};
}

void FileTree::remove_path(std::string_view path) {
  const auto found = std::find(created_.begin(), created_.end(), path);
  if (found == created_.end()) return;
  unlink(full_path(path).c_str());
  created_.erase(found);
}

void FileTree::remove_created() {
  for (auto path = created_.rbegin(); path != created_.rend(); ++path) {
    const std::string there = full_path(*path);
    if (unlink(there.c_str()) != 0) rmdir(there.c_str());
  }
  created_.clear();
}

namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kArchitecture = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kArchitecture = EM_AARCH64;
#else
#error "the driver root is laid out for x86-64 and arm64"
#endif
constexpr std::uint64_t kPage = 0x10000;

template <class Part>
std::uint64_t append_bytes(std::string& file, const Part& part) {
  const std::uint64_t at = file.size();
  file.append(reinterpret_cast<const char*>(&part), sizeof(part));
  return at;
}

Elf64_Phdr make_segment(Elf64_Word type, Elf64_Word flags, std::uint64_t offset, std::uint64_t size,
                        std::uint64_t align) {
  Elf64_Phdr header{};
  header.p_type = type;
  header.p_flags = flags;
  header.p_offset = header.p_vaddr = header.p_paddr = offset;
  header.p_filesz = header.p_memsz = size;
  header.p_align = align;
  return header;
}

}  // namespace

std::string make_shared_object(std::string_view soname) {
  // Header, program headers, dynamic section, hash table, symbol table, strings. Addresses are file offsets.
  constexpr std::size_t kSegments = 3;
  constexpr std::size_t kDynamics = 7;
  constexpr std::uint64_t kDynamicAt = sizeof(Elf64_Ehdr) + kSegments * sizeof(Elf64_Phdr);
  constexpr std::uint64_t kHashAt = kDynamicAt + kDynamics * sizeof(Elf64_Dyn);
  constexpr Elf64_Word kHash[] = {1, 1, 0, 0};  // one bucket, one symbol: null
  constexpr std::uint64_t kSymbolsAt = kHashAt + sizeof(kHash);
  constexpr std::uint64_t kStringsAt = kSymbolsAt + sizeof(Elf64_Sym);
  const std::uint64_t strings_size = soname.size() + 2;
  const std::uint64_t size = kStringsAt + strings_size;

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = kArchitecture;
  header.e_version = EV_CURRENT;
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = kSegments;
  header.e_shentsize = sizeof(Elf64_Shdr);

  std::string file;
  append_bytes(file, header);
  append_bytes(file, make_segment(PT_LOAD, PF_R | PF_W, 0, size, kPage));
  append_bytes(file, make_segment(PT_DYNAMIC, PF_R | PF_W, kDynamicAt, kDynamics * sizeof(Elf64_Dyn),
                                  alignof(Elf64_Dyn)));
  append_bytes(file, make_segment(PT_GNU_STACK, PF_R | PF_W, 0, 0, 16));
  const std::pair<Elf64_Sxword, std::uint64_t> dynamics[] = {{DT_SONAME, 1},
                                                             {DT_HASH, kHashAt},
                                                             {DT_STRTAB, kStringsAt},
                                                             {DT_SYMTAB, kSymbolsAt},
                                                             {DT_STRSZ, strings_size},
                                                             {DT_SYMENT, sizeof(Elf64_Sym)},
                                                             {DT_NULL, 0}};
  static_assert(std::size(dynamics) == kDynamics);
  for (const auto& [tag, value] : dynamics) {
    Elf64_Dyn entry{};
    entry.d_tag = tag;
    entry.d_un.d_val = value;
    append_bytes(file, entry);
  }
  append_bytes(file, kHash);
  append_bytes(file, Elf64_Sym{});
  file.push_back('\0');
  file.append(soname);
  file.push_back('\0');
  return file;
}

namespace {

constexpr std::uint32_t kTuring = 6;
constexpr std::uint32_t kWideBar = 0xc;  // of a BAR: 64 bits, prefetchable

void put_le(std::string& bytes, std::size_t at, std::uint32_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<char>(value >> 8 * i & 0xff);
}

std::string device_line(unsigned major, const char* name) {
  char line[64];
  std::snprintf(line, sizeof(line), "%3u %s\n", major, name);
  return line;
}

}  // namespace

std::string address_text(const PciAddress& address) {
  char text[24];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", address.domain, address.bus, address.device,
                address.function & 0xfU);
  return text;
}

std::string proc_version_text(const Machine& machine) {
  // The open kernel modules support Turing and later; one older GPU needs the proprietary ones.
  const bool open = std::all_of(machine.gpus, machine.gpus + machine.gpu_count,
                                [](const Gpu& gpu) { return gpu.architecture >= kTuring; });
  const std::string version = machine.driver.version;
  const std::string module =
      open ? "NVIDIA UNIX Open Kernel Module for x86_64  " + version + "  Release Build  (simulated)"
           : "NVIDIA UNIX x86_64 Kernel Module  " + version;
  return "NVRM version: " + module +
         "  Wed Feb 26 02:03:00 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
}

std::string proc_params_text(const Machine& machine) {
  // The values of RmMemacctMode, in the order of MemoryBackend.
  constexpr std::string_view kMemoryKeys[] = {"", "RmMemacctMode=0", "RmMemacctMode=1", "RmMemacctMode=2"};
  return "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: "
         "0\n"
         "DeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\n"
         "EnableMSI: 1\nEnablePCIeGen3: 0\nMemoryPoolSize: 0\nKMallocHeapMaxSize: 0\nVMallocHeapMaxSize: 0\n"
         "IgnoreMMIOCheck: 0\nEnableStreamMemOPs: 0\nEnableUserNUMAManagement: 1\nNvLinkDisable: 0\n"
         "RmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\nEnableS0ixPowerManagement: 0\n"
         "DynamicPowerManagement: 3\nEnableGpuFirmware: 18\nEnableResizableBar: 0\n"
         "EnableDbgBreakpoint: 0\nOpenRmEnableUnsupportedGpus: 1\nRegistryDwords: \"" +
         std::string(kMemoryKeys[static_cast<std::size_t>(machine.memory.mode)]) +
         "\"\nRegistryDwordsPerDevice: \"\"\n"
         "RmMsg: \"\"\nGpuBlacklist: \"\"\nTemporaryFilePath: \"\"\nExcludedGpus: \"\"\n";
}

std::string proc_devices_text(bool uvm) {
  return "Character devices:\n" + device_line(1, "mem") + device_line(5, "/dev/tty") +
         device_line(10, "misc") + device_line(kNvidiaMajor, "nvidia") +
         device_line(kNvidiaMajor, "nvidia-modeset") + device_line(kNvidiaMajor, "nvidiactl") +
         device_line(kDrmMajor, "drm") + (uvm ? device_line(kUvmMajor, "nvidia-uvm") : "") +
         device_line(kCapsMajor, "nvidia-caps") + device_line(kImexMajor, "nvidia-caps-imex-channels") +
         device_line(kSwitchMajor, "nvidia-nvswitch") + "\nBlock devices:\n" + device_line(259, "blkext");
}

std::string proc_information_text(const Machine& machine, const Gpu& gpu) {
  const std::string firmware = gpu.gsp_firmware_mode != 0 ? machine.driver.version : "N/A";
  return std::string("Model: \t\t ") + gpu.name + "\nIRQ:   \t\t " + std::to_string(64 + gpu.minor) +
         "\nGPU UUID: \t " + gpu.uuid + "\nVideo BIOS: \t " + gpu.vbios_version +
         "\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n" + "Bus Location: \t " +
         address_text(gpu.pci) + "\nDevice Minor: \t " + std::to_string(gpu.minor) + "\nGPU Firmware: \t " +
         firmware + "\nGPU Excluded:\t No\n";
}

std::string cpu_list_text(const Gpu& gpu) {
  const auto has = [&gpu](std::size_t cpu) {
    return cpu < kMaxCpuWords * 64 && (gpu.cpu_affinity[cpu / 64] >> cpu % 64 & 1) != 0;
  };
  std::string list;
  for (std::size_t cpu = 0; cpu < kMaxCpuWords * 64; ++cpu) {
    if (!has(cpu)) continue;
    const std::size_t first = cpu;
    while (has(cpu + 1)) ++cpu;
    if (!list.empty()) list += ',';
    list += std::to_string(first);
    if (cpu != first) list += '-' + std::to_string(cpu);
  }
  return list;
}

PciBars gpu_bars(const Gpu& gpu, std::uint32_t index) {
  // Of the addresses that firmware gives, only alignment and distinctness matter to readers.
  constexpr std::uint64_t kRegistersAt = 0xa0000000, kRegisters = 16u << 20;
  constexpr std::uint64_t kWindowAt = 1ull << 45, kWindow = 1ull << 40, kThirdOffset = 1ull << 39;
  constexpr std::uint64_t kThird = 32u << 20;
  const std::uint64_t window = kWindowAt + index * kWindow;
  return {PciBar{0, kRegistersAt + index * kRegisters, kRegisters},
          PciBar{1, window, std::bit_ceil(std::max(gpu.memory_total, kThird))},
          PciBar{3, window + kThirdOffset, kThird}};
}

PciBars switch_bars(std::uint32_t index) {
  constexpr std::uint64_t kRegistersAt = 0xc0000000, kRegisters = 32u << 20;
  return {PciBar{0, kRegistersAt + index * kRegisters, kRegisters}};
}

std::string pci_resource_text(const PciBars& bars) {
  // The flags of the kernel's include/linux/ioport.h; the low bits are the BAR's own.
  constexpr std::uint64_t kMemory = 0x200, kPrefetch = 0x2000, kSizeAligned = 0x40000, kIs64Bit = 0x100000;
  constexpr std::uint32_t kLines = 13;  // six BARs, the ROM, six BARs of virtual functions
  std::string text;
  for (std::uint32_t number = 0; number < kLines; ++number) {
    const auto bar = std::ranges::find(bars, number, &PciBar::number);
    std::uint64_t start = 0, end = 0, flags = 0;
    if (bar != bars.end()) {
      start = bar->start;
      end = bar->start + bar->size - 1;
      flags = kMemory | kSizeAligned | (number == 0 ? 0 : kIs64Bit | kPrefetch | kWideBar);
    }
    char line[64];
    std::snprintf(line, sizeof(line), "0x%016" PRIx64 " 0x%016" PRIx64 " 0x%016" PRIx64 "\n", start, end,
                  flags);
    text += line;
  }
  return text;
}

std::string pci_config_bytes(std::uint32_t device_id, std::uint32_t subsystem_id, std::uint32_t class_code,
                             const PciBars& bars) {
  std::string bytes(256, '\0');
  put_le(bytes, 0x00, device_id & 0xffff, 2);  // vendor
  put_le(bytes, 0x02, device_id >> 16, 2);
  put_le(bytes, 0x04, 0x0406, 2);                  // command: memory, bus master, no INTx
  put_le(bytes, 0x06, 0x0010, 2);                  // status: has capabilities
  put_le(bytes, 0x08, class_code << 8 | 0xa1, 4);  // class, revision a1
  for (const PciBar& bar : bars) {
    const std::size_t at = 0x10 + 4 * bar.number;
    put_le(bytes, at, static_cast<std::uint32_t>(bar.start) | (bar.number == 0 ? 0 : kWideBar), 4);
    if (bar.number != 0) put_le(bytes, at + 4, static_cast<std::uint32_t>(bar.start >> 32), 4);
  }
  put_le(bytes, 0x2c, subsystem_id & 0xffff, 2);
  put_le(bytes, 0x2e, subsystem_id >> 16, 2);
  // The capability list: each id, then the offset of the next.
  put_le(bytes, 0x34, 0x60, 1);
  put_le(bytes, 0x60, 0x01, 1);  // power management
  put_le(bytes, 0x61, 0x68, 1);
  put_le(bytes, 0x62, 0x0003, 2);
  put_le(bytes, 0x68, 0x05, 1);  // MSI
  put_le(bytes, 0x69, 0x78, 1);
  put_le(bytes, 0x6a, 0x0080, 2);  // 64 bit addresses
  put_le(bytes, 0x78, 0x10, 1);    // PCI Express endpoint, the last
  put_le(bytes, 0x7a, 0x0002, 2);
  return bytes;
}

namespace {

struct Library {
  std::string_view name;
  std::string_view soname_suffix;  // after ".so."; empty: the driver's version, without a link
  bool development_link = false;   // a plain ".so" too
};

constexpr Library kLibraries[] = {
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
// The simulated ones; the others have no symbols.
constexpr Library kNvml{"libnvidia-ml", "1", true};
constexpr Library kCuda{"libcuda", "1", true};
constexpr std::string_view kFirmware[] = {"gsp_ga10x.bin", "gsp_tu10x.bin"};

std::string library_path(const std::string& name) { return std::string(kLibraryDirectory) + "/" + name; }

std::string versioned_name(const Library& library, const std::string& version) {
  return std::string(library.name) + ".so." + version;
}

std::string link_name(const Library& library) {
  return std::string(library.name) + ".so." + std::string(library.soname_suffix);
}

Status add_links(FileTree& tree, const Library& library, const std::string& version) {
  if (library.soname_suffix.empty()) return {};
  const std::string link = link_name(library);
  GPULET_TRY(tree.add_symlink(library_path(link), versioned_name(library, version)));
  if (library.development_link)
    GPULET_TRY(tree.add_symlink(library_path(std::string(library.name) + ".so"), link));
  return {};
}

Status add_stubs(FileTree& tree, const std::string& version) {
  for (const Library& library : kLibraries) {
    const std::string real = versioned_name(library, version);
    GPULET_TRY(tree.add_file(library_path(real),
                             make_shared_object(library.soname_suffix.empty() ? real : link_name(library))));
    GPULET_TRY(add_links(tree, library, version));
  }
  for (const std::string_view name : kFirmware) {
    GPULET_TRY(
        tree.add_file("lib/firmware/nvidia/" + version + "/" + std::string(name), "simulated firmware\n"));
  }
  return {};
}

Status add_library(FileTree& tree, const Library& library, const std::string& version,
                   std::string_view content) {
  GPULET_TRY(tree.add_file(library_path(versioned_name(library, version)), content, 0755));
  return add_links(tree, library, version);
}

void remove_library(FileTree& tree, const Library& library, const std::string& version) {
  tree.remove_path(library_path(std::string(library.name) + ".so"));
  tree.remove_path(library_path(link_name(library)));
  tree.remove_path(library_path(versioned_name(library, version)));
}

}  // namespace

Status add_driver_files(FileTree& tree, const DriverFiles& files) {
  GPULET_TRY(add_stubs(tree, files.version));
  GPULET_TRY_ASSIGN(const std::string nvml, read_file(files.nvml));
  GPULET_TRY(add_library(tree, kNvml, files.version, nvml));
  std::string cuda = make_shared_object(link_name(kCuda));
  if (!files.cuda.empty()) {
    GPULET_TRY_ASSIGN(cuda, read_file(files.cuda));
  }
  GPULET_TRY(add_library(tree, kCuda, files.version, cuda));
  if (!files.nvidia_smi.empty()) GPULET_TRY(tree.add_copy("usr/bin/nvidia-smi", files.nvidia_smi));
  if (!files.mps_control.empty())
    GPULET_TRY(tree.add_copy("usr/bin/nvidia-cuda-mps-control", files.mps_control));
  return {};
}

Status change_driver_version(FileTree& tree, const std::string& old_version, const std::string& new_version) {
  if (old_version == new_version) return {};
  const std::string directory = tree.root_path() + "/" + std::string(kLibraryDirectory) + "/";
  GPULET_TRY_ASSIGN(const std::string nvml, read_file(directory + versioned_name(kNvml, old_version)));
  GPULET_TRY_ASSIGN(const std::string cuda, read_file(directory + versioned_name(kCuda, old_version)));
  for (const Library& library : kLibraries) remove_library(tree, library, old_version);
  for (const std::string_view name : kFirmware)
    tree.remove_path("lib/firmware/nvidia/" + old_version + "/" + std::string(name));
  remove_library(tree, kNvml, old_version);
  remove_library(tree, kCuda, old_version);
  GPULET_TRY(add_stubs(tree, new_version));
  GPULET_TRY(add_library(tree, kNvml, new_version, nvml));
  return add_library(tree, kCuda, new_version, cuda);
}

}  // namespace gpulet::sim
