#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/file.h"
#include "mig/layout.h"
#include "mig/layout_file.h"
#include "mig/plan.h"
#include "mig/test_states.h"

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
        1c.2g.20gb: 2
        2c.2g.20gb: 1
        2g.20gb: 1
        3g.40gb: 0
    - device-filter: 0x233010DE:0x16C110DE
      devices: [3, 4]
      mig-enabled: true
      mig-devices: {7g.80gb: 1}
    - devices: [4]
      mig-enabled: true
      mig-devices: {4g.40gb: 1}
)";

State gpu_state(unsigned index, std::uint32_t device, std::uint32_t subsystem = 0) {
  State state;
  state.index = index;
  state.pci_device_id = device;
  state.pci_subsystem_id = subsystem;
  return state;
}

std::string wanted_layout(const LayoutFile& file, const std::string& config, const State& state) {
  const auto layout = layout_of(file, config, state);
  if (!layout) return "error: " + layout.error().full_message();
  return *layout ? layout_text((*layout)->layout) : "not covered";
}

TEST(LayoutFile, FindsTheLayoutOfEachGpu) {
  const auto file = parse_layout_file(kFile, "f.yaml");
  ASSERT_TRUE(file) << file.error().full_message();
  struct Case {
    const char* config;
    State state;
    const char* layout;
  };
  const Case cases[] = {
      {"all-disabled", gpu_state(5, 0x233010de), "MIG disabled"},
      {"all-enabled", gpu_state(5, 0x233010de), "no instances"},
      {"all-1g.10gb", gpu_state(0, 0x233010de), "7 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu_state(0, 0x20b210de), "7 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu_state(0, 0x20b010de), "4 \u00d7 1g.10gb"},
      {"all-1g.10gb", gpu_state(0, 0x1eb810de), "not covered"},
      {"custom", gpu_state(1, 0x233010de), "MIG disabled"},
      {"custom", gpu_state(2, 0x233010de), "2 \u00d7 1c.2g.20gb + 2 \u00d7 2g.20gb"},
      {"custom", gpu_state(3, 0x233010de, 0x16c110de), "1 \u00d7 7g.80gb"},
      {"custom", gpu_state(3, 0x233010de, 0x16c210de), "not covered"},
      {"custom", gpu_state(4, 0x233010de, 0x16c110de), "1 \u00d7 4g.40gb"},
      {"custom", gpu_state(5, 0x233010de, 0x16c110de), "not covered"},
      {"all-1g.10g", gpu_state(0, 0),
       "error: no config 'all-1g.10g' in f.yaml; did you mean all-1g.10gb? Available: all-1g.10gb, "
       "all-disabled, all-enabled, custom"},
      {"nothing-like-it", gpu_state(0, 0),
       "error: no config 'nothing-like-it' in f.yaml; available: all-disabled, all-enabled, all-1g.10gb, "
       "custom"},
  };
  for (const auto& [config, state, layout] : cases) {
    EXPECT_EQ(wanted_layout(*file, config, state), layout) << config << " on GPU " << state.index;
  }
  const auto missing = layout_of(*file, "x", gpu_state(0, 0));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

// The text after "version: v1", with one config and one entry.
std::string entry(const std::string& lines) {
  return "version: v1\nmig-configs:\n  c:\n    - " + lines + "\n";
}

TEST(LayoutFile, ReportsErrorsWithPosition) {
  const std::string all = "devices: all\n      ";
  const std::string on = all + "mig-enabled: true\n      ";
  const std::pair<std::string, const char*> cases[] = {
      {"", "f:1:1: expected a mapping with version and mig-configs, found nothing"},
      {"- 1", "f:1:1: expected a mapping with version and mig-configs, found a list"},
      {"mig-configs: {}", "f:1:1: version is missing; expected version: v1"},
      {"version: v2", "f:1:10: version: expected v1, found 'v2'"},
      {"version: 1", "f:1:10: version: expected v1, found '1'"},
      {"version: v1\nmig-config: {}", "f:2:1: unknown field 'mig-config'; did you mean mig-configs?"},
      {"version: v1\nsharing: {}", "f:2:1: unknown field 'sharing'; known here: version, mig-configs"},
      {"version: v1\nmig-configs: {}", "f:2:14: mig-configs: is empty; expected at least one config"},
      {"version: v1\nmig-configs: []",
       "f:2:14: mig-configs: expected a mapping of named configs, found a list"},
      {"version: v1\nmig-configs:\n  c: []", "f:3:6: mig-configs.c: is empty; expected at least one entry"},
      {"version: v1\nmig-configs:\n  c: {}",
       "f:3:6: mig-configs.c: expected a list of entries, found a mapping"},
      {"version: v1\nversion: v1", "f:2:1: version: is given twice, first at f:1:1"},
      {"version: v1\n---\nversion: v1", "f:2:1: a second document; expected one"},
      {entry("all"), "f:4:7: mig-configs.c[0]: expected a mapping with devices and mig-enabled, found 'all'"},
      {entry("mig-enabled: false"),
       "f:4:7: mig-configs.c[0]: devices is missing; expected all or a list of indices"},
      {entry("devices: all"), "f:4:7: mig-configs.c[0]: mig-enabled is missing; expected true or false"},
      {entry(all + "mig-enabled: maybe"),
       "f:5:20: mig-configs.c[0].mig-enabled: expected true or false, found 'maybe'"},
      {entry(all + "mig-enabled: \"true\""),
       "f:5:20: mig-configs.c[0].mig-enabled: expected true or false, found the quoted string 'true'"},
      {entry(all + "mig-enabled: false\n      mig-device: {}"),
       "f:6:7: mig-configs.c[0]: unknown field 'mig-device'; did you mean mig-devices?"},
      {entry(on),
       "f:4:7: mig-configs.c[0]: mig-devices is missing although mig-enabled is true; use {} for no "
       "instances"},
      {entry(on + "mig-devices:"),
       "f:4:7: mig-configs.c[0]: mig-devices is missing although mig-enabled is true; use {} for no "
       "instances"},
      {entry(on + "mig-devices: [1g.10gb]"),
       "f:6:20: mig-configs.c[0].mig-devices: expected a mapping of profiles and counts, found a list"},
      {entry(on + "mig-devices: {1g.10gb: 0, 2g.20gb: 0}"),
       "f:6:20: mig-configs.c[0].mig-devices: every count is 0; use {} for no instances"},
      {entry(on + "mig-devices: {1g.10gb: -1}"),
       "f:6:30: mig-configs.c[0].mig-devices.1g.10gb: expected a whole number from 0 to 1000000, found '-1'"},
      {entry(on + "mig-devices: {1g: 1}"),
       "f:6:21: mig-configs.c[0].mig-devices: profile '1g': has 1 parts between dots; expected two or three, "
       "as in 1g.10gb or 1c.2g.20gb"},
      {entry(all + "mig-enabled: false\n      mig-devices: {1g.10gb: 1}"),
       "f:6:20: mig-configs.c[0].mig-devices: has devices while mig-enabled is false"},
      {entry("devices: some\n      mig-enabled: false"),
       "f:4:16: mig-configs.c[0].devices: expected all or a list of indices, found 'some'"},
      {entry("devices: 0\n      mig-enabled: false"),
       "f:4:16: mig-configs.c[0].devices: expected all or a list of indices, found '0'"},
      {entry("devices: [0, -1]\n      mig-enabled: false"),
       "f:4:20: mig-configs.c[0].devices: expected a whole number from 0 to 1000000, found '-1'"},
      {entry("devices: [\"0\"]\n      mig-enabled: false"),
       "f:4:17: mig-configs.c[0].devices: expected a whole number from 0 to 1000000, found the quoted string "
       "'0'"},
      {entry(all + "mig-enabled: false\n      device-filter: 233010DE"),
       "f:6:22: mig-configs.c[0].device-filter: expected PCI ids such as 0x233010DE or "
       "0x233010DE:0x16C110DE, "
       "found "
       "'233010DE'"},
      {entry(all + "mig-enabled: false\n      device-filter: [0x233010DE, 0x1233010DE]"),
       "f:6:35: mig-configs.c[0].device-filter: expected PCI ids such as 0x233010DE or "
       "0x233010DE:0x16C110DE, "
       "found "
       "'0x1233010DE'"},
      {entry(all + "mig-enabled: false\n      device-filter: 0x1:0x2:0x3"),
       "f:6:22: mig-configs.c[0].device-filter: expected PCI ids such as 0x233010DE or "
       "0x233010DE:0x16C110DE, "
       "found "
       "'0x1:0x2:0x3'"},
      {entry(all + "mig-enabled: false\n      device-filter: []"),
       "f:6:22: mig-configs.c[0].device-filter: an empty list matches no GPU; leave it out to match all"},
  };
  for (const auto& [text, message] : cases) {
    const auto file = parse_layout_file(text, "f");
    ASSERT_FALSE(file) << text;
    EXPECT_EQ(file.error().full_message(), message) << text;
    EXPECT_EQ(file.error().code(), Code::kInvalidArgument);
  }
}

TEST(LayoutFile, LacksTheNamedConfig) {
  const auto file = parse_layout_file("version: v1", "f");
  ASSERT_TRUE(file) << file.error().full_message();
  EXPECT_EQ(wanted_layout(*file, "all-disabled", gpu_state(0, 0)),
            "error: no config 'all-disabled' in f, which has none");
  EXPECT_EQ(to_yaml(*file), "version: v1\n") << "it can be read again";
}

TEST(LayoutFile, IsLoaded) {
  std::string directory = testing::TempDir() + "gpulet-layout-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/config.yaml";
  std::ofstream(path) << kFile;
  const auto file = load_layout_file(path);
  ASSERT_TRUE(file) << file.error().full_message();
  EXPECT_EQ(file->path, path);
  EXPECT_EQ(file->configs.size(), 4u);
  const auto none = load_layout_file(directory + "/none.yaml");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
  std::filesystem::remove_all(directory);
}

}  // namespace

