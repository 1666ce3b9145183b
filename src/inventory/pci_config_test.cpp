#include "inventory/pci_config.h"

#include <gtest/gtest.h>

#include <string>

namespace gpulet::inventory {
namespace {

// A configuration space whose list is: power management at 0x60, then `capability` at 0xd0.
std::string space(const std::string& capability) {
  std::string bytes(256, '\0');
  bytes[0x06] = 0x10;
  bytes[0x34] = 0x60;
  bytes[0x60] = 0x01;
  bytes[0x61] = static_cast<char>(0xd0);
  return bytes.replace(0xd0, capability.size(), capability);
}

std::string padded(const std::string& text) { return text + std::string(10 - text.size(), '\0'); }

std::string record(char id, const std::string& content) {
  return std::string(1, id) + static_cast<char>(content.size() + 2) + content;
}

std::string vendor(const std::string& records, const std::string& signature = "VF") {
  return std::string("\x09\0", 2) + static_cast<char>(records.size() + 5) + signature + records;
}

const std::string kHost = record(0, padded("460.16") + padded("r460_00"));

TEST(PciConfig, AVirtualGpuNamesItsHostsDriver) {
  const VgpuHost host{"460.16", "r460_00"};
  EXPECT_EQ(vgpu_host(space(vendor(kHost))), host);
  EXPECT_EQ(vgpu_host(space(vendor(record(7, "abc") + kHost))), host) << "behind another record";
  const std::string full = record(0, "1234567890abcdefghij");
  EXPECT_EQ(vgpu_host(space(vendor(full))), (VgpuHost{"1234567890", "abcdefghij"}));
}

TEST(PciConfig, OthersHaveNone) {
  EXPECT_FALSE(vgpu_host(""));
  EXPECT_FALSE(vgpu_host(space(vendor(kHost)).substr(0, 64))) << "all that an unprivileged reader gets";
  EXPECT_FALSE(vgpu_host(space(vendor(kHost, "XY"))));
  EXPECT_FALSE(vgpu_host(space(std::string("\x10\0\x02", 3)))) << "no vendor's capability";
  auto without_list = space(vendor(kHost));
  without_list[0x06] = 0;
  EXPECT_FALSE(vgpu_host(without_list));
}

TEST(PciConfig, WhatIsBrokenIsNone) {
  EXPECT_FALSE(vgpu_host(space(vendor(record(7, "abc"))))) << "no record 0";
  EXPECT_FALSE(vgpu_host(space(vendor(std::string("\x07\0", 2) + kHost)))) << "a record of no length";
  EXPECT_FALSE(vgpu_host(space(vendor(kHost.substr(0, 12))))) << "a record that is cut off";
  auto loop = space("");
  loop[0xd0] = 0x05;
  loop[0xd1] = 0x60;
  EXPECT_FALSE(vgpu_host(loop));
  auto beyond = space("");
  beyond[0x61] = static_cast<char>(0xff);
  EXPECT_FALSE(vgpu_host(beyond));
  // Said to be longer than the space is.
  auto at_end = std::string(256, '\0');
  at_end[0x06] = 0x10;
  at_end[0x34] = static_cast<char>(0xf0);
  at_end.replace(0xf0, 5, "\x09\x00\xffVF", 5);
  EXPECT_FALSE(vgpu_host(at_end));
}

TEST(PciConfig, Classes) {
  EXPECT_EQ(pci_class("0x030200\n"), 0x030200u);
  EXPECT_EQ(pci_class("0x030000"), 0x030000u);
  for (const char* text : {"", "0x", "030200", "0x03020g", "0x0302000", "0x-30200"}) {
    EXPECT_EQ(pci_class(text), 0u) << text;
  }
}

}  // namespace
}  // namespace gpulet::inventory
