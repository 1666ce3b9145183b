#include "agent/dra/claim_limits.h"

#include <gtest/gtest.h>

#include "agent/fraction/test_memory_node.h"
#include "dra/claim_record.h"

namespace gpulet::agent {
namespace {

using fraction::LimitGrade;

TEST(ClaimDaemonMeans, AreOfGpusWhoseMemoryADaemonLimits) {
  auto snapshot = make_memory_node(4);
  snapshot.gpus[3].mig_enabled = true;
  config::Config config;
  std::map<std::string, dra::ClaimRecord> records;
  const auto add_claim = [&](const std::string& uid, const DeviceUuid& gpu, std::uint64_t mib) {
    dra::RecordedDaemon daemon{.devices = {gpu}};
    if (mib != 0) daemon.limits_mib[gpu] = mib;
    records[uid] = {.uid = uid, .name_space = "team", .name = uid, .devices = {}, .daemons = {daemon}};
  };
  add_claim("limited", snapshot.gpus[0].uuid, 2000);
  add_claim("unlimited", snapshot.gpus[1].uuid, 0);
  add_claim("ending", snapshot.gpus[2].uuid, 2000);
  records["ending"].ending = true;
  add_claim("cut", snapshot.gpus[3].uuid, 2000);
  add_claim("gone", DeviceUuid("GPU-9"), 2000);
  const auto means = claim_daemon_means(records, snapshot, config);
  ASSERT_EQ(means.size(), 1u);
  EXPECT_EQ(means[0].mps_process_mib, 2000u);
  EXPECT_EQ(fraction::grade_of_node(means[0]).grade, LimitGrade::kMps);
  EXPECT_TRUE(claim_daemon_means({}, snapshot, config).empty());
}

}  // namespace
}  // namespace gpulet::agent
