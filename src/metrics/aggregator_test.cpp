#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "inventory/snapshot_reader.h"
#include "metrics/aggregator.h"
#include "metrics/gpu_reader.h"
#include "metrics/test_pods.h"
#include "metrics/test_promtool.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kFirst("GPU-1"), kSecond("GPU-2");
constexpr Time kStart{1h};

Sample sample_of(std::uint64_t reasons = 0, const std::vector<unsigned>& instances = {}) {
  Sample sample;
  for (const auto& uuid : {kFirst, kSecond}) {
    GpuSample gpu;
    gpu.uuid = uuid;
    gpu.values[Field::kClockEvents] = reasons;
    for (const unsigned id : instances) gpu.instances.push_back({id, "1g.10gb", {}, {}, {}, {}});
    sample.gpus.push_back(gpu);
  }
  return sample;
}

EventWindows of_a_minute() {
  EventWindows windows;
  windows.set_window_sizes({60s, 60s});
  return windows;
}

Sample filled(EventWindows& windows, Time now, Sample sample = sample_of()) {
  windows.fill_counts(sample, now);
  return sample;
}

TEST(Windows, LastXidStaysAndItsCountExpires) {
  EventWindows windows = of_a_minute();
  EXPECT_EQ(filled(windows, kStart).gpus[0].xid, LastXid());
  windows.record_xid(kFirst, {}, 31, "page fault", kStart + 1s);
  windows.record_xid(kFirst, {}, 31, "page fault", kStart + 1100ms);
  windows.record_xid(kFirst, {}, 13, "exception", kStart + 30s);
  auto sample = filled(windows, kStart + 31s);
  EXPECT_EQ(sample.windows.xids, 60s);
  EXPECT_EQ(sample.gpus[0].xid, (LastXid{13, "exception"}));
  EXPECT_EQ(sample.gpus[0].counts.xids, (std::map<std::uint64_t, std::uint64_t>{{13, 1}, {31, 2}}));
  EXPECT_EQ(sample.gpus[1].xid.code, 0u);
  EXPECT_TRUE(sample.gpus[1].counts.xids.empty());
  EXPECT_EQ(filled(windows, kStart + 60999ms).gpus[0].counts.xids.size(), 2u);
  EXPECT_EQ(filled(windows, kStart + 61s).gpus[0].counts.xids,
            (std::map<std::uint64_t, std::uint64_t>{{13, 1}}));
  sample = filled(windows, kStart + 2min);
  EXPECT_TRUE(sample.gpus[0].counts.xids.empty());
  EXPECT_EQ(sample.gpus[0].xid, (LastXid{13, "exception"}));
}

