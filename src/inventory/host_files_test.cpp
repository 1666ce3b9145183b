#include <string>

#include <gtest/gtest.h>

#include "inventory/host_files.h"

namespace gpulet::inventory {
namespace {

TEST(MigMinors, ParsesTheDriversFile) {
  const auto minors = parse_mig_minors(
      "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi1/access "
      "12\ngpu0/gi1/ci0/access 13\n"
      "gpu0/gi1/ci1/access 14\ngpu12/gi3/access 1700\n");
  ASSERT_TRUE(minors) << minors.error().full_message();
  EXPECT_EQ(minors->size(), 8u);
  EXPECT_EQ(minors->config_minor(), 1u);
  EXPECT_EQ(minors->monitor_minor(), 2u);
  EXPECT_EQ(minors->gpu_instance_minor(0, 0), 3u);
  EXPECT_EQ(minors->gpu_instance_minor(12, 3), 1700u);
  EXPECT_EQ(minors->compute_instance_minor(0, 1, 1), 14u);
  EXPECT_FALSE(minors->gpu_instance_minor(1, 0));
  EXPECT_FALSE(minors->compute_instance_minor(12, 3, 0));
  EXPECT_FALSE(minors->compute_instance_minor(0, 0xFFFFFFFF, 0xFFFFFFFF));
}

TEST(MigMinors, NamesTheTwoNodesOfADevice) {
  const auto minors = parse_mig_minors("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n");
  ASSERT_TRUE(minors);
  EXPECT_EQ(mig_device_nodes(*minors, 0, 1, 0),
            (std::vector<std::string>{"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}));
  EXPECT_TRUE(mig_device_nodes(*minors, 0, 2, 0).empty());
  EXPECT_TRUE(mig_device_nodes(MigMinors{}, 0, 1, 0).empty());
}

TEST(MigMinors, IgnoresOtherNames) {
  const auto minors = parse_mig_minors(
      "\nfuture 7\ngpu0/gi0/vgpu0/access 8\ngpux/gi0/access 9\ngpu0/gi99999/access 10\nconfig 1");
  ASSERT_TRUE(minors) << minors.error().full_message();
  EXPECT_EQ(minors->size(), 1u);
  EXPECT_TRUE(parse_mig_minors("")->empty());
}

TEST(MigMinors, RefusesInvalidLines) {
  EXPECT_EQ(parse_mig_minors("config 1\ngpu0/gi0/access\n").error().full_message(),
            "mig-minors: line 2: a name without a minor number");
  for (const auto* bad :
       {"config x", "config -1", "config 1 2", "config 1048576", "config 99999999999999999999"}) {
    EXPECT_EQ(parse_mig_minors(bad).error().full_message(),
              "mig-minors: line 1: no minor number after the name")
        << bad;
  }
  EXPECT_EQ(parse_mig_minors("config 1\nmonitor 2\nconfig 3\n").error().full_message(),
            "mig-minors: one name has both minor 1 and 3");
}

}  // namespace

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

TEST(DeviceMajors, ParsesCharacterDevices) {
  const auto majors = parse_device_majors(
      "Character devices:\n  1 mem\n195 nvidia\n505 nvidia-uvm\n506 nvidia-caps\n\nBlock devices:\n  7 "
      "loop\n");
  EXPECT_EQ(majors.size(), 4u);
  EXPECT_EQ(majors.at("nvidia-uvm"), 505u);
  EXPECT_FALSE(majors.contains("loop"));
  EXPECT_TRUE(parse_device_majors("nonsense\n").empty());
}

TEST(PciConfig, VirtualGpuHasItsHostDriver) {
  const VgpuHost host{"460.16", "r460_00"};
  EXPECT_EQ(parse_vgpu_host(space(vendor(kHost))), host);
  EXPECT_EQ(parse_vgpu_host(space(vendor(record(7, "abc") + kHost))), host) << "behind another record";
  const std::string full = record(0, "1234567890abcdefghij");
  EXPECT_EQ(parse_vgpu_host(space(vendor(full))), (VgpuHost{"1234567890", "abcdefghij"}));
}

TEST(PciConfig, PhysicalGpusHaveNone) {
  EXPECT_FALSE(parse_vgpu_host(""));
  EXPECT_FALSE(parse_vgpu_host(space(vendor(kHost)).substr(0, 64))) << "all that an unprivileged reader gets";
  EXPECT_FALSE(parse_vgpu_host(space(vendor(kHost, "XY"))));
  EXPECT_FALSE(parse_vgpu_host(space(std::string("\x10\0\x02", 3)))) << "no vendor's capability";
  auto without_list = space(vendor(kHost));
  without_list[0x06] = 0;
  EXPECT_FALSE(parse_vgpu_host(without_list));
}

TEST(PciConfig, InvalidSpacesHaveNone) {
  EXPECT_FALSE(parse_vgpu_host(space(vendor(record(7, "abc"))))) << "no record 0";
  EXPECT_FALSE(parse_vgpu_host(space(vendor(std::string("\x07\0", 2) + kHost)))) << "a record of no length";
  EXPECT_FALSE(parse_vgpu_host(space(vendor(kHost.substr(0, 12))))) << "a record that is cut off";
  auto loop = space("");
  loop[0xd0] = 0x05;
  loop[0xd1] = 0x60;
  EXPECT_FALSE(parse_vgpu_host(loop));
  auto beyond = space("");
  beyond[0x61] = static_cast<char>(0xff);
  EXPECT_FALSE(parse_vgpu_host(beyond));
  // Its length exceeds the space.
  auto at_end = std::string(256, '\0');
  at_end[0x06] = 0x10;
  at_end[0x34] = static_cast<char>(0xf0);
  at_end.replace(0xf0, 5, "\x09\x00\xffVF", 5);
  EXPECT_FALSE(parse_vgpu_host(at_end));
}

TEST(PciConfig, Classes) {
  EXPECT_EQ(parse_pci_class("0x030200\n"), 0x030200u);
  EXPECT_EQ(parse_pci_class("0x030000"), 0x030000u);
  for (const char* text : {"", "0x", "030200", "0x03020g", "0x0302000", "0x-30200"}) {
    EXPECT_EQ(parse_pci_class(text), 0u) << text;
  }
}

TEST(CpuInfo, OnlyAProcessorThatSaysSoHasNoHypervisor) {
  EXPECT_FALSE(may_be_virtual_machine("processor\t: 0\nflags\t\t: fpu vme sse2\nbugs\t\t: hypervisor\n"));
  EXPECT_TRUE(may_be_virtual_machine("processor\t: 0\nflags\t\t: fpu vme hypervisor sse2\nbugs\t\t:\n"));
  EXPECT_TRUE(may_be_virtual_machine("processor\t: 0\nFeatures\t: fp asimd\n")) << "no x86";
  EXPECT_TRUE(may_be_virtual_machine(""));
}

}  // namespace
}  // namespace gpulet::inventory
