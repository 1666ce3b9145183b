#include "agent/dra/claim_limits.h"

#include <gtest/gtest.h>

#include "agent/fraction/test_memory_node.h"

namespace gpulet::agent {
namespace {

TEST(ClaimDemandNode, HasTheMemoryAndTheMeansOfTheGpus) {
  auto snapshot = make_memory_node(2);
  snapshot.gpus[1].memory = {};
  config::Config config;
  config.gpulet.fraction.on_exceeded = config::ExceededAction::kWarn;
  const auto node = demand_node(snapshot, config);
  EXPECT_EQ(node.memory_of(snapshot.gpus[0].uuid), snapshot.gpus[0].memory);
  EXPECT_EQ(node.memory_of(snapshot.gpus[1].uuid), Bytes{});
  EXPECT_EQ(node.memory_of(DeviceUuid("GPU-9")), Bytes{});
  ASSERT_EQ(node.means.size(), 2u);
  EXPECT_EQ(node.means, claim_limit_means(snapshot, config));
  EXPECT_EQ(node.means.at(snapshot.gpus[0].uuid).no_audit,
            "gpulet.fraction.onExceeded is warn: excess is reported, not ended");
}

}  // namespace
}  // namespace gpulet::agent