TEST(Windows, EveryEventOfAStormIsCounted) {
  EventWindows windows = of_a_minute();
  for (int i = 0; i < 100'000; ++i)
    windows.record_xid(kFirst, {}, 31, "x", kStart + std::chrono::microseconds(i));
  EXPECT_EQ(filled(windows, kStart + 1s).gpus[0].counts.xids.at(31), 100'000u);
}

TEST(Windows, GpuInstancesHaveTheirOwnAndTheGpusEvents) {
  EventWindows windows = of_a_minute();
  windows.record_xid(kFirst, {}, 79, "off the bus", kStart);
  windows.record_xid(kFirst, 3, 31, "page fault", kStart);
  const auto sample = filled(windows, kStart + 1s, sample_of(0, {3, 4}));
  EXPECT_EQ(sample.gpus[0].instances[0].xid.code, 31u);
  EXPECT_EQ(sample.gpus[0].instances[1].xid.code, 79u);
  EXPECT_EQ(sample.gpus[0].instances[0].counts.xids, (std::map<std::uint64_t, std::uint64_t>{{31, 1}}));
  // Destroyed and created again: another instance.
  filled(windows, kStart + 2s, sample_of(0, {4}));
  EXPECT_EQ(filled(windows, kStart + 3s, sample_of(0, {3, 4})).gpus[0].instances[0].xid.code, 79u);
}

TEST(Windows, SamplesWithAClockEvent) {
  EXPECT_EQ(clock_event_names(0x1ff),
            (std::vector<std::string>{"gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost",
                                      "sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks"}));
  EXPECT_TRUE(clock_event_names(1 << 20).empty());
  EventWindows windows = of_a_minute();
  filled(windows, kStart, sample_of(0x4));
  filled(windows, kStart + 15s, sample_of(0x4 | 0x20));
  const auto sample = filled(windows, kStart + 30s, sample_of(0));
  EXPECT_EQ(sample.gpus[0].counts.clock_events,
            (std::map<std::string, std::uint64_t>{{"power_cap", 2}, {"sw_thermal", 1}}));
  EXPECT_EQ(filled(windows, kStart + 60s).gpus[0].counts.clock_events,
            (std::map<std::string, std::uint64_t>{{"power_cap", 1}, {"sw_thermal", 1}}));
}

TEST(Windows, XidsAndClocksHaveSeparateWindows) {
  EventWindows windows;
  windows.set_window_sizes({10s, 60s});
  windows.record_xid(kFirst, {}, 31, "page fault", kStart);
  filled(windows, kStart, sample_of(0x4));
  const auto sample = filled(windows, kStart + 30s);
  EXPECT_TRUE(sample.gpus[0].counts.xids.empty());
  EXPECT_EQ(sample.gpus[0].counts.clock_events.at("power_cap"), 1u);
  EXPECT_EQ(sample.windows.xids, 10s);
  EXPECT_EQ(sample.windows.clock_events, 60s);
}

TEST(Windows, RemovedGpuIsDropped) {
  EventWindows windows = of_a_minute();
  windows.record_xid(kFirst, {}, 31, "x", kStart);
  Sample other;
  filled(windows, kStart + 1s, other);
  EXPECT_EQ(filled(windows, kStart + 2s).gpus[0].xid.code, 0u);
}

}  // namespace

// From the driver to the page: the expositions of the simulated machines, compared with goldens.

namespace {

using namespace std::chrono_literals;

const PodName kIdle{"prod", "idle"};
constexpr unsigned kShown = 2;  // GPUs on the page

void run(sim::Gpu& gpu, std::uint32_t pid, std::uint64_t mib, std::uint8_t sm,
         std::uint32_t instance = sim::kNoInstance) {
  sim::Process process{};
  process.pid = pid;
  process.gpu_instance = instance;
  process.compute_instance = instance == sim::kNoInstance ? instance : 0;
  process.memory_bytes = mib << 20;
  process.sm_utilization = sm;
  process.memory_utilization = sm / 2;
  ASSERT_TRUE(sim::add_process(gpu, process));
}

class SimWorld {
 public:
  explicit SimWorld(const std::string& machine) : root_(**sim::load_machine(machine)) {
    // Time counters do not advance.
    auto state = root_.edit_machine();
    for (auto& gpu : state->gpus) {
      gpu.energy_mj = 1000;
      gpu.energy_since_ns = ~std::uint64_t{0};
    }
  }
  sim::EditGuard edit() { return root_.edit_machine(); }
  // Reads a new snapshot and a sample of it.
  void sample(Aggregator& meter, const std::vector<ContainerDevices>& containers) {
    if (!session_) session_ = *nvml::Session::open_session(root_.sim_root());
    auto snapshot = std::make_shared<inventory::Snapshot>();
    snapshot->driver = inventory::read_driver_summary(*session_)->driver;
    for (unsigned i = 0; i < kShown; ++i)
      snapshot->gpus.push_back(inventory::read_gpu(*session_, i, {root_.sim_root()}));
    if (previous_) inventory::fill_from_previous(snapshot->gpus, *previous_);
    previous_ = snapshot;
    Sample sample;
    now_ += 10s;
    for (unsigned i = 0; i < kShown; ++i)
      sample.gpus.push_back(readers_[i].sample_gpu(*session_, *snapshot, i, now_.time_since_epoch()));
    const auto holders = find_holders(containers, *snapshot);
    meter.ingest_sample(snapshot, std::move(sample),
                        {holders, {{100, kTrain}, {200, kServe}}, {{kTrain, {"uid-1", {}}}}}, now_);
  }
  std::string uuid(unsigned gpu) { return edit()->gpus[gpu].uuid; }
  Time now() const { return now_; }

 private:
  nvml::SimRoot root_;
  std::shared_ptr<const nvml::Session> session_;
  std::vector<GpuReader> readers_ = std::vector<GpuReader>(kShown, GpuReader(wanted()));
  inventory::SnapshotPtr previous_;
  Time now_{1h};

  static std::set<Field> wanted() {
    std::set<Field> all;
    for (const auto& counter : default_counters().all) all.insert(counter.field);
    return all;
  }
};

Aggregator meter() {
  Aggregator made;
  PageOptions options;
  options.hostname = "node-1";
  made.set_options(default_counters(), options);
  return made;
}

std::string page_of(const Aggregator& meter) {
  Exposition page;
  meter.add_metrics_to(page);
  return page.text_format();
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/metrics/" + name + ".prom";
  if (std::getenv("UPDATE_GOLDEN")) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden);
  EXPECT_EQ(complaints(text),
            (std::set<std::string>{"counter metrics should have \"_total\" suffix", kCapitals,
                                   "metric name should not include type 'counter'"}));
}

// Every machine: two busy Pods and an idle one share the first GPU; one Pod has the second.
class MeterGolden : public testing::TestWithParam<const char*> {};

TEST_P(MeterGolden, SharedAndWhole) {
  SimWorld world(GetParam());
  {
    auto state = world.edit();
    auto& gpu = state->gpus[0];
    run(gpu, 100, 4000, 50);
    run(gpu, 200, 2000, 20);
    run(gpu, 300, 100, 5);  // of no Pod
    gpu.utilization_gpu = 80;
    gpu.utilization_memory = 40;
  }
  const std::string first = world.uuid(0), second = world.uuid(1);
  const std::vector<ContainerDevices> pods = {container(kTrain, "main", {first + "::0", first + "::2"}),
                                              container(kServe, "main", {first + "::1", second}),
                                              container(kIdle, "main", {first + "::3"})};
  auto made = meter();
  world.sample(made, pods);
  for (auto& gpu : world.edit()->gpus) gpu.energy_mj += 500'000;
  made.record_xid(DeviceUuid(second), {}, 31, "GPU memory page fault", world.now());
  world.sample(made, pods);
  expect_golden(GetParam(), page_of(made));
}

INSTANTIATE_TEST_SUITE_P(Machines, MeterGolden,
                         testing::Values("hgx-h100", "dgx-a100", "l40s", "t4", "gb200", "dgx1-v100"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Meter, MigDevices) {
  SimWorld world("hgx-h100");
  std::string held;
  {
    auto state = world.edit();
    auto& gpu = state->gpus[0];
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    for (const auto& [profile, start] : {std::pair{9u, 4u}, std::pair{19u, 0u}}) {
      sim::GpuInstance* instance = nullptr;
      sim::ComputeInstance* compute = nullptr;
      ASSERT_EQ(sim::create_gpu_instance(gpu, profile, start, &instance), sim::MigOutcome::kOk);
      ASSERT_EQ(sim::create_compute_instance(gpu, *instance, profile == 9 ? 2 : 0, {}, &compute),
                sim::MigOutcome::kOk);
      // They are created for each instance.
      sim::set_text(compute->uuid, "MIG-" + std::to_string(profile));
      if (profile == 9) run(gpu, 100, 3000, 60, instance->id);
    }
  }
  const std::vector<ContainerDevices> pods = {container(kTrain, "main", {"MIG-9"})};
  auto made = meter();
  world.sample(made, pods);
  world.sample(made, pods);
  expect_golden("hgx-h100-mig", page_of(made));
}

TEST(Meter, PodValuesAddUpToTheDevice) {
  SimWorld world("hgx-h100");
  auto made = meter();
  const DeviceUuid gpu(world.uuid(0));
  for (int round = 0; round < 6; ++round) {
    {
      auto state = world.edit();
      state->gpus[0].utilization_gpu = 50;
      state->gpus[0].energy_mj += 1000;
      // It does not respond for a while.
      state->gpus[0].faults.lost = round == 2 ? 1 : 0;
    }
    world.sample(made, {container(round < 4 ? kTrain : kServe, "main", {gpu.str()})});
  }
  const auto& account = made.usage_accounting().usage_by_device().at(gpu);
  EXPECT_EQ(account.total.millijoules, 5000u) << "since the first sample, that of the silence too";
  EXPECT_EQ(account.departed.millijoules, 3000u);
  EXPECT_EQ(account.pods.at(kServe).millijoules, 2000u);
  EXPECT_EQ(account.total.busy, 4 * 5s) << "of four samples after the first";
}

TEST(Meter, NothingBeforeTheFirstSample) { EXPECT_EQ(page_of(meter()), ""); }

TEST(Meter, SeriesEndWithTheirPodOrDevice) {
  SimWorld world("hgx-h100");
  auto made = meter();
  const std::string gpu = world.uuid(0);
  world.sample(made, {container(kTrain, "main", {gpu})});
  EXPECT_NE(page_of(made).find("pod=\"train\""), std::string::npos);
  world.sample(made, {});
  EXPECT_EQ(page_of(made).find("pod=\"train\""), std::string::npos);
  world.edit()->gpus[0].faults.lost = 1;
  world.sample(made, {});
  const auto page = page_of(made);
  for (const auto& line : text::split(page, '\n')) {
    if (line.starts_with("DCGM_")) {
      EXPECT_EQ(line.find(gpu), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace gpulet::metrics
