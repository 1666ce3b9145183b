#include "agent/observe/usage_store.h"

#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "metrics/usage_accounting.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

const DeviceUuid kKeptGpu("GPU-0");
const PodName kKeptPod{"team", "train"};

// An aggregator with samples of one GPU, 10 s apart.
class Sums {
 public:
  metrics::Aggregator& aggregator() { return aggregator_; }
  void add_sample(std::uint64_t energy, bool is_held = true, bool are_holders_known = true) {
    auto snapshot = std::make_shared<inventory::Snapshot>();
    snapshot->gpus.resize(1);
    snapshot->gpus[0].uuid = kKeptGpu;
    metrics::Sample sample;
    sample.gpus.resize(1);
    sample.gpus[0].uuid = kKeptGpu;
    sample.gpus[0].values = {{Field::kEnergy, energy}, {Field::kGpuUtil, std::uint64_t{40}}};
    metrics::Aggregator::PodContext pods;
    pods.are_holders_known = are_holders_known;
    if (is_held) {
      pods.holders[kKeptGpu] = {{kKeptPod, {"main"}, {}, {{ResourceName("nvidia.com/gpu"), "main", ""}}}};
    }
    now_ += 10s;
    aggregator_.ingest_sample(snapshot, std::move(sample), std::move(pods), now_);
  }
  metrics::UsageAmount of_pod() const {
    const auto& pods = device().pods;
    return pods.contains(kKeptPod) ? pods.at(kKeptPod) : metrics::UsageAmount{};
  }
  const metrics::UsageAccounting::DeviceUsage& device() const {
    return aggregator_.usage_accounting().usage_by_device().at(kKeptGpu);
  }
  metrics::UsageAmount of_namespace() const {
    return aggregator_.usage_accounting().usage_by_namespace().at(kKeptPod.name_space);
  }

 private:
  metrics::Aggregator aggregator_;
  Time now_{1h};
};

std::string make_directory() {
  std::string path = testing::TempDir() + "usage_store.XXXXXX";
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  return path;
}

class UsageStoreTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_ + "/" + kUsageFile; }
  std::unique_ptr<UsageStore> started(Sums& sums, const std::string& boot_id = "boot-1") {
    auto store = std::make_unique<UsageStore>(loop_, boot_id);
    store->set_state_dir(directory_);
    store->attach(sums.aggregator());
    return store;
  }
  // What an agent leaves: 20 s held, 8 s used, 500 mJ.
  void run_first_agent() {
    Sums sums;
    const auto store = started(sums);
    for (const std::uint64_t energy : {1000, 1200, 1500}) {
      sums.add_sample(energy);
      store->save_if_changed();
    }
    ASSERT_EQ(sums.of_pod(), (metrics::UsageAmount{500, 8s, 20s, 12s}));
  }

  const std::string directory_ = make_directory();
  ManualLoop loop_;
};

TEST_F(UsageStoreTest, TheNextAgentGoesOn) {
  run_first_agent();
  Sums sums;
  const auto store = started(sums);
  sums.add_sample(1900);
  EXPECT_EQ(sums.of_pod(), (metrics::UsageAmount{500, 8s, 20s, 12s})) << "nobody's: no agent saw who used it";
  EXPECT_EQ(sums.device().unattributed.millijoules, 400u);
  EXPECT_EQ(sums.device().total.millijoules, 900u);
  sums.add_sample(2000);
  EXPECT_EQ(sums.of_pod(), (metrics::UsageAmount{600, 12s, 30s, 18s}));
  EXPECT_EQ(sums.of_namespace(), sums.of_pod());
  sums.add_sample(2000, false);
  EXPECT_EQ(sums.of_namespace(), (metrics::UsageAmount{600, 12s, 30s, 18s})) << "the Pod has ended";
}

