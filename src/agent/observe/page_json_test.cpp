#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/observe/page_json.h"
#include "agent/observe/sample_json.h"
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

health::HealthViewPtr healthy_view(const inventory::Snapshot& snapshot) {
  health::HealthView view{{kNow, kWall}, {}};
  for (const auto& gpu : snapshot.gpus) {
    health::DeviceView device;
    device.scope = {.gpu = gpu.uuid};
    device.uuid = gpu.uuid;
    device.gpu_index = gpu.index;
    device.status.since = kNow - 30min;
    view.devices.push_back(device);
    for (const auto& mig : gpu.mig_devices) {
      device.scope = {gpu.uuid, mig.gpu_instance, mig.compute_instance};
      device.uuid = mig.uuid;
      device.mig_index = mig.index;
      view.devices.push_back(device);
    }
  }
  return std::make_shared<const health::HealthView>(std::move(view));
}

// GPU 2 after an XID 79.
health::HealthViewPtr broken_view(const inventory::Snapshot& snapshot) {
  auto view = *healthy_view(snapshot);
  auto& standing = view.devices[2].status;
  standing.state = health::DeviceState::kLost;
  standing.since = kNow - 90s;
  standing.reason = "XID 79: GPU has fallen off the bus";
  standing.recovery_text = "when the node was rebooted, and the driver answers for it";
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
  return std::make_shared<const health::HealthView>(std::move(view));
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
        input.devices[shared].emplace_back(uuid_of(gpu) + "::" + std::to_string(share));
      }
    }
    input.devices[whole].emplace_back(uuid_of(7));
    input.devices[mig].emplace_back(mig_uuid_of(0));
    for (unsigned pod = 0; pod < 12; ++pod) {
      input.containers.push_back(
          {"team-a",
           "infer-" + std::to_string(pod),
           "server",
           {{shared, {input.devices[shared][pod * 17], input.devices[shared][pod * 17 + 1]}}}});
    }
    input.containers.push_back({"team-b", "train-0", "main", {{whole, {DeviceId(uuid_of(7))}}}});
    input.containers.push_back({"team-b", "notebook", "lab", {{mig, {DeviceId(mig_uuid_of(0))}}}});
    input.config = "version: v1\nflags:\n  migStrategy: mixed\n";
    events.add_entry({kWall - 30min, false, "ConfigApplied", "the config is in force"});
    if (broken) {
      const health::StatusChange change{{.gpu = DeviceUuid(uuid_of(2))}, {}, input.health->devices[2].status};
      moments.add_entry(health_moment(change, *input.health));
      events.add_entry(
          {kWall - 90s, true, "GPUUnhealthy", "GPU 2 is lost: XID 79: GPU has fallen off the bus"});
    }
    input.moments = &moments;
    input.events = &events;
  }
  Whole(const Whole&) = delete;
};

// tests/web also displays it in a browser.
void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/web/" + name;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, text + "\n"));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text + "\n", *golden) << path;
}

TEST(PageJson, TheSameInputGivesTheSameDocument) {
  const Whole healthy(false), broken(true);
  expect_golden("node-healthy.json", node_json(healthy.input));
  expect_golden("node-broken.json", node_json(broken.input));
  EXPECT_EQ(node_json(healthy.input).find('\n'), std::string::npos);
}