namespace {

State state_on(const std::string& machine, unsigned index) {
  return states::state_of(states::test_machine(machine)->gpus[0], index);
}

TEST(Named, UsesTheHardwareWithoutAFile) {
  const std::vector<State> node = {state_on("hgx-h100", 0), state_on("t4", 1)};
  const auto layouts = named_layouts(std::string(), "all-3g.40gb", node);
  ASSERT_TRUE(layouts) << layouts.error().full_message();
  ASSERT_TRUE(layouts->at(0));
  EXPECT_EQ(layout_text(layouts->at(0)->layout), "2 \u00d7 3g.40gb");
  EXPECT_EQ(layouts->at(0)->location, "");
  EXPECT_FALSE(layouts->at(1));
  EXPECT_EQ(named_layouts(std::string(), "all-9g.40gb", node).error().code(), Code::kNotFound);
}

TEST(Named, UsesTheFileAndItsPosition) {
  const std::string path = (std::filesystem::temp_directory_path() / "gpulet-named-").string() +
                           std::to_string(::getpid()) + ".yaml";
  ASSERT_TRUE(write_file_atomic(path, R"(version: v1
mig-configs:
  mine:
    - devices: all
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices: {"3g.40gb": 1}
  other:
    - {devices: [7], mig-enabled: false}
)"));
  const std::vector<State> node = {state_on("hgx-h100", 0), state_on("hgx-h100", 1)};
  const auto mine = named_layouts(path, "mine", node);
  const auto other = named_layouts(path, "other", node);
  const auto none = named_layouts(path, "mein", node);
  std::filesystem::remove(path);
  ASSERT_TRUE(mine) << mine.error().full_message();
  EXPECT_EQ(mine->at(0), (LocatedLayout{{}, path + ":4:7"}));
  EXPECT_EQ(mine->at(1), (LocatedLayout{{true, {{"3g.40gb", 1}}}, path + ":6:7"}));
  ASSERT_TRUE(other);
  EXPECT_EQ(*other, (std::vector<std::optional<LocatedLayout>>(2)));
  EXPECT_EQ(none.error().full_message(), "no config 'mein' in " + path + "; available: mine, other");
  EXPECT_EQ(named_layouts(path, "mine", node).error().code(), Code::kNotFound) << "the file is removed";
}

}  // namespace

namespace {

struct Node {
  void add_machine(const std::string& machine, bool enabled = true) {
    machines.push_back(states::test_machine(machine));
    states::set_mig_mode(gpu_of(machines.size() - 1),
                         enabled && gpu_of(machines.size() - 1).mig.capable != 0);
  }
  sim::Gpu& gpu_of(std::size_t index) { return machines[index]->gpus[0]; }
  std::vector<State> read_states() {
    std::vector<State> states;
    for (std::size_t i = 0; i < machines.size(); ++i) {
      states.push_back(states::state_of(gpu_of(i), static_cast<unsigned>(i)));
    }
    return states;
  }
  std::vector<std::unique_ptr<sim::Machine>> machines;
};

std::string yaml_of(Node& node, bool whole = true) {
  const auto file = export_layouts("current", node.read_states(), whole);
  return file ? to_yaml(*file) : "error: " + file.error().full_message();
}

// The file describes what each GPU has.
void expect_round_trip(Node& node, const std::string& what) {
  const auto states = node.read_states();
  for (const bool whole : {true, false}) {
    const auto made = export_layouts("current", states, whole);
    ASSERT_TRUE(made) << what << made.error().full_message();
    const auto file = parse_layout_file(to_yaml(*made), "f");
    ASSERT_TRUE(file) << what << file.error().full_message() << "\n" << to_yaml(*made);
    for (const auto& state : states) {
      const auto layout = layout_of(*file, "current", state);
      ASSERT_TRUE(layout && *layout) << what << to_yaml(*file);
      EXPECT_EQ((*layout)->layout, current_layout(state)) << what << to_yaml(*file);
      EXPECT_TRUE(make_plan(state, (*layout)->layout)->is_noop()) << what << to_yaml(*file);
    }
  }
}

TEST(Export, WritesOneEntryForEqualLayouts) {
  Node node;
  for (int i = 0; i < 2; ++i) {
    node.add_machine("hgx-h100");
    for (const unsigned start : {0u, 1u})
      ASSERT_NE(states::add_instance(node.gpu_of(i), "1g.10gb", start), nullptr);
    ASSERT_NE(states::add_instance(node.gpu_of(i), "1g.10gb+me", 2), nullptr);
  }
  const std::string layout = "      mig-devices:\n        1g.10gb: 2\n        1g.10gb+me: 1\n";
  EXPECT_EQ(yaml_of(node),
            "version: v1\nmig-configs:\n  current:\n"
            "    - devices: all\n      mig-enabled: true\n" +
                layout);
  EXPECT_EQ(yaml_of(node, false),
            "version: v1\nmig-configs:\n  current:\n"
            "    - devices: [0, 1]\n      mig-enabled: true\n" +
                layout);
}

TEST(Export, NamesModelsIfThereAreSeveral) {
  Node node;
  node.add_machine("hgx-h100");
  node.add_machine("t4");
  node.add_machine("hgx-h100");
  node.add_machine("a30");
  ASSERT_NE(states::add_instance(node.gpu_of(3), "2g.12gb", 2, {1, 1}), nullptr);
  EXPECT_EQ(yaml_of(node), R"(version: v1
mig-configs:
  current:
    - device-filter: ["0x233010DE"]
      devices: all
      mig-enabled: true
      mig-devices: {}
    - device-filter: ["0x1EB810DE"]
      devices: all
      mig-enabled: false
      mig-devices: {}
    - device-filter: ["0x20B710DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        1c.2g.12gb: 2
)");
  ASSERT_NE(states::add_instance(node.gpu_of(2), "7g.80gb", 0), nullptr);
  EXPECT_NE(yaml_of(node).find("    - devices: [0]\n"), std::string::npos) << yaml_of(node);
  EXPECT_NE(yaml_of(node).find("    - devices: [2]\n"), std::string::npos) << yaml_of(node);
  expect_round_trip(node, "");
}

TEST(Export, EveryLayoutOfEveryMachineReadsBack) {
  for (const auto& name : states::machines_with_mig()) {
    Node node;
    node.add_machine(name);
    for (const auto& layout : derive_layouts(node.read_states()[0])) {
      node.machines[0] = states::test_machine(name);
      states::set_mig_mode(node.gpu_of(0), layout.layout.enabled);
      const auto steps = make_plan(node.read_states()[0], layout.layout);
      ASSERT_TRUE(steps) << steps.error().full_message();
      ASSERT_EQ(states::carry_out(node.gpu_of(0), *steps), "");
      expect_round_trip(node, name + " " + layout.name + ": ");
    }
  }
}

TEST(Export, AnyNameReadsBack) {
  Node node;
  node.add_machine("t4");
  for (const char* name :
       {"current", "true", "null", "1", "a: b", "\"quoted\\", "tab\tand\nline", "+me", ""}) {
    const auto file = export_layouts(name, node.read_states(), true);
    ASSERT_TRUE(file);
    const auto again = parse_layout_file(to_yaml(*file), "f");
    ASSERT_TRUE(again) << again.error().full_message();
    EXPECT_EQ(again->configs.at(0).name, name);
  }
}

TEST(Export, RefusesADeviceWithoutAProfileName) {
  Node node;
  node.add_machine("hgx-h100");
  auto states = node.read_states();
  states[0].instances = {{3, 9999, {0, 1}, {{0, 7, {0, 1}, {}}}, {}}};
  const auto file = export_layouts("current", states, true);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::mig
