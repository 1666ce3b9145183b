#include "inventory/host_files.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace gpulet::inventory {
namespace {

// A place in the tree as one number: 16 bits each of GPU, GPU instance and compute instance, the two latter
// plus one.
constexpr unsigned kMaxId = 0xFFFE;
constexpr std::uint64_t minor_key(std::uint64_t gpu, std::uint64_t gi_plus_one, std::uint64_t ci_plus_one) {
  return gpu << 32 | gi_plus_one << 16 | ci_plus_one;
}
constexpr std::uint64_t kConfigKey = 1ull << 60, kMonitorKey = 2ull << 60;
constexpr std::uint64_t kMaxMinor = (1u << 20) - 1;  // of a Linux device number

// "gi12" → 12.
std::optional<std::uint64_t> parse_numbered_part(std::string_view segment, std::string_view prefix) {
  if (!text::starts_with(segment, prefix)) return std::nullopt;
  const auto number = text::parse_unsigned(segment.substr(prefix.size()));
  return number && *number <= kMaxId ? number : std::nullopt;
}

std::optional<std::uint64_t> minor_key_of_name(std::string_view name) {
  if (name == "config") return kConfigKey;
  if (name == "monitor") return kMonitorKey;
  const auto parts = text::split(name, '/');
  if ((parts.size() != 3 && parts.size() != 4) || parts.back() != "access") return std::nullopt;
  const auto gpu = parse_numbered_part(parts[0], "gpu");
  const auto gi = parse_numbered_part(parts[1], "gi");
  if (!gpu || !gi) return std::nullopt;
  if (parts.size() == 3) return minor_key(*gpu, *gi + 1, 0);
  const auto ci = parse_numbered_part(parts[2], "ci");
  return ci ? std::optional(minor_key(*gpu, *gi + 1, *ci + 1)) : std::nullopt;
}

}  // namespace

std::optional<unsigned> MigMinors::find_minor(std::uint64_t key) const {
  const auto found = std::ranges::lower_bound(minors_, key, {}, &std::pair<std::uint64_t, unsigned>::first);
  if (found == minors_.end() || found->first != key) return std::nullopt;
  return found->second;
}

std::optional<unsigned> MigMinors::gpu_instance_minor(unsigned gpu_minor, unsigned gi) const {
  if (gpu_minor > kMaxId || gi > kMaxId) return std::nullopt;
  return find_minor(minor_key(gpu_minor, gi + 1, 0));
}

std::optional<unsigned> MigMinors::compute_instance_minor(unsigned gpu_minor, unsigned gi,
                                                          unsigned ci) const {
  if (gpu_minor > kMaxId || gi > kMaxId || ci > kMaxId) return std::nullopt;
  return find_minor(minor_key(gpu_minor, gi + 1, ci + 1));
}

std::optional<unsigned> MigMinors::config_minor() const { return find_minor(kConfigKey); }
std::optional<unsigned> MigMinors::monitor_minor() const { return find_minor(kMonitorKey); }

Result<MigMinors> parse_mig_minors(std::string_view text) {
  MigMinors result;
  std::size_t line_number = 0;
  const auto wrong = [&](const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line_number) + ": " + what, "mig-minors");
  };
  while (!text.empty()) {
    ++line_number;
    const auto end = text.find('\n');
    const auto line = text::trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty()) continue;
    const auto blank = line.find_first_of(" \t");
    if (blank == std::string_view::npos) return wrong("a name without a minor number");
    const auto minor = text::parse_unsigned(text::trim(line.substr(blank)));
    if (!minor || *minor > kMaxMinor) return wrong("no minor number after the name");
    if (const auto key = minor_key_of_name(line.substr(0, blank))) {
      result.minors_.emplace_back(*key, static_cast<unsigned>(*minor));
    }
  }
  std::ranges::stable_sort(result.minors_, {}, &std::pair<std::uint64_t, unsigned>::first);
  const auto doubled =
      std::ranges::adjacent_find(result.minors_, {}, &std::pair<std::uint64_t, unsigned>::first);
  if (doubled != result.minors_.end()) {
    return fail(Code::kInvalidArgument,
                "one name has both minor " + std::to_string(doubled->second) + " and " +
                    std::to_string(std::next(doubled)->second),
                "mig-minors");
  }
  return result;
}