TEST(PageJson, HasTheHealthAndHoldersOfEachGpu) {
  const Whole whole(true);
  const json node = json::parse(node_json(whole.input));
  ASSERT_EQ(node["gpus"].size(), 8u);
  const json& lost = node["gpus"][2];
  EXPECT_EQ(lost["state"], "lost");
  EXPECT_EQ(lost["offered"], false);
  EXPECT_EQ(lost["since"], 1'759'999'910'000);
  EXPECT_EQ(lost["due"], 1'760'000'300'000);
  EXPECT_EQ(lost["faults"][0]["class"], "xid-reboot");
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

// What `gpulet doctor` asks the agent for where it cannot ask the driver itself.
TEST(PageJson, HasPendingModesFabricsAndUnreadSources) {
  NodePageInput input;
  auto reading = *snapshot();
  reading.gpus[0].mig_pending = true;
  auto view = *healthy_view(reading);
  view.devices[1].in_fabric = true;
  view.devices[0].unavailable_sources = {{health::Source::kPcie, "not supported"}};
  input.snapshot = std::make_shared<const inventory::Snapshot>(reading);
  EXPECT_EQ(json::parse(node_json(input))["gpus"][0]["unread"], nullptr) << "no health view yet";
  input.health = std::make_shared<const health::HealthView>(view);
  const json node = json::parse(node_json(input));
  EXPECT_EQ(node["gpus"][0]["unread"], json::parse(R"([{"source": "pcie", "reason": "not supported"}])"));
  EXPECT_EQ(node["gpus"][1]["unread"], json::array());
  EXPECT_EQ(node["gpus"][0]["mig_pending"], true);
  EXPECT_EQ(node["gpus"][1]["mig_pending"], nullptr);
  EXPECT_EQ(node["gpus"][0]["fabric"], false);
  EXPECT_EQ(node["gpus"][1]["fabric"], true);
}

inventory::SnapshotPtr one_gpu() {
  inventory::Snapshot snapshot;
  snapshot.gpus.resize(1);
  snapshot.gpus[0].uuid = DeviceUuid("GPU-a");
  snapshot.pcie = {inventory::PcieDistance::kInternal};
  return std::make_shared<const inventory::Snapshot>(snapshot);
}

TEST(PageJson, NamesProcessesOfNoPodWhereNamesAreShown) {
  NodePageInput input;
  input.snapshot = one_gpu();
  input.outside_pods[input.snapshot->gpus[0].uuid].push_back(
      {.pid = 812, .memory = Bytes{std::uint64_t{20} << 30}, .name = "python3"});
  const json shown = json::parse(node_json(input))["gpus"][0]["outside_pods"];
  EXPECT_EQ(shown, json::parse(R"([{"pid":812,"name":"python3","memory":21474836480}])"));
  const json hidden = json::parse(node_json(input, ProcessNames::kHidden))["gpus"][0]["outside_pods"];
  EXPECT_EQ(hidden, json::parse(R"([{"pid":812,"memory":21474836480}])"));
}

TEST(PageJson, IsADocumentWithoutAnyInput) {
  const json node = json::parse(node_json({}));
  EXPECT_TRUE(node["gpus"].empty());
  EXPECT_EQ(json::parse(now_json({}, kWall)), json::parse(R"({"at": 1760000000000, "gpus": {}})"));
  // No health view yet: the health in the snapshot.
  NodePageInput input;
  auto reading = *snapshot();
  reading.gpus[1].health = {false, "not read yet"};
  input.snapshot = std::make_shared<const inventory::Snapshot>(reading);
  const json early = json::parse(node_json(input));
  EXPECT_EQ(early["gpus"][0]["state"], "healthy");
  EXPECT_EQ(early["gpus"][1]["state"], "quarantined");
  EXPECT_EQ(early["gpus"][1]["reason"], "not read yet");
}

TEST(PageJson, EscapesForeignText) {
  NodePageInput input;
  input.node_name = "a\"b\\c\n\xff</script>";
  const json node = json::parse(node_json(input));
  EXPECT_EQ(node["name"], "a\"b\\c\n\xEF\xBF\xBD</script>");
  EXPECT_EQ(node_json(input).find('\n'), std::string::npos);
}

TEST(PageJson, ASampleHasOnlyKnownValues) {
  using metrics::Field;
  metrics::Sample sample;
  sample.gpus.resize(3);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].values = {
      {Field::kGpuUtil, std::uint64_t{97}},        {Field::kFbUsed, std::uint64_t{2}},
      {Field::kGpuTemp, std::uint64_t{65}},        {Field::kPower, 512.345},
      {Field::kPowerLimitEnforced, 700.0},         {Field::kSmClock, std::uint64_t{1980}},
      {Field::kNvLinkBandwidth, std::uint64_t{3}}, {Field::kSmActive, 0.875},
      {Field::kSerial, std::string("not here")}};
  metrics::InstanceSample instance;
  instance.values = {{Field::kGraphicsActive, 0.125}, {Field::kFbUsed, std::uint64_t{1}}};
  instance.devices.push_back({.uuid = DeviceUuid("MIG-a"), .compute_instance = 0, .processes = {}});
  sample.gpus[0].instances.push_back(instance);
  sample.gpus[1].uuid = DeviceUuid("GPU-b");
  sample.gpus[1].values = {{Field::kPower, std::numeric_limits<double>::quiet_NaN()}};
  sample.gpus[2].uuid = DeviceUuid("GPU-c");
  sample.gpus[2].error = Error(Code::kDeadlineExceeded, "it hangs");
  EXPECT_EQ(
      now_json(sample, kWall),
      R"({"at":1760000000000,"gpus":{"GPU-a":{"util":97,"sm":87.5,"memory":2097152,"temperature":65,"power":512.3,)"
      R"("power_limit":700,"sm_clock":1980,"nvlink":3072000},"GPU-b":{"power":null}},)"
      R"("mig":{"MIG-a":{"util":12.5,"memory":1048576}}})");
  for (const auto& [field, value] : sample.gpus[0].values)
    EXPECT_EQ(now_json_fields().contains(field), field != Field::kSerial);
}

