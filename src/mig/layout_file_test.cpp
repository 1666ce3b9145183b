#include "mig/layout_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gpulet::mig {
namespace {

constexpr const char* kFile = R"(version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  all-1g.10gb:
    - device-filter: ["0x233010DE", "0x20b210de"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 4}
  custom:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2]
      mig-enabled: true
      mig-devices:
        "1c.2g.20gb": 2
        "2c.2g.20gb": 1
        "2g.20gb": 1
        "3g.40gb": 0
    - device-filter: 0x233010DE:0x16C110DE
      devices: [3, 4]
      mig-enabled: true
      mig-devices: {7g.80gb: 1}
    - devices: [4]
      mig-enabled: true
      mig-devices: {4g.40gb: 1}
)";

State gpu(unsigned index, std::uint32_t device, std::uint32_t subsystem = 0) {
  State state;
  state.index = index;
  state.pci_device_id = device;
  state.pci_subsystem_id = subsystem;
  return state;
}

std::string wanted(const LayoutFile& file, const std::string& config, const State& state) {
  const auto layout = layout_of(file, config, state);
  if (!layout) return "error: " + layout.error().text();
  return *layout ? describe((*layout)->layout) : "not covered";
}

TEST(LayoutFile, SaysWhatEachGpuShallHave) {
  const auto file = parse_layout_file(kFile, "f.yaml");
  ASSERT_TRUE(file) << file.error().text();
  struct Case {
    const char* config;
    State state;
    const char* layout;
  };
  const Case cases[] = {
      {"all-disabled", gpu(5, 0x233010de), "MIG disabled"},
      {"all-enabled", gpu(5, 0x233010de), "no instances"},
      {"all-1g.10gb", gpu(0, 0x233010de), "7 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu(0, 0x20b210de), "7 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu(0, 0x20b010de), "4 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu(0, 0x1eb810de), "not covered"},
      {"custom", gpu(1, 0x233010de), "MIG disabled"},
      {"custom", gpu(2, 0x233010de), "2 \u00d7 1c.2g.20gb + 2 \u00d7 2g.20gb"},
      {"custom", gpu(3, 0x233010de, 0x16c110de), "1 \u00d7 7g.80gb"},
      {"custom", gpu(3, 0x233010de, 0x16c210de), "not covered"},
      {"custom", gpu(4, 0x233010de, 0x16c110de), "1 \u00d7 4g.40gb"},
      {"custom", gpu(5, 0x233010de, 0x16c110de), "not covered"},
      {"all-1g.10g", gpu(0, 0),
       "error: no config 'all-1g.10g' in f.yaml; did you mean all-1g.10gb? There are all-1g.10gb, "
       "all-disabled, all-enabled, custom"},
      {"nothing-like-it", gpu(0, 0),
       "error: no config 'nothing-like-it' in f.yaml; there are all-disabled, all-enabled, all-1g.10gb, "
       "custom"},
  };
  for (const auto& [config, state, layout] : cases) {
    EXPECT_EQ(wanted(*file, config, state), layout) << config << " on GPU " << state.index;
  }
  const auto missing = layout_of(*file, "x", gpu(0, 0));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

// What comes after "version: v1" and one config with one entry, in lines of its own.
std::string entry(const std::string& lines) {
  return "version: v1\nmig-configs:\n  c:\n    - " + lines + "\n";
}

TEST(LayoutFile, SaysWhatIsWrongAndWhere) {
  const std::string all = "devices: all\n      ";
  const std::string on = all + "mig-enabled: true\n      ";
  const std::pair<std::string, const char*> cases[] = {
      {"", "f:1:1: expected a mapping with version and mig-configs, found nothing"},
      {"- 1", "f:1:1: expected a mapping with version and mig-configs, found a list"},
      {"mig-configs: {}", "f:1:1: version is missing; version: v1 would do"},
      {"version: v2", "f:1:10: version: expected v1, found 'v2'"},
      {"version: 1", "f:1:10: version: expected v1, found '1'"},
      {"version: v1\nmig-config: {}", "f:2:1: unknown field 'mig-config'; did you mean mig-configs?"},
      {"version: v1\nsharing: {}", "f:2:1: unknown field 'sharing'; known here: version, mig-configs"},
      {"version: v1\nmig-configs: {}", "f:2:14: mig-configs: is empty; at least one config would do"},
      {"version: v1\nmig-configs: []",
       "f:2:14: mig-configs: expected a mapping of named configs, found a list"},
      {"version: v1\nmig-configs:\n  c: []", "f:3:6: mig-configs.c: is empty; at least one entry would do"},
      {"version: v1\nmig-configs:\n  c: {}",
       "f:3:6: mig-configs.c: expected a list of entries, found a mapping"},
      {"version: v1\nversion: v1", "f:2:1: version: is given twice, first at f:1:1"},
      {"version: v1\n---\nversion: v1", "f:2:1: a second document; one would do"},
      {entry("all"), "f:4:7: mig-configs.c[0]: expected a mapping with devices and mig-enabled, found 'all'"},
      {entry("mig-enabled: false"),
       "f:4:7: mig-configs.c[0]: devices is missing; all or a list of indices would do"},
      {entry("devices: all"), "f:4:7: mig-configs.c[0]: mig-enabled is missing; true or false would do"},
      {entry(all + "mig-enabled: maybe"),
       "f:5:20: mig-configs.c[0].mig-enabled: expected true or false, found 'maybe'"},
      {entry(all + "mig-enabled: \"true\""),
       "f:5:20: mig-configs.c[0].mig-enabled: expected true or false, found the quoted text 'true'"},
      {entry(all + "mig-enabled: false\n      mig-device: {}"),
       "f:6:7: mig-configs.c[0]: unknown field 'mig-device'; did you mean mig-devices?"},
      {entry(on),
       "f:4:7: mig-configs.c[0]: mig-devices is missing, as mig-enabled is true; {} would do for no "
       "instances"},
      {entry(on + "mig-devices:"),
       "f:4:7: mig-configs.c[0]: mig-devices is missing, as mig-enabled is true; {} would do for no "
       "instances"},
      {entry(on + "mig-devices: [1g.10gb]"),
       "f:6:20: mig-configs.c[0].mig-devices: expected a mapping of profiles and counts, found a list"},
      {entry(on + "mig-devices: {1g.10gb: 0, 2g.20gb: 0}"),
       "f:6:20: mig-configs.c[0].mig-devices: every count is 0; {} would do for no instances"},
      {entry(on + "mig-devices: {1g.10gb: -1}"),
       "f:6:30: mig-configs.c[0].mig-devices.1g.10gb: expected a whole number from 0 to 1000000, found '-1'"},
      {entry(on + "mig-devices: {1g: 1}"),
       "f:6:21: mig-configs.c[0].mig-devices: profile '1g': has 1 parts between dots; two or three would do, "
       "as 1g.10gb or 1c.2g.20gb"},
      {entry(all + "mig-enabled: false\n      mig-devices: {1g.10gb: 1}"),
       "f:6:20: mig-configs.c[0].mig-devices: has devices while mig-enabled is false"},
      {entry("devices: some\n      mig-enabled: false"),
       "f:4:16: mig-configs.c[0].devices: expected all or a list of indices, found 'some'"},
      {entry("devices: 0\n      mig-enabled: false"),
       "f:4:16: mig-configs.c[0].devices: expected all or a list of indices, found '0'"},
      {entry("devices: [0, -1]\n      mig-enabled: false"),
       "f:4:20: mig-configs.c[0].devices: expected a whole number from 0 to 1000000, found '-1'"},
      {entry("devices: [\"0\"]\n      mig-enabled: false"),
       "f:4:17: mig-configs.c[0].devices: expected a whole number from 0 to 1000000, found the quoted text "
       "'0'"},
      {entry(all + "mig-enabled: false\n      device-filter: 233010DE"),
       "f:6:22: mig-configs.c[0].device-filter: expected PCI ids as 0x233010DE or 0x233010DE:0x16C110DE, "
       "found "
       "'233010DE'"},
      {entry(all + "mig-enabled: false\n      device-filter: [0x233010DE, 0x1233010DE]"),
       "f:6:35: mig-configs.c[0].device-filter: expected PCI ids as 0x233010DE or 0x233010DE:0x16C110DE, "
       "found "
       "'0x1233010DE'"},
      {entry(all + "mig-enabled: false\n      device-filter: 0x1:0x2:0x3"),
       "f:6:22: mig-configs.c[0].device-filter: expected PCI ids as 0x233010DE or 0x233010DE:0x16C110DE, "
       "found "
       "'0x1:0x2:0x3'"},
      {entry(all + "mig-enabled: false\n      device-filter: []"),
       "f:6:22: mig-configs.c[0].device-filter: an empty list is about no GPU: leave it out for all"},
  };
  for (const auto& [text, message] : cases) {
    const auto file = parse_layout_file(text, "f");
    ASSERT_FALSE(file) << text;
    EXPECT_EQ(file.error().text(), message) << text;
    EXPECT_EQ(file.error().code(), Code::kInvalidArgument);
  }
}

TEST(LayoutFile, MayHaveNoConfig) {
  const auto file = parse_layout_file("version: v1", "f");
  ASSERT_TRUE(file) << file.error().text();
  EXPECT_EQ(wanted(*file, "all-disabled", gpu(0, 0)), "error: no config 'all-disabled' in f, which has none");
}

TEST(LayoutFile, IsLoaded) {
  std::string folder = testing::TempDir() + "gpulet-layout-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/config.yaml";
  std::ofstream(path) << kFile;
  const auto file = load_layout_file(path);
  ASSERT_TRUE(file) << file.error().text();
  EXPECT_EQ(file->path, path);
  EXPECT_EQ(file->configs.size(), 4u);
  const auto none = load_layout_file(folder + "/none.yaml");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpulet::mig
