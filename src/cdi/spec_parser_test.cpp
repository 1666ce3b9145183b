#include <gtest/gtest.h>

#include "cdi/generate.h"
#include "cdi/spec.h"

namespace gpulet::cdi {
namespace {

TEST(Names, OfGpusAndMigDevices) {
  inventory::Gpu gpu;
  gpu.index = 3;
  gpu.uuid = DeviceUuid("GPU-a");
  inventory::MigDevice mig;
  mig.index = 1;
  mig.uuid = DeviceUuid("MIG-b");
  EXPECT_EQ(gpu_name(NameStrategy::kIndex, gpu), "3");
  EXPECT_EQ(gpu_name(NameStrategy::kTypeIndex, gpu), "gpu3");
  EXPECT_EQ(gpu_name(NameStrategy::kUuid, gpu), "GPU-a");
  EXPECT_EQ(mig_name(NameStrategy::kIndex, gpu, mig), "3:1");
  EXPECT_EQ(mig_name(NameStrategy::kTypeIndex, gpu, mig), "mig3:1");
  EXPECT_EQ(mig_name(NameStrategy::kUuid, gpu, mig), "MIG-b");
  EXPECT_EQ(qualified_name("nvidia.com/gpu", "3"), "nvidia.com/gpu=3");
}

TEST(Names, Strategies) {
  EXPECT_EQ(*parse_name_strategy("index"), NameStrategy::kIndex);
  EXPECT_EQ(*parse_name_strategy("uuid"), NameStrategy::kUuid);
  EXPECT_EQ(*parse_name_strategy("type-index"), NameStrategy::kTypeIndex);
  EXPECT_EQ(parse_name_strategy("Index").error().code(), Code::kInvalidArgument);
}

TEST(Names, FollowTheRulesOfCdi) {
  for (const char* good : {"nvidia.com", "a", "k8s.device-plugin.nvidia.com", "a_1"}) {
    EXPECT_TRUE(check_vendor(good)) << good;
    EXPECT_TRUE(check_class(good)) << good;
  }
  for (const char* bad : {"", "1a", ".a", "a-", "a/b", "a b", "a:b", "\xc3\xa4"}) {
    EXPECT_FALSE(check_vendor(bad)) << bad;
    EXPECT_FALSE(check_class(bad)) << bad;
  }
  for (const char* good : {"0", "0:1", "mig0:1", "GPU-1.2_3"}) EXPECT_TRUE(check_device_name(good)) << good;
  for (const char* bad : {"", ":1", "0:", "a=b", "a/b", "a b"}) EXPECT_FALSE(check_device_name(bad)) << bad;
}

}  // namespace

namespace {

std::string document(const std::string& edits, const std::string& version = "1.1.0") {
  return "cdiVersion: " + version +
         "\nkind: vendor.com/class\ndevices:\n- name: one\n  containerEdits: " + edits + "\n";
}

// The text of the only problem, or of all.
std::string problem(const std::string& text) {
  std::string all;
  for (const auto& found : read_spec(text, "f").problems)
    all += (all.empty() ? "" : " | ") + found.problem_text();
  return all;
}

TEST(ReadSpec, ReportsPositionAndProblem) {
  EXPECT_EQ(problem(document("{env: [A=1]}")), "");
  EXPECT_EQ(problem(document("{env: [A=1, B]}")),
            "f:5:31: devices[0].containerEdits.env[1]: expected an environment variable NAME=VALUE");
  EXPECT_EQ(problem(document("{env: [=1]}")),
            "f:5:26: devices[0].containerEdits.env[0]: expected an environment variable NAME=VALUE");
  EXPECT_EQ(problem("{\n\"cdiVersion\": \"0.5.0\",\n\"kind\": 3,\n\"devices\": []}").substr(0, 35),
            "f:3:9: kind: expected a string; put");
}

struct Case {
  const char* edits;
  const char* field;  // of the only problem, below the device's edits; "" if there is none
};

class Edits : public testing::TestWithParam<Case> {};

TEST_P(Edits, FollowTheSchema) {
  const auto read = read_spec(document(GetParam().edits), "f");
  if (*GetParam().field == '\0') {
    for (const auto& found : read.problems) ADD_FAILURE() << found.problem_text();
    EXPECT_TRUE(read.spec);
    return;
  }
  ASSERT_EQ(read.problems.size(), 1u) << problem(document(GetParam().edits));
  EXPECT_EQ(read.problems[0].field, std::string("devices[0].containerEdits") + GetParam().field);
  EXPECT_FALSE(read.spec);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Edits,
    testing::Values(
        Case{"{envs: [A=1]}", ".envs"}, Case{"{env: A=1}", ".env"}, Case{"{env: [1]}", ".env[0]"},
        Case{"{deviceNodes: [{path: /dev/a, major: 1, minor: 2, fileMode: 438, permissions: rwm, uid: 1, "
             "gid: 2, "
             "type: c, hostPath: /x}]}",
             ""},
        Case{"{deviceNodes: [{}]}", ".deviceNodes[0].path"},
        Case{"{deviceNodes: [{path: ''}]}", ".deviceNodes[0].path"},
        Case{"{deviceNodes: [{path: /a, type: x}]}", ".deviceNodes[0].type"},
        Case{"{deviceNodes: [{path: /a, major: -1}]}", ".deviceNodes[0].major"},
        Case{"{deviceNodes: [{path: /a, minor: '1'}]}", ".deviceNodes[0].minor"},
        Case{"{deviceNodes: [{path: /a, fileMode: 0666}]}", ".deviceNodes[0].fileMode"},
        Case{"{deviceNodes: [{path: /a, gid: 4294967296}]}", ".deviceNodes[0].gid"},
        Case{"{deviceNodes: [{path: /a, permissions: rx}]}", ".deviceNodes[0].permissions"},
        Case{"{deviceNodes: [{path: /a, permissions: none}]}", ""},
        Case{"{deviceNodes: [{path: /a, hostpath: /b}]}", ".deviceNodes[0].hostpath"},
        Case{"{mounts: [{hostPath: /a, containerPath: /b, options: [ro], type: bind}]}", ""},
        Case{"{mounts: [{containerPath: /b}]}", ".mounts[0].hostPath"},
        Case{"{mounts: [{hostPath: /a, containerPath: ''}]}", ".mounts[0].containerPath"},
        Case{"{mounts: [{hostPath: /a, containerPath: /b, options: ro}]}", ".mounts[0].options"},
        Case{"{hooks: [{hookName: createContainer, path: /a, args: [a], env: [A=1], timeout: 1}]}", ""},
        Case{"{hooks: [{hookName: create, path: /a}]}", ".hooks[0].hookName"},
        Case{"{hooks: [{hookName: poststop}]}", ".hooks[0].path"},
        Case{"{hooks: [{hookName: poststop, path: /a, env: [A]}]}", ".hooks[0].env[0]"},
        Case{"{netDevices: [{hostInterfaceName: eth0, name: net0}]}", ""},
        Case{"{netDevices: [{name: net0}]}", ".netDevices[0].hostInterfaceName"},
        Case{"{netDevices: [{hostInterfaceName: a, name: n}, {hostInterfaceName: b, name: n}]}",
             ".netDevices"},
        Case{"{intelRdt: {closID: a, l3CacheSchema: b, schemata: [c], enableMonitoring: true}}", ""},
        Case{"{intelRdt: {closID: a/b}}", ".intelRdt.closID"},
        Case{"{intelRdt: {closID: a, enableMonitoring: 'true'}}", ".intelRdt.enableMonitoring"},
        Case{"{additionalGids: [44]}", ""}, Case{"{additionalGids: ['44']}", ".additionalGids[0]"}),
    [](const auto& test) { return "n" + std::to_string(test.index); });

TEST(ReadSpec, ChecksTheDocument) {
  const auto with = [](const std::string& version, const std::string& kind, const std::string& devices) {
    return problem("cdiVersion: " + version + "\nkind: " + kind + "\ndevices: " + devices + "\n");
  };
  const std::string one = "[{name: a, containerEdits: {env: [A=1]}}]";
  EXPECT_EQ(with("0.5.0", "vendor.com/class", one), "");
  EXPECT_EQ(with("0.9.0", "vendor.com/class", one), "f:1:13: cdiVersion: unknown CDI version '0.9.0'");
  EXPECT_EQ(with("''", "vendor.com/class", one), "f:1:13: cdiVersion: unknown CDI version ''");
  EXPECT_EQ(with("0.5.0", "vendor.com/a.b", one),
            "f:1:13: cdiVersion: this document needs at least version 0.6.0");
  EXPECT_EQ(with("0.5.0", "class", one), "f:2:7: kind: 'class' is not vendor/class");
  EXPECT_EQ(with("0.5.0", "1v/class", one), "f:2:7: kind: vendor '1v' does not begin with a letter");
  EXPECT_EQ(with("0.5.0", "v/c", "[{name: 'a b', containerEdits: {env: [A=1]}}]"),
            "f:3:18: devices[0].name: device name 'a b' may contain only letters, digits and _-.:");
  EXPECT_EQ(with("0.5.0", "v/c", "[{name: 0, containerEdits: {env: [A=1]}}]"),
            "f:3:18: devices[0].name: expected a string; put '0' in quotes");
  EXPECT_EQ(with("0.5.0", "v/c",
                 "[{name: a, containerEdits: {env: [A=1]}}, {name: a, containerEdits: {env: [A=1]}}]"),
            "f:3:52: devices[1].name: duplicate device 'a'");
  EXPECT_EQ(with("0.5.0", "v/c", "[{name: a, containerEdits: {}}]"),
            "f:3:37: devices[0].containerEdits: a device must change something");
  EXPECT_EQ(with("0.6.0", "v/c", "[{name: a, annotations: {'a/b/c d': x}, containerEdits: {env: [A=1]}}]"),
            "f:3:35: devices[0].annotations.a/b/c d: is not an annotation key: [prefix/]name");
  EXPECT_EQ(problem("kind: v/c\ndevices: []\n"), "f:1:1: cdiVersion: is missing");
  EXPECT_EQ(problem("cdiVersion: 0.5.0\nkind: v/c\ndevices: []\ndevice: []\n"),
            "f:4:1: device: unknown field; did you mean devices?");
  EXPECT_NE(problem("{"), "");
  EXPECT_NE(problem(""), "");
  EXPECT_NE(problem("cdiVersion: 0.5.0\nkind: v/c\nkind: v/c\ndevices: []\n"), "");
}

}  // namespace
}  // namespace gpulet::cdi