TEST(PageJson, ASampleHasRatesOfTheInterconnectAndEccErrors) {
  using metrics::Field;
  metrics::Sample sample;
  sample.gpus.resize(2);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].values = {{Field::kPcieTx, std::uint64_t{1}},  // less exact than GPM's
                           {Field::kPcieTxBytes, 1.6e9},
                           {Field::kPcieRxBytes, 4.0e9},
                           {Field::kNvLinkTxBytes, 0.0},
                           {Field::kNvLinkRxBytes, 239'058'123'456.0},
                           {Field::kEccSbeVolatile, std::uint64_t{12}},
                           {Field::kEccDbeVolatile, std::uint64_t{0}}};
  sample.gpus[1].uuid = DeviceUuid("GPU-b");
  sample.gpus[1].values = {{Field::kPcieTx, std::uint64_t{250}}, {Field::kPcieRx, std::uint64_t{12'345'678}}};
  EXPECT_EQ(now_json(sample, kWall),
            R"({"at":1760000000000,"gpus":{"GPU-a":{"pcie_rx":4000000000,"pcie_tx":1600000000,)"
            R"("nvlink_rx":239058123456,"nvlink_tx":0,"ecc_corrected":12,"ecc_uncorrected":0},)"
            R"("GPU-b":{"pcie_rx":12345678000,"pcie_tx":250000}}})");
  EXPECT_FALSE(now_json_fields().contains(Field::kPcieTx)) << "the driver measures it for 20 ms";
}

TEST(PageJson, HasTheUsageOfEachDevice) {
  metrics::Sample sample;
  sample.gpus.resize(4);
  for (unsigned i = 0; i < 4; ++i) sample.gpus[i].uuid = DeviceUuid("GPU-" + std::to_string(i));
  sample.gpus[0].processes = {{.pid = 11, .memory = Bytes{600}, .sm = 70.04, .name = "python3"},
                              {.pid = 12, .memory = {}, .sm = 0}};
  sample.gpus[2].error = Error(Code::kDeadlineExceeded, "it hangs");
  sample.gpus[2].processes = sample.gpus[0].processes;
  sample.gpus[3].mig = true;
  metrics::InstanceSample instance;
  instance.devices.push_back({.uuid = DeviceUuid("MIG-a"),
                              .compute_instance = 0,
                              .processes = {{.pid = 13, .memory = Bytes{9}, .sm = 5}}});
  sample.gpus[3].instances.push_back(instance);
  const PodName train{"team-a", "train"}, lab{"team-b", "lab"};
  metrics::PodShares shared, unknown;
  shared.pods = {{{train, {"main", "side"}, {"0", "3"}}, Bytes{600}, 70.04},
                 {{lab, {"lab"}, {"1"}}, Bytes{0}, 0}};
  shared.unattributed_memory = Bytes{40};
  shared.unattributed_busy = 1.5;
  unknown.pods = {{{lab, {"lab"}, {}}, Bytes{9}, 5}};
  unknown.is_busy_known = false;
  const std::map<DeviceUuid, metrics::PodShares> devices = {{DeviceUuid("GPU-0"), shared},
                                                            {DeviceUuid("GPU-1"), {}},
                                                            {DeviceUuid("GPU-2"), shared},
                                                            {DeviceUuid("MIG-a"), unknown}};
  EXPECT_EQ(
      use_json(sample, devices, {{11, train}}, kWall),
      R"({"at":1760000000000,"devices":{"GPU-0":{"pods":[{"namespace":"team-a","pod":"train","containers":)"
      R"(["main","side"],"shares":2,"memory":600,"busy":70},{"namespace":"team-b","pod":"lab","containers":)"
      R"(["lab"],"shares":1,"memory":0,"busy":0}],"rest":{"memory":40,"busy":1.5},"processes":[{"pid":11,)"
      R"("name":"python3","memory":600,"sm":70,"namespace":"team-a","pod":"train"},{"pid":12,"name":"",)"
      R"("sm":0}]},"MIG-a":{"pods":[{"namespace":"team-b","pod":"lab","containers":["lab"],"shares":0,)"
      R"("memory":9}],"rest":{"memory":0,"busy":0},"processes":[{"pid":13,"name":"","memory":9,"sm":5,)"
      R"("namespace":"team-b","pod":"lab"}]}}})");
  EXPECT_EQ(use_json({}, {}, {}, kWall), R"({"at":1760000000000,"devices":{}})");
  const auto hidden =
      nlohmann::json::parse(use_json(sample, devices, {{11, train}}, kWall, ProcessNames::kHidden));
  EXPECT_EQ(hidden["devices"]["GPU-0"]["processes"].dump(),
            R"([{"memory":600,"namespace":"team-a","pid":11,"pod":"train","sm":70},{"pid":12,"sm":0}])");
}

