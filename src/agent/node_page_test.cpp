#include "agent/node_page.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr WallTime kWall{std::chrono::duration_cast<WallTime::duration>(1'760'000'000s)};
constexpr Time kNow{1h};
constexpr std::size_t kSharedGpus = 6, kReplicas = 48;

std::string uuid_of(unsigned index) {
  return "GPU-0000000" + std::to_string(index) + "-1111-2222-3333-444444444444";
}
std::string mig_uuid_of(unsigned index) {
  return "MIG-0000000" + std::to_string(index) + "-5555-6666-7777-888888888888";
}

inventory::MigDevice mig_device(unsigned index, const char* profile, unsigned start, unsigned size,
                                unsigned gpu_instance, unsigned compute_instance = 0) {
  inventory::MigDevice device;
  device.index = index;
  device.uuid = DeviceUuid(mig_uuid_of(index));
  device.profile = profile;
  device.gpu_instance = gpu_instance;
  device.compute_instance = compute_instance;
  device.memory = mebibytes(size * 10'240);
  device.placement_start = start;
  device.placement_size = size;
  return device;
}

// Eight H100 behind NVSwitches on two sockets: six of them in 48 shares, one in MIG devices, one whole.
inventory::SnapshotPtr snapshot() {
  inventory::Snapshot made;
  made.driver = {"570.124.06", 12080};
  for (unsigned i = 0; i < 8; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid(uuid_of(i));
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.architecture = "hopper";
    gpu.memory = mebibytes(81'559);
    gpu.pci = {.domain = 0, .bus = 0x1b + i * 8, .device = 0, .function = 0};
    gpu.numa_node = static_cast<int>(i / 4);
    for (unsigned link = 0; link < 18; ++link) {
      gpu.nvlinks.push_back({link, inventory::NvLinkRemote::kSwitch, {.domain = 0, .bus = 0xa0 + link % 4}});
    }
    made.gpus.push_back(std::move(gpu));
  }
  auto& split = made.gpus[6];
  split.mig_capable = split.mig_enabled = true;
  split.mig_devices = {mig_device(0, "3g.40gb", 4, 4, 1), mig_device(1, "1c.2g.20gb", 0, 2, 3),
                       mig_device(2, "1c.2g.20gb", 0, 2, 3, 1), mig_device(3, "1g.10gb", 2, 1, 9)};
  made.pcie.assign(64, inventory::PcieDistance::kSystem);
  for (unsigned i = 0; i < 64; ++i) {
    if (i / 8 / 4 == i % 8 / 4) made.pcie[i] = inventory::PcieDistance::kNode;
    if (i / 8 == i % 8) made.pcie[i] = inventory::PcieDistance::kInternal;
  }
  return std::make_shared<const inventory::Snapshot>(std::move(made));
}

health::ViewPtr healthy_view(const inventory::Snapshot& snapshot) {
  health::View view{{kNow, kWall}, {}};
  for (const auto& gpu : snapshot.gpus) {
    health::DeviceView device;
    device.scope = {.gpu = gpu.uuid};
    device.uuid = gpu.uuid;
    device.gpu_index = gpu.index;
    device.standing.since = kNow - 30min;
    view.devices.push_back(device);
    for (const auto& mig : gpu.mig_devices) {
      device.scope = {gpu.uuid, mig.gpu_instance, mig.compute_instance};
      device.uuid = mig.uuid;
      device.mig_index = mig.index;
      view.devices.push_back(device);
    }
  }
  return std::make_shared<const health::View>(std::move(view));
}

// GPU 2 as it is after an XID 79.
health::ViewPtr broken_view(const inventory::Snapshot& snapshot) {
  auto view = *healthy_view(snapshot);
  auto& standing = view.devices[2].standing;
  standing.state = health::State::kLost;
  standing.since = kNow - 90s;
  standing.reason = "XID 79: GPU has fallen off the bus";
  standing.comes_back = "when the node was rebooted, and the driver answers for it";
  standing.relapses = 1;
  standing.due = kNow + 5min;
  health::Fault fault;
  fault.fault_class = health::FaultClass::kXidReboot;
  fault.code = 79;
  fault.effect = health::Effect::kLose;
  fault.opened = kNow - 90s;
  fault.last_seen = kNow - 60s;
  fault.count = 3;
  fault.detail = "GPU has fallen off the bus";
  standing.faults = {fault};
  return std::make_shared<const health::View>(std::move(view));
}

struct Whole {
  NodePageInput input;
  RecentMoments moments;
  RecentEvents events;

  explicit Whole(bool broken) {
    input.node_name = "gpu-node-1";
    input.version = "0.1.0";
    input.snapshot = snapshot();
    input.health = broken ? broken_view(*input.snapshot) : healthy_view(*input.snapshot);
    const ResourceName shared("nvidia.com/gpu.shared"), whole("nvidia.com/gpu"),
        mig("nvidia.com/mig-3g.40gb");
    for (unsigned gpu = 0; gpu < kSharedGpus; ++gpu) {
      for (unsigned share = 0; share < kReplicas; ++share) {
        input.offered[shared].emplace_back(uuid_of(gpu) + "::" + std::to_string(share));
      }
    }
    input.offered[whole].emplace_back(uuid_of(7));
    input.offered[mig].emplace_back(mig_uuid_of(0));
    for (unsigned pod = 0; pod < 12; ++pod) {
      input.containers.push_back(
          {"team-a",
           "infer-" + std::to_string(pod),
           "server",
           {{shared, {input.offered[shared][pod * 17], input.offered[shared][pod * 17 + 1]}}}});
    }
    input.containers.push_back({"team-b", "train-0", "main", {{whole, {DeviceId(uuid_of(7))}}}});
    input.containers.push_back({"team-b", "notebook", "lab", {{mig, {DeviceId(mig_uuid_of(0))}}}});
    input.config = "version: v1\nflags:\n  migStrategy: mixed\n";
    events.add({kWall - 30min, false, "ConfigApplied", "the config is in force"});
    if (broken) {
      const health::Change change{{.gpu = DeviceUuid(uuid_of(2))}, {}, input.health->devices[2].standing};
      moments.add(moment_of(change, *input.health));
      events.add({kWall - 90s, true, "GPUUnhealthy", "GPU 2 is lost: XID 79: GPU has fallen off the bus"});
    }
    input.moments = &moments;
    input.events = &events;
  }
  Whole(const Whole&) = delete;
};

// Also what tests/web shows in a browser.
void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/web/" + name;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, text + "\n"));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().text() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text + "\n", *golden) << path;
}

TEST(NodePage, TheSameInputGivesTheSameDocument) {
  const Whole healthy(false), broken(true);
  expect_golden("node-healthy.json", node_document(healthy.input));
  expect_golden("node-broken.json", node_document(broken.input));
  EXPECT_EQ(node_document(healthy.input).find('\n'), std::string::npos);
}

TEST(NodePage, SaysHowEachGpuIsAndWhoHoldsIt) {
  const Whole whole(true);
  const json node = json::parse(node_document(whole.input));
  ASSERT_EQ(node["gpus"].size(), 8u);
  const json& lost = node["gpus"][2];
  EXPECT_EQ(lost["state"], "lost");
  EXPECT_EQ(lost["offered"], false);
  EXPECT_EQ(lost["since"], 1'759'999'910'000);
  EXPECT_EQ(lost["due"], 1'760'000'300'000);
  EXPECT_EQ(lost["faults"][0]["count"], 3);
  EXPECT_EQ(lost["faults"][0]["last"], 1'759'999'940'000);
  EXPECT_EQ(lost["shares"].size(), kReplicas);
  EXPECT_EQ(node["gpus"][0]["holders"][0],
            json::parse(R"({"device": "GPU-00000000-1111-2222-3333-444444444444::0", "uuid":
                            "GPU-00000000-1111-2222-3333-444444444444", "namespace": "team-a", "pod": "infer-0",
                            "container": "server", "resource": "nvidia.com/gpu.shared"})"));
  const json& split = node["gpus"][6];
  EXPECT_EQ(split["mig"]["slices"], 8);
  EXPECT_EQ(split["mig"]["devices"][1]["start"], 0);
  EXPECT_EQ(split["mig"]["devices"][1]["size"], 2);
  EXPECT_EQ(split["holders"][0]["uuid"], mig_uuid_of(0));
  EXPECT_EQ(node["gpus"][0]["mig"], nullptr);
  EXPECT_EQ(node["links"][0][7], "NV18");
  EXPECT_EQ(node["links"][3][3], "X");
  EXPECT_EQ(node["driver"]["cuda"], "12.8");
  EXPECT_EQ(node["timeline"][0]["to"], "lost");
  EXPECT_EQ(node["timeline"][0]["at"], lost["since"]);
}

TEST(NodePage, WithoutAnythingItIsStillADocument) {
  const json node = json::parse(node_document({}));
  EXPECT_TRUE(node["gpus"].empty());
  EXPECT_EQ(json::parse(now_document({}, kWall)), json::parse(R"({"at": 1760000000000, "gpus": {}})"));
  // No judgement yet: as the snapshot says.
  NodePageInput input;
  auto reading = *snapshot();
  reading.gpus[1].health = {false, "not read yet"};
  input.snapshot = std::make_shared<const inventory::Snapshot>(reading);
  const json early = json::parse(node_document(input));
  EXPECT_EQ(early["gpus"][0]["state"], "healthy");
  EXPECT_EQ(early["gpus"][1]["state"], "quarantined");
  EXPECT_EQ(early["gpus"][1]["reason"], "not read yet");
}

TEST(NodePage, TextsOfOthersDoNoHarm) {
  NodePageInput input;
  input.node_name = "a\"b\\c\n\xff</script>";
  const json node = json::parse(node_document(input));
  EXPECT_EQ(node["name"], "a\"b\\c\n\xEF\xBF\xBD</script>");
  EXPECT_EQ(node_document(input).find('\n'), std::string::npos);
}

TEST(NodePage, ASampleHasWhatIsKnownAndNothingElse) {
  using metrics::Field;
  metrics::Sample sample;
  sample.gpus.resize(3);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].values = {{Field::kGpuUtil, std::uint64_t{97}},
                           {Field::kFbUsed, std::uint64_t{2}},
                           {Field::kGpuTemp, std::uint64_t{65}},
                           {Field::kPower, 512.345},
                           {Field::kPowerLimitEnforced, 700.0},
                           {Field::kSmClock, std::uint64_t{1980}},
                           {Field::kSmActive, 0.875},
                           {Field::kSerial, std::string("not here")}};
  metrics::InstanceSample instance;
  instance.values = {{Field::kGraphicsActive, 0.125}, {Field::kFbUsed, std::uint64_t{1}}};
  instance.devices.push_back({.uuid = DeviceUuid("MIG-a"), .compute_instance = 0, .processes = {}});
  sample.gpus[0].instances.push_back(instance);
  sample.gpus[1].uuid = DeviceUuid("GPU-b");
  sample.gpus[1].values = {{Field::kPower, std::numeric_limits<double>::quiet_NaN()}};
  sample.gpus[2].uuid = DeviceUuid("GPU-c");
  sample.gpus[2].failed = Error(Code::kDeadlineExceeded, "it hangs");
  EXPECT_EQ(
      now_document(sample, kWall),
      R"({"at":1760000000000,"gpus":{"GPU-a":{"util":97,"sm":87.5,"memory":2097152,"temperature":65,"power":512.3,)"
      R"("power_limit":700,"sm_clock":1980},"GPU-b":{"power":null}},)"
      R"("mig":{"MIG-a":{"util":12.5,"memory":1048576}}})");
  for (const auto& [field, value] : sample.gpus[0].values)
    EXPECT_EQ(now_fields().contains(field), field != Field::kSerial);
}