TEST_F(UsageStoreTest, AReloadedDriverAndARebootRestartTheCounters) {
  struct Row {
    const char* name;
    const char* boot_id;
    std::uint64_t energy, wanted;
  };
  for (const auto& row :
       {Row{"the same boot", "boot-1", 1600, 600}, Row{"a reloaded driver", "boot-1", 50, 500},
        Row{"a reboot", "boot-2", 1600, 500}, Row{"an unknown boot", "", 1600, 500}}) {
    std::filesystem::remove(path());
    run_first_agent();
    Sums sums;
    const auto store = started(sums, row.boot_id);
    sums.add_sample(row.energy);
    EXPECT_EQ(sums.device().total.millijoules, row.wanted) << row.name;
    sums.add_sample(row.energy + 10);
    EXPECT_EQ(sums.device().total.millijoules, row.wanted + 10) << row.name;
  }
}

TEST_F(UsageStoreTest, PodsStayUntilTheKubeletListsThem) {
  run_first_agent();
  Sums sums;
  const auto store = started(sums);
  sums.add_sample(1500, false, false);
  EXPECT_EQ(sums.of_pod().held, 20s);
  sums.add_sample(1500);
  EXPECT_EQ(sums.of_pod().held, 30s);
}

TEST_F(UsageStoreTest, AnIdleNodeWritesNothing) {
  {
    Sums sums;
    const auto store = started(sums);
    for (std::uint64_t energy = 1000; energy < 1010; ++energy) {
      sums.add_sample(energy, false);
      store->save_if_changed();
    }
    loop_.advance(1h);
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(UsageStoreTest, ANewDriverGoesOnWithTheSums) {
  Sums first, second;
  const auto store = started(first);
  const auto since = store->since();
  ASSERT_TRUE(since);
  first.add_sample(1000);
  first.add_sample(1100);
  store->save_if_changed();
  store->detach();
  loop_.advance(1s);
  store->attach(second.aggregator());
  second.add_sample(1100);
  EXPECT_EQ(second.of_pod(), (metrics::UsageAmount{100, 4s, 10s, 6s}));
  EXPECT_EQ(store->since(), since);
}

TEST_F(UsageStoreTest, AFileThatCannotBeUsedIsSetAside) {
  const std::string foreign = "gpulet-usage 2\nnew\n";
  ASSERT_TRUE(write_file_atomic(path(), foreign));
  {
    Sums sums;
    const auto store = started(sums);
    EXPECT_TRUE(sums.aggregator().usage_accounting().usage_by_namespace().empty());
    EXPECT_EQ(*read_file(path() + kBrokenUsageSuffix, 4096), foreign);
    EXPECT_FALSE(std::filesystem::exists(path()));
  }
  run_first_agent();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(UsageStoreTest, WithoutAStateDirectoryNothingIsKept) {
  Sums sums;
  UsageStore store(loop_, "boot-1");
  store.attach(sums.aggregator());
  sums.add_sample(1000);
  sums.add_sample(1100);
  store.save_if_changed();
  loop_.advance(1h);
  EXPECT_EQ(sums.of_pod().held, 10s);
}

TEST(UsageStorePace, WritesWhileTheAgentRuns) {
  const std::string directory = make_directory();
  const std::string path = directory + "/" + kUsageFile;
  EpollLoop loop;
  Sums sums;
  UsageStore store(loop, "boot-1", 1ms);
  store.set_state_dir(directory);
  store.attach(sums.aggregator());
  sums.add_sample(1000);
  sums.add_sample(1100);
  store.save_if_changed();
  Subscription look;
  const std::function<void()> check = [&] {
    if (std::filesystem::exists(path)) return loop.stop_loop();
    look = loop.after(5ms, check);
  };
  check();
  const auto limit = loop.after(30s, [&] { loop.stop_loop(); });
  loop.run_loop();
  const auto text = read_file(path, metrics::kMaxUsageBytes);
  ASSERT_TRUE(text) << text.error().full_message();
  const auto record = metrics::parse_usage_record(*text);
  ASSERT_TRUE(record) << record.error().full_message();
  EXPECT_EQ(record->boot_id, "boot-1");
  EXPECT_EQ(record->devices.at(kKeptGpu).pods.at(kKeptPod), (metrics::UsageAmount{100, 4s, 10s, 6s}));
  EXPECT_EQ(record->energy.at(kKeptGpu), 1100u);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet::agent
