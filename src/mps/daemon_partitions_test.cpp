// SM partitions on the real process of the simulated control daemon.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "mps/manager.h"
#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

class SmPartitionsTest : public testing::Test {
 protected:
  SmPartitionsTest() { node_.root.use_driver("590.44.01"); }

  // GPUs with 132 SMs, or 16 chunks of 8.
  DaemonSpec make_spec(unsigned gpus, unsigned shares) {
    for (auto& gpu : node_.root.edit_machine()->gpus) {
      gpu.multiprocessors = 132;
      gpu.compute_major = 9;
    }
    auto spec = node_.make_spec(gpus);
    spec.thread_percentage = 100;
    for (const auto& device : spec.devices) {
      for (unsigned n = 0; n < shares; ++n)
        spec.sm_partitions.push_back({DeviceId(device.uuid.str() + "::" + std::to_string(n)), device.uuid});
    }
    return spec;
  }
  void start(DaemonSpec spec) {
    node_.history.clear();
    daemon_ = node_.make_daemon(std::move(spec));
    daemon_->start_daemon();
  }
  bool runs() {
    return node_.wait_until([&] { return daemon_->daemon_health().healthy; });
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> all;
    for (const auto& one : daemon_->spec().sm_partitions) all.push_back(daemon_->sm_partition_id(one.share));
    return all;
  }
  // "threads 100.0 sms 32", or why not.
  std::string client_of(const std::string& partition) const {
    const auto client = sim::mps::attach_client(node_.pipes(), "", "", partition);
    return client ? client->limits_text : client.error().message();
  }
  void stop() {
    bool stopped = false;
    daemon_->stop_daemon([&] { stopped = true; });
    ASSERT_TRUE(node_.wait_until([&] { return stopped; }));
  }
  std::string file() const { return node_.options.root + "/nvidia.com/gpu/.sm-partitions"; }

  TestMpsNode node_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(SmPartitionsTest, SharesGetTheLargestEqualPartitions) {
  start(make_spec(2, 3));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  const auto all = ids();
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 6u);
  for (const auto& id : all) {
    EXPECT_TRUE(client_of(id).ends_with("sms 40")) << client_of(id) << ": five of sixteen chunks";
  }
  EXPECT_NE(client_of(all[0]).find("0=20389M"), std::string::npos) << "memory is limited as without";
  EXPECT_NE(client_of("").find("INVALID_RESOURCE_CONFIGURATION"), std::string::npos);
  stop();
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(SmPartitionsTest, TheNextAgentKeepsThem) {
  const auto spec = make_spec(1, 4);
  start(spec);
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  const auto before = ids();
  const auto pid = node_.pid();
  const auto client = sim::mps::attach_client(node_.pipes(), "", "", before[3]);
  ASSERT_TRUE(client);
  start(spec);
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  EXPECT_EQ(node_.pid(), pid);
  EXPECT_EQ(ids(), before);
  EXPECT_EQ(node_.send_command("lspart").find(" Yes\n") == std::string::npos, false);
  stop();
}

// A daemon of other shares has other partitions.
TEST_F(SmPartitionsTest, OtherSharesNeedAnotherDaemon) {
  start(make_spec(1, 4));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  const auto pid = node_.pid();
  EXPECT_FALSE(serves_same_devices(make_spec(1, 4), make_spec(1, 2)));
  auto with_id = make_spec(1, 4);
  with_id.sm_partitions[0].id = "GPU-x/Dw";
  EXPECT_TRUE(serves_same_devices(make_spec(1, 4), with_id));
  start(make_spec(1, 2));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  EXPECT_NE(node_.pid(), pid);
  EXPECT_TRUE(client_of(ids()[1]).ends_with("sms 64")) << client_of(ids()[1]);
  // The record of its partitions is lost: containers may have them, and the daemon cannot say whose they are.
  std::filesystem::remove(file());
  const auto second = node_.pid();
  start(make_spec(1, 2));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  EXPECT_NE(node_.pid(), second);
  stop();
}

TEST_F(SmPartitionsTest, ADaemonThatCrashesMakesTheSameAgain) {
  node_.options.check_interval = std::chrono::milliseconds(20);
  start(make_spec(2, 2));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  const auto before = ids();
  const auto pid = node_.pid();
  ASSERT_TRUE(sim::mps::crash_daemon(node_.pipes()));
  ASSERT_TRUE(node_.wait_until([&] { return !daemon_->daemon_health().healthy; }));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  EXPECT_NE(node_.pid(), pid);
  EXPECT_EQ(ids(), before) << "containers have them in their environment";
  // Somebody removes one.
  const auto id = before[0].substr(before[0].find('/') + 1);
  EXPECT_EQ(node_.send_command("sm_partition rm " + before[0].substr(0, before[0].find('/')) + " " + id), "");
  ASSERT_TRUE(node_.wait_until([&] { return !daemon_->daemon_health().healthy; }));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  EXPECT_EQ(ids(), before);
  stop();
}

TEST_F(SmPartitionsTest, OtherLimitsLeaveThemAsTheyAre) {
  start(make_spec(1, 2));
  ASSERT_TRUE(runs()) << daemon_->daemon_health().reason;
  const auto before = ids();
  const auto pid = node_.pid();
  auto other = make_spec(1, 2);
  other.memory_limits[0].mebibytes = 4096;
  daemon_->update_spec(other);
  ASSERT_TRUE(node_.wait_until(
      [&] { return node_.send_command("get_default_device_pinned_mem_limit 0") == "4G\n"; }));
  EXPECT_EQ(node_.pid(), pid);
  EXPECT_EQ(ids(), before);
  stop();
}

TEST_F(SmPartitionsTest, WithoutThemNothingIsOffered) {
  struct Row {
    const char* driver;
    int compute_major;
    const char* reason;
  };
  for (const Row& row :
       {Row{"580.65.06", 9, "does not start"}, Row{"590.44.01", 7, "has no SM partitions for 2 shares: "}}) {
    node_.root.use_driver(row.driver);
    auto spec = make_spec(1, 2);
    node_.root.edit_machine()->gpus[0].compute_major = row.compute_major;
    start(spec);
    ASSERT_TRUE(node_.wait_until([&] {
      return daemon_->daemon_health().reason.find(row.reason) != std::string::npos;
    })) << daemon_->daemon_health().reason;
    stop();
  }
}

}  // namespace
}  // namespace gpulet::mps
