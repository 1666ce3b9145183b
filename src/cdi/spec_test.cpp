#include "cdi/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;

Spec small() {
  Spec spec{"", "vendor.com/class"};
  spec.devices = {{"one", {}, {.env = {"A=1"}}}};
  return spec;
}

// Every field, with texts that need escaping in either form.
Spec everything() {
  Spec spec{"1.1.0", "vendor.com/cl.ass", {{"example.com/note", "a: b # c"}}};
  ContainerEdits edits;
  edits.env = {"A=1", "B=<x>&\"y\"\\ \t\n", "C=: # ", "D=\xc3\xa4"};
  edits.device_nodes = {{"/dev/a", "/host/dev/a", "c", 195, 3, 0660, "rw", 0, 44}};
  edits.net_devices = {{"eth1", "net0"}};
  edits.hooks = {
      {"createContainer", "/usr/bin/hook", {"hook", "12.4", "true", "0x10", "- a", ""}, {"E=1"}, 5}};
  edits.mounts = {{"/host/a", "/a", {"ro", "rbind"}, "bind"}};
  edits.intel_rdt = IntelRdt{"clos", "L3:0=f", "MB:0=10", true, true, {"L3:0=f"}, true};
  edits.additional_gids = {44, 105};
  spec.devices = {{"0", {{"note", "1"}}, edits}, {"0:1", {}, {.env = {"X="}}}, {"on", {}, edits}};
  spec.edits = edits;
  return spec;
}

struct VersionCase {
  const char* what;
  const char* version;
  void (*change)(Spec&);
};

class MinimumVersion : public testing::TestWithParam<VersionCase> {};

TEST_P(MinimumVersion, IsTheLowestSufficient) {
  Spec spec = small();
  GetParam().change(spec);
  EXPECT_EQ(minimum_version(spec), GetParam().version);
}

INSTANTIATE_TEST_SUITE_P(
    Table, MinimumVersion,
    testing::Values(
        VersionCase{"nothing", "0.3.0", [](Spec&) {}},
        VersionCase{"mount", "0.3.0", [](Spec& s) { s.edits.mounts = {{"/a", "/b"}}; }},
        VersionCase{"mount_type", "0.4.0", [](Spec& s) { s.edits.mounts = {{"/a", "/b", {}, "bind"}}; }},
        VersionCase{"device_mount_type", "0.4.0",
                    [](Spec& s) { s.devices[0].edits.mounts = {{"/a", "/b", {}, "bind"}}; }},
        VersionCase{"node", "0.3.0", [](Spec& s) { s.edits.device_nodes = {{"/dev/a"}}; }},
        VersionCase{"host_path", "0.5.0", [](Spec& s) { s.edits.device_nodes = {{"/dev/a", "/x/a"}}; }},
        VersionCase{"device_host_path", "0.5.0",
                    [](Spec& s) { s.devices[0].edits.device_nodes = {{"/dev/a", "/x/a"}}; }},
        VersionCase{"digit_first", "0.5.0", [](Spec& s) { s.devices[0].name = "0"; }},
        VersionCase{"annotation", "0.6.0", [](Spec& s) { s.annotations = {{"a", "b"}}; }},
        VersionCase{"device_annotation", "0.6.0", [](Spec& s) { s.devices[0].annotations = {{"a", "b"}}; }},
        VersionCase{"dot_in_class", "0.6.0", [](Spec& s) { s.kind = "vendor.com/gpu.coherent"; }},
        VersionCase{"groups", "0.7.0", [](Spec& s) { s.edits.additional_gids = {44}; }},
        VersionCase{"device_groups", "0.7.0", [](Spec& s) { s.devices[0].edits.additional_gids = {44}; }},
        VersionCase{"rdt", "0.7.0", [](Spec& s) { s.edits.intel_rdt = IntelRdt{"a"}; }},
        VersionCase{"schemata", "1.1.0",
                    [](Spec& s) { s.devices[0].edits.intel_rdt = IntelRdt{.schemata = {"L3"}}; }},
        VersionCase{"monitoring", "1.1.0",
                    [](Spec& s) { s.edits.intel_rdt = IntelRdt{.enable_monitoring = true}; }},
        VersionCase{"net_device", "1.1.0", [](Spec& s) { s.edits.net_devices = {{"eth0", "net0"}}; }}),
    [](const auto& test) { return std::string(test.param.what); });

TEST(Spec, OrderIsByDepthThenPath) {
  Spec spec = small();
  spec.devices.push_back({"all", {}, {.env = {"A=2"}}});
  spec.devices.push_back({"10", {}, {.env = {"A=3"}}});
  spec.edits.device_nodes = {{"/dev/dri/card0"}, {"/dev/nvidia1"}, {"/dev/nvidia-uvm"}, {"/dev/nvidia1"}};
  spec.edits.mounts = {{"/h/1", "/usr/lib/x/y.so"}, {"/h/2", "/usr/z"}, {"/h/3", "/usr/bin/a"}};
  spec.edits.env = {"Z=1", "A=9", "Z=1"};
  spec.edits.additional_gids = {105, 44, 105};
  canonicalize_spec(spec);
  std::vector<std::string> names, nodes, mounts;
  for (const auto& device : spec.devices) names.push_back(device.name);
  for (const auto& node : spec.edits.device_nodes) nodes.push_back(node.path);
  for (const auto& mount : spec.edits.mounts) mounts.push_back(mount.container_path);
  EXPECT_THAT(names, ElementsAre("10", "all", "one"));
  EXPECT_THAT(nodes, ElementsAre("/dev/nvidia-uvm", "/dev/nvidia1", "/dev/dri/card0"));
  EXPECT_THAT(mounts, ElementsAre("/usr/z", "/usr/bin/a", "/usr/lib/x/y.so"));
  EXPECT_THAT(spec.edits.env, ElementsAre("Z=1", "A=9"));
  EXPECT_THAT(spec.edits.additional_gids, ElementsAre(44, 105));
  EXPECT_EQ(spec.version, "0.7.0");
}

