#include "inventory/snapshot.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace gpulet::inventory {
namespace {

std::string print_pci_address(const char* format, const PciAddress& address) {
  char text[48];
  std::snprintf(text, sizeof text, format, address.domain, address.bus, address.device, address.function);
  return text;
}

// Takes 1 to `digits` hexadecimal digits and `separator` (0: the end) off the front of `rest`.
bool take_hex_number(std::string_view& rest, std::size_t digits, char separator, std::uint32_t& value) {
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, 16);
  const auto length = static_cast<std::size_t>(end - rest.data());
  if (error != std::errc() || length > digits) return false;
  rest.remove_prefix(length);
  if (separator == 0) return rest.empty();
  if (rest.empty() || rest.front() != separator) return false;
  rest.remove_prefix(1);
  return true;
}

}  // namespace

std::string PciAddress::nvml_text() const { return print_pci_address("%08X:%02X:%02X.%X", *this); }
std::string PciAddress::sysfs_text() const { return print_pci_address("%04x:%02x:%02x.%x", *this); }

Result<PciAddress> PciAddress::from_text(const std::string& text) {
  PciAddress address;
  std::string_view rest = text;
  if (take_hex_number(rest, 8, ':', address.domain) && take_hex_number(rest, 2, ':', address.bus) &&
      take_hex_number(rest, 2, '.', address.device) && take_hex_number(rest, 1, 0, address.function) &&
      address.device < 32 && address.function < 8) {
    return address;
  }
  return fail(Code::kInvalidArgument, "'" + text.substr(0, 64) + "' is not a PCI address (0000:1b:00.0)");
}

const Gpu* Snapshot::find(const DeviceUuid& uuid) const {
  const auto it = std::ranges::find(gpus, uuid, &Gpu::uuid);
  return it == gpus.end() ? nullptr : &*it;
}

}  // namespace gpulet::inventory