TEST(PageJson, ClockDriftChangesNothing) {
  const Whole whole(true);
  NodePageInput later = whole.input;
  auto view = *whole.input.health;
  view.at.now += 2s;
  view.at.wall += 2s + 3ms;
  later.health = std::make_shared<const health::HealthView>(view);
  EXPECT_EQ(node_json(later), node_json(whole.input));
}

TEST(PageJson, KeepsOnlyTheNewestEntries) {
  RecentEvents events;
  for (int i = 0; i < 1000; ++i) events.add_entry({kWall, false, std::to_string(i), ""});
  EXPECT_EQ(events.entries().size(), 100u);
  EXPECT_EQ(events.entries().front().reason, "900");
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr WallTime kStart{std::chrono::duration_cast<WallTime::duration>(1'760'000'000s)};

health::HealthViewPtr health_view_of(health::DeviceState state, const char* reason) {
  health::HealthView view{{Time{1h}, kStart}, {}};
  view.devices.resize(1);
  view.devices[0].scope = {.gpu = DeviceUuid("GPU-a")};
  view.devices[0].uuid = DeviceUuid("GPU-a");
  view.devices[0].gpu_index = 0;
  view.devices[0].status.state = state;
  view.devices[0].status.reason = reason;
  view.devices[0].status.since = Time{1h};
  return std::make_shared<const health::HealthView>(view);
}

json node_of(PageState& page) {
  web::Pages pages;
  page.write_pages(pages);
  return json::parse(pages.node);
}

TEST(PageState, HasATimelineOfChanges) {
  PageState page("node-1", "1.2.3");
  page.set_snapshot(one_gpu());
  const auto healthy = health_view_of(health::DeviceState::kHealthy, ""),
             lost = health_view_of(health::DeviceState::kLost, "XID 79");
  page.record_health(healthy, {});
  EXPECT_EQ(node_of(page)["gpus"][0]["state"], "healthy");
  const health::StatusChange fault{
      {.gpu = DeviceUuid("GPU-a")}, healthy->devices[0].status, lost->devices[0].status};
  page.record_health(lost, {fault});
  // A change of only the reason or a count is no line of the timeline.
  const health::StatusChange again{fault.device, fault.after, fault.after};
  page.record_health(lost, {again});
  page.record_event(true, "GPUUnhealthy", "GPU 0: XID 79", kStart);
  const json node = node_of(page);
  EXPECT_EQ(node["name"], "node-1");
  EXPECT_EQ(node["gpus"][0]["state"], "lost");
  ASSERT_EQ(node["timeline"].size(), 1u);
  EXPECT_EQ(node["timeline"][0]["from"], "healthy");
  EXPECT_EQ(node["timeline"][0]["device"], "GPU 0 (GPU-a)");
  EXPECT_EQ(node["events"][0]["reason"], "GPUUnhealthy");
}

TEST(PageState, UpdatesTheDocumentWithEachInput) {
  PageState page("node-1", "1.2.3");
  json before = node_of(page);
  const auto changes = [&](auto change) {
    change();
    const json after = node_of(page);
    return after != std::exchange(before, after);
  };
  EXPECT_TRUE(changes([&] { page.set_snapshot(one_gpu()); }));
  EXPECT_TRUE(changes([&] { page.set_problems({"no kubelet"}); }));
  EXPECT_TRUE(changes([&] { page.set_devices({{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-a")}}}); }));
  EXPECT_TRUE(changes([&] {
    page.set_containers({{"ns", "pod", "c", {{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-a")}}}}});
  }));
  EXPECT_TRUE(changes([&] { page.set_config_text("version: v1\n"); }));
  EXPECT_FALSE(changes([&] {
    page.set_problems({"no kubelet"});
    page.set_config_text("version: v1\n");
  }));
  web::Pages pages;
  page.write_pages(pages);
  EXPECT_EQ(pages.now, "");
  metrics::Sample sample;
  sample.gpus.resize(1);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].processes = {{.pid = 7, .memory = Bytes{1}, .sm = 2, .name = "python3"}};
  metrics::Aggregator meter;
  meter.ingest_sample(one_gpu(), sample, {}, Time{1h});
  page.set_sample(meter, kStart);
  page.write_pages(pages);
  EXPECT_EQ(pages.use, R"({"at":1760000000000,"devices":{"GPU-a":{"pods":[],"rest":{"memory":0,"busy":0},)"
                       R"("processes":[{"pid":7,"name":"python3","memory":1,"sm":2}]}}})");
  EXPECT_EQ(pages.now, R"({"at":1760000000000,"gpus":{"GPU-a":{}}})");
  EXPECT_EQ(pages.public_use,
            R"({"at":1760000000000,"devices":{"GPU-a":{"pods":[],"rest":{"memory":0,"busy":0},)"
            R"("processes":[{"pid":7,"memory":1,"sm":2}]}}})");
  EXPECT_EQ(json::parse(pages.trends)["rings"].size(), kTrendRings.size());
}

// The history for long ranges is written again once a minute.
TEST(PageState, HasTheTrendsOfItsSamples) {
  PageState page("node-1", "1.2.3");
  metrics::Sample sample;
  sample.gpus.resize(1);
  sample.gpus[0].uuid = DeviceUuid("GPU-a");
  sample.gpus[0].values = {{metrics::Field::kGpuUtil, std::uint64_t{40}}};
  metrics::Aggregator meter;
  const auto trends_after = [&](std::chrono::seconds age) {
    meter.ingest_sample(one_gpu(), sample, {}, Time{1h});
    page.set_sample(meter, kStart + age);
    web::Pages pages;
    page.write_pages(pages);
    return json::parse(pages.trends)["rings"][0]["gpus"]["GPU-a"]["util"];
  };
  EXPECT_EQ(trends_after(0s), json::array());
  EXPECT_EQ(trends_after(15s), json::array()) << "the minute is not over";
  EXPECT_EQ(trends_after(60s), json::array({40}));
}

// Wherever a text of the page names a process that keeps a GPU from a change.
TEST(PageState, NamesNoProcessesInThePublicDocuments) {
  PageState page("node-1", "1.0");
  page.set_snapshot(one_gpu());
  page.set_problems({"mig: in use by process 7 (secret-model), process 8"});
  page.record_event(true, "MigBlocked", "GPU 0: process 812 (secret-model), on the GPU", kStart);
  page.set_config_text("process 9 (of a config)");
  web::Pages pages;
  page.write_pages(pages);
  EXPECT_NE(pages.node.find("process 812 (secret-model), on"), std::string::npos);
  EXPECT_EQ(pages.public_node.find("secret-model"), std::string::npos);
  const auto open = nlohmann::json::parse(pages.public_node);
  EXPECT_EQ(open["problems"][0], "mig: in use by process 7, process 8");
  EXPECT_EQ(open["events"][0]["message"], "GPU 0: process 812, on the GPU");
  EXPECT_EQ(open["gpus"], nlohmann::json::parse(pages.node)["gpus"]);
}

}  // namespace
}  // namespace gpulet::agent
