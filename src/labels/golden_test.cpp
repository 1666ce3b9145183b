// The labels of every simulated machine in every MIG strategy and sharing mode, as NFD would read them.
#include <gtest/gtest.h>

#include <algorithm>

#include "labels/labels.h"
#include "labels/test_nodes.h"

namespace gpulet::labels {
namespace {

using test::Cut;

struct Mode {
  const char* name;
  const char* yaml;
};
// How whole GPUs and the strategy's MIG devices are shared.
std::vector<Mode> sharing_modes() {
  return {
      {"unshared", ""},
      {"time-slicing", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n"},
      {"renamed", "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}\n"},
      {"mps", "sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n"},
  };
}

struct Strategy {
  const char* name;
  Cut cut;
};
constexpr Strategy kStrategies[] = {{"none", Cut::kNone},     {"single", Cut::kNone},  {"mixed", Cut::kNone},
                                    {"none", Cut::kAlike},    {"single", Cut::kAlike}, {"mixed", Cut::kAlike},
                                    {"single", Cut::kUnlike}, {"mixed", Cut::kUnlike}};
const char* name(Cut cut) {
  return cut == Cut::kNone ? "whole" : (cut == Cut::kAlike ? "cut alike" : "cut unlike");
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, Labels) {
  std::string text;
  for (const auto& strategy : kStrategies) {
    const auto snapshot = test::read_machine(GetParam(), strategy.cut);
    if (strategy.cut != Cut::kNone && !snapshot.gpus[0].mig_capable) continue;
    for (const auto& mode : sharing_modes()) {
      const auto labels = test::labels_with(snapshot, "flags: {mpsRoot: /run/mps, migStrategy: " +
                                                          std::string(strategy.name) + "}\n" + mode.yaml);
      text +=
          "# strategy " + std::string(strategy.name) + ", " + name(strategy.cut) + ", " + mode.name + "\n";
      text += features_text(plain_labels(labels)) + "\n";
      for (const auto& [key, label] : labels) {
        EXPECT_TRUE(is_valid_key(key)) << key;
        EXPECT_TRUE(is_valid_value(label.value)) << label.value;
        EXPECT_NE(label.rule, nullptr) << key << " has no rule";
      }
    }
  }
  test::expect_golden(GetParam() + ".txt", text);
}

std::vector<std::string> machines() {
  std::vector<std::string> names;
  for (const auto& machine : sim::built_in_machines()) names.emplace_back(machine.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Machines, Golden, testing::ValuesIn(machines()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace gpulet::labels