TEST(Spec, MovesSharedEditsButLeavesNoDeviceEmpty) {
  Spec spec = small();
  spec.edits.env = {"A=1", "B=2"};
  spec.devices.push_back({"two", {}, {.env = {"B=2", "C=3"}}});
  canonicalize_spec(spec);
  EXPECT_THAT(spec.devices[0].edits.env, ElementsAre("A=1"));  // its only edit
  EXPECT_THAT(spec.devices[1].edits.env, ElementsAre("C=3"));
}

TEST(Spec, EveryFieldIsInBothForms) {
  const Spec spec = everything();
  for (const auto& text : {to_json(spec), to_yaml(spec)}) {
    const auto read = read_spec(text, "spec");
    for (const auto& problem : read.problems) ADD_FAILURE() << problem.problem_text() << "\n" << text;
    ASSERT_TRUE(read.spec);
    EXPECT_EQ(*read.spec, spec) << text;
    for (const char* field : {"cdiVersion",
                              "kind",
                              "annotations",
                              "devices",
                              "name",
                              "containerEdits",
                              "env",
                              "deviceNodes",
                              "path",
                              "hostPath",
                              "type",
                              "major",
                              "minor",
                              "fileMode",
                              "permissions",
                              "uid",
                              "gid",
                              "netDevices",
                              "hostInterfaceName",
                              "hooks",
                              "hookName",
                              "args",
                              "timeout",
                              "mounts",
                              "containerPath",
                              "options",
                              "intelRdt",
                              "closID",
                              "l3CacheSchema",
                              "memBwSchema",
                              "schemata",
                              "enableMonitoring",
                              "enableCMT",
                              "enableMBM",
                              "additionalGids"}) {
      EXPECT_NE(text.find(field), std::string::npos) << field;
    }
  }
}

TEST(Spec, WritesTheFormsOfGosEncoders) {
  Spec spec = small();
  spec.kind = "nvidia.com/gpu";
  spec.devices = {{"0", {}, {.device_nodes = {{.path = "/dev/nvidia0", .major = 195, .file_mode = 0666}}}}};
  spec.devices.push_back(
      {"GPU-1", {}, {.hooks = {{"createContainer", "/h", {"h", "--link", "a::b<"}, {"E=1"}}}}});
  canonicalize_spec(spec);
  EXPECT_EQ(to_yaml(spec), R"(---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              major: 195
              fileMode: 438
    - name: GPU-1
      containerEdits:
        hooks:
            - hookName: createContainer
              path: /h
              args:
                - h
                - --link
                - a::b<
              env:
                - E=1
)");
  EXPECT_EQ(to_json(spec),
            R"({"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":)"
            R"({"deviceNodes":[{"path":"/dev/nvidia0","major":195,"fileMode":438}]}},{"name":"GPU-1",)"
            R"("containerEdits":{"hooks":[{"hookName":"createContainer","path":"/h","args":["h","--link",)"
            R"("a::b\u003c"],"env":["E=1"]}]}}],"containerEdits":{}})"
            "\n");
}

RC_GTEST_PROP(SpecProperties, RoundTripsAnyText, ()) {
  Spec spec{"0.3.0", "vendor.com/class"};
  ContainerEdits edits;
  for (int i = 0; i < 4; ++i) {
    std::string text;
    for (const auto c : *rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127))) text += c;
    edits.hooks.push_back({"poststop", "/hook", {text, " " + text, text + " ", "-" + text}, {"E=" + text}});
  }
  spec.devices = {{"one", {}, edits}};
  for (const auto& text : {to_json(spec), to_yaml(spec)}) {
    const auto read = read_spec(text, "spec");
    RC_ASSERT(read.problems.empty());
    RC_ASSERT(*read.spec == spec);
  }
}

RC_GTEST_PROP(SpecProperties, IgnoresTheOrderOfTheInput, ()) {
  Spec spec = small();
  for (unsigned i = 0; i < 6; ++i) {
    const auto part = [] { return "/" + std::to_string(*rc::gen::inRange(0, 4)); };
    spec.edits.device_nodes.push_back({"/dev" + part() + part(), "/h" + part()});
    spec.edits.mounts.push_back({part(), part() + part()});
    spec.devices.push_back({"d" + std::to_string(i), {}, {.device_nodes = {{part()}}}});
  }
  Spec other = spec;
  std::ranges::reverse(other.devices);
  std::ranges::reverse(other.edits.device_nodes);
  std::ranges::reverse(other.edits.mounts);
  canonicalize_spec(spec);
  canonicalize_spec(other);
  RC_ASSERT(to_json(spec) == to_json(other));
  RC_ASSERT(to_yaml(spec) == to_yaml(other));
  Spec again = spec;
  canonicalize_spec(again);
  RC_ASSERT(again == spec);
}

}  // namespace
}  // namespace gpulet::cdi