std::map<std::string, unsigned, std::less<>> parse_device_majors(std::string_view text) {
  std::map<std::string, unsigned, std::less<>> majors;
  for (const auto& line : text::split(text.substr(0, text.find("Block devices")), '\n')) {
    const auto trimmed = text::trim(line);
    const auto blank = trimmed.find(' ');
    if (blank == std::string_view::npos) continue;
    if (const auto major = text::parse_unsigned(trimmed.substr(0, blank)))
      majors[std::string(trimmed.substr(blank + 1))] = static_cast<unsigned>(*major);
  }
  return majors;
}

std::string capability_node(unsigned minor) { return "/dev/nvidia-caps/nvidia-cap" + std::to_string(minor); }

std::vector<std::string> mig_device_nodes(const MigMinors& minors, unsigned gpu_minor, unsigned gi,
                                          unsigned ci) {
  const auto gpu_instance = minors.gpu_instance_minor(gpu_minor, gi);
  const auto compute_instance = minors.compute_instance_minor(gpu_minor, gi, ci);
  if (!gpu_instance || !compute_instance) return {};
  return {capability_node(*gpu_instance), capability_node(*compute_instance)};
}

namespace {

constexpr std::size_t kStatus = 0x06, kFirst = 0x34;
constexpr unsigned kHasList = 0x10, kVendor = 0x09;
// Of the capability: id, next, its length, "VF", then records, each with its id and its length.
constexpr std::size_t kLength = 2, kSignature = 3, kRecords = 5;
constexpr unsigned kHostRecord = 0;
constexpr std::size_t kText = 10;  // the version, and then the branch, filled up with zeroes

unsigned byte(std::string_view bytes, std::size_t at) { return static_cast<unsigned char>(bytes[at]); }

// The vendor capability with its stated length; empty if there is none.
std::string_view vendor_capability(std::string_view config) {
  if (config.size() < kPciHeaderBytes || (byte(config, kStatus) & kHasList) == 0) return {};
  std::array<bool, kPciHeaderBytes> seen{};
  for (std::size_t at = byte(config, kFirst); at != 0 && at + kLength < kPciHeaderBytes && !seen[at];
       at = byte(config, at + 1)) {
    seen[at] = true;
    if (byte(config, at) == kVendor)
      return config.substr(at, byte(config, at + kLength)).substr(0, kPciHeaderBytes - at);
  }
  return {};
}

std::string vendor_text_at(std::string_view bytes, std::size_t at) {
  const auto text = bytes.substr(at, kText);
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace

std::uint32_t parse_pci_class(std::string_view text) {
  text = text::trim(text);
  if (!text.starts_with("0x") || text.size() > 8) return 0;
  text.remove_prefix(2);
  std::uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
  return error == std::errc() && end == text.data() + text.size() ? code : 0;
}

bool may_be_virtual_machine(std::string_view cpuinfo) {
  const auto flags = cpuinfo.find("\nflags\t");
  if (flags == std::string_view::npos) return true;
  return cpuinfo.substr(flags, cpuinfo.find('\n', flags + 1) - flags).find(" hypervisor") !=
         std::string_view::npos;
}

std::optional<VgpuHost> parse_vgpu_host(std::string_view config) {
  const auto capability = vendor_capability(config);
  if (capability.size() < kRecords || capability.substr(kSignature, 2) != "VF") return std::nullopt;
  std::size_t at = kRecords;
  while (at + 1 < capability.size() && byte(capability, at) != kHostRecord) {
    const unsigned length = byte(capability, at + 1);
    if (length == 0) return std::nullopt;
    at += length;
  }
  if (at + 2 + 2 * kText > capability.size()) return std::nullopt;
  return VgpuHost{vendor_text_at(capability, at + 2), vendor_text_at(capability, at + 2 + kText)};
}

}  // namespace gpulet::inventory