TEST(NodePage, SaysWhoUsedWhatOfEachDevice) {
  metrics::Sample sample;
  sample.gpus.resize(4);
  for (unsigned i = 0; i < 4; ++i) sample.gpus[i].uuid = DeviceUuid("GPU-" + std::to_string(i));
  sample.gpus[0].processes = {{.pid = 11, .memory = Bytes{600}, .sm = 70.04, .name = "python3"},
                              {.pid = 12, .memory = {}, .sm = 0}};
  sample.gpus[2].failed = Error(Code::kDeadlineExceeded, "it hangs");
  sample.gpus[2].processes = sample.gpus[0].processes;
  sample.gpus[3].mig = true;
  metrics::InstanceSample instance;
  instance.devices.push_back({.uuid = DeviceUuid("MIG-a"), .compute_instance = 0, .processes = {}});
  sample.gpus[3].instances.push_back(instance);
  const metrics::PodName train{"team-a", "train"}, lab{"team-b", "lab"};
  metrics::Shares shared, unknown;
  shared.pods = {{{train, {"main", "side"}, {"0", "3"}}, Bytes{600}, 70.04},
                 {{lab, {"lab"}, {"1"}}, Bytes{0}, 0}};
  shared.rest_memory = Bytes{40};
  shared.rest_busy = 1.5;
  unknown.pods = {{{lab, {"lab"}, {}}, Bytes{9}, 5}};
  unknown.busy_known = false;
  const std::map<DeviceUuid, metrics::Shares> devices = {{DeviceUuid("GPU-0"), shared},
                                                         {DeviceUuid("GPU-1"), {}},
                                                         {DeviceUuid("GPU-2"), shared},
                                                         {DeviceUuid("MIG-a"), unknown}};
  EXPECT_EQ(
      use_document(sample, devices, {{11, train}}, kWall),
      R"({"at":1760000000000,"devices":{"GPU-0":{"pods":[{"namespace":"team-a","pod":"train","containers":)"
      R"(["main","side"],"shares":2,"memory":600,"busy":70},{"namespace":"team-b","pod":"lab","containers":)"
      R"(["lab"],"shares":1,"memory":0,"busy":0}],"rest":{"memory":40,"busy":1.5},"processes":[{"pid":11,)"
      R"("name":"python3","memory":600,"sm":70,"namespace":"team-a","pod":"train"},{"pid":12,"name":"",)"
      R"("sm":0}]},"MIG-a":{"pods":[{"namespace":"team-b","pod":"lab","containers":["lab"],"shares":0,)"
      R"("memory":9}],"rest":{"memory":0,"busy":0},"processes":[]}}})");
  EXPECT_EQ(use_document({}, {}, {}, kWall), R"({"at":1760000000000,"devices":{}})");
}

TEST(NodePage, ClocksThatDriftALittleChangeNothing) {
  const Whole whole(true);
  NodePageInput later = whole.input;
  auto view = *whole.input.health;
  view.at.now += 2s;
  view.at.wall += 2s + 3ms;
  later.health = std::make_shared<const health::View>(view);
  EXPECT_EQ(node_document(later), node_document(whole.input));
}

TEST(NodePage, OnlyTheLastAreKept) {
  RecentEvents events;
  for (int i = 0; i < 1000; ++i) events.add({kWall, false, std::to_string(i), ""});
  EXPECT_EQ(events.entries().size(), 100u);
  EXPECT_EQ(events.entries().front().reason, "900");
}

}  // namespace
}  // namespace gpulet::agent
