#include "mig/export.h"

#include <gtest/gtest.h>

#include "mig/derive.h"
#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

struct Node {
  void add(const std::string& machine, bool enabled = true) {
    machines.push_back(states::machine(machine));
    states::enable(gpu(machines.size() - 1), enabled && gpu(machines.size() - 1).mig.capable != 0);
  }
  sim::Gpu& gpu(std::size_t index) { return machines[index]->gpus[0]; }
  std::vector<State> read() {
    std::vector<State> states;
    for (std::size_t i = 0; i < machines.size(); ++i) {
      states.push_back(states::state_of(gpu(i), static_cast<unsigned>(i)));
    }
    return states;
  }
  std::vector<std::unique_ptr<sim::Machine>> machines;
};

std::string yaml_of(Node& node, bool whole = true) {
  const auto file = export_layouts("current", node.read(), whole);
  return file ? to_yaml(*file) : "error: " + file.error().text();
}

// What the file says of each GPU is what the GPU has.
void expect_round_trip(Node& node, const std::string& what) {
  const auto states = node.read();
  for (const bool whole : {true, false}) {
    const auto made = export_layouts("current", states, whole);
    ASSERT_TRUE(made) << what << made.error().text();
    const auto file = parse_layout_file(to_yaml(*made), "f");
    ASSERT_TRUE(file) << what << file.error().text() << "\n" << to_yaml(*made);
    for (const auto& state : states) {
      const auto layout = layout_of(*file, "current", state);
      ASSERT_TRUE(layout && *layout) << what << to_yaml(*file);
      EXPECT_EQ((*layout)->layout, layout_now(state)) << what << to_yaml(*file);
      EXPECT_TRUE(plan(state, (*layout)->layout)->nothing_to_do()) << what << to_yaml(*file);
    }
  }
}

TEST(Export, OneEntryForAllThatAreAlike) {
  Node node;
  for (int i = 0; i < 2; ++i) {
    node.add("hgx-h100");
    for (const unsigned start : {0u, 1u}) ASSERT_NE(states::add(node.gpu(i), "1g.10gb", start), nullptr);
    ASSERT_NE(states::add(node.gpu(i), "1g.10gb+me", 2), nullptr);
  }
  const std::string layout = "      mig-devices:\n        \"1g.10gb\": 2\n        \"1g.10gb+me\": 1\n";
  EXPECT_EQ(yaml_of(node),
            "version: v1\nmig-configs:\n  current:\n"
            "    - devices: all\n      mig-enabled: true\n" +
                layout);
  EXPECT_EQ(yaml_of(node, false),
            "version: v1\nmig-configs:\n  current:\n"
            "    - devices: [0, 1]\n      mig-enabled: true\n" +
                layout);
}

TEST(Export, KindsAreNamedWhereThereAreSeveral) {
  Node node;
  node.add("hgx-h100");
  node.add("t4");
  node.add("hgx-h100");
  node.add("a30");
  ASSERT_NE(states::add(node.gpu(3), "2g.12gb", 2, {1, 1}), nullptr);
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
        "1c.2g.12gb": 2
)");
  ASSERT_NE(states::add(node.gpu(2), "7g.80gb", 0), nullptr);
  EXPECT_NE(yaml_of(node).find("    - devices: [0]\n"), std::string::npos) << yaml_of(node);
  EXPECT_NE(yaml_of(node).find("    - devices: [2]\n"), std::string::npos) << yaml_of(node);
  expect_round_trip(node, "");
}

TEST(Export, EveryLayoutOfEveryMachineReadsBack) {
  for (const auto& name : states::machines_with_mig()) {
    Node node;
    node.add(name);
    for (const auto& layout : derive(node.read()[0])) {
      node.machines[0] = states::machine(name);
      states::enable(node.gpu(0), layout.layout.enabled);
      const auto steps = plan(node.read()[0], layout.layout);
      ASSERT_TRUE(steps) << steps.error().text();
      ASSERT_EQ(states::carry_out(node.gpu(0), *steps), "");
      expect_round_trip(node, name + " " + layout.name + ": ");
    }
  }
}

TEST(Export, AnyNameReadsBack) {
  Node node;
  node.add("t4");
  for (const char* name :
       {"current", "true", "null", "1", "a: b", "\"quoted\\", "tab\tand\nline", "+me", ""}) {
    const auto file = export_layouts(name, node.read(), true);
    ASSERT_TRUE(file);
    const auto again = parse_layout_file(to_yaml(*file), "f");
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_EQ(again->configs.at(0).name, name);
  }
}

TEST(Export, WhatNoFileCanNameIsAnError) {
  Node node;
  node.add("hgx-h100");
  auto states = node.read();
  states[0].instances = {{3, 9999, {0, 1}, {{0, 7, {0, 1}, {}}}, {}}};
  const auto file = export_layouts("current", states, true);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::mig
