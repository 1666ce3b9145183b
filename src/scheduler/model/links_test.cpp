#include "scheduler/model/links.h"

#include <gtest/gtest.h>

#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

TEST(Links, ChoosesLikeThePlacement) {
  const auto links = randomly::two_quads();
  randomly::Random random(9);
  for (int at = 0; at < 200; ++at) {
    const GpuSet free = 1 + randomly::random_below(random, 255);
    const auto count = 1 + randomly::random_below(random, static_cast<unsigned>(std::popcount(free)));
    std::vector<DeviceId> available;
    for (unsigned gpu = 0; gpu < 8; ++gpu) {
      if ((free >> gpu & 1) != 0) available.push_back(links->ids[gpu]);
    }
    const auto expected = links->chooser->choose_devices(available, {}, count);
    ASSERT_TRUE(expected);
    const LinkedSet set = choose_linked_gpus(*links, free, count);
    ASSERT_EQ(static_cast<unsigned>(std::popcount(set.gpus)), count);
    for (const DeviceId& id : expected->devices) EXPECT_NE(set.gpus >> std::stoi(id.str()) & 1, 0u);
    const double pairs = count * (count - 1) / 2.0;
    EXPECT_DOUBLE_EQ(set.pair_score, pairs == 0 ? 0 : static_cast<double>(expected->score) / pairs);
  }
}

TEST(Links, CachedResultIsEqual) {
  const auto links = randomly::two_quads();
  const auto others = NodeLinks::make_links(topology::Topology{links->topology});
  LinkChooser chooser;
  for (int again = 0; again < 2; ++again) {
    for (GpuSet free = 1; free < 256; ++free) {
      for (unsigned count = 1; count <= static_cast<unsigned>(std::popcount(free)); ++count) {
        const LinkedSet expected = choose_linked_gpus(*links, free, count);
        const LinkedSet found = chooser.choose_gpus(free % 2 == 0 ? links : others, free, count);
        ASSERT_EQ(found.gpus, expected.gpus);
        ASSERT_EQ(found.pair_score, expected.pair_score);
        ASSERT_EQ(found.free_pair_score, expected.free_pair_score);
      }
    }
  }
}

TEST(Links, ImpossibleChoiceIsEmpty) {
  EXPECT_EQ(choose_linked_gpus(*randomly::two_quads(), 0b11, 3).gpus, 0u);
  EXPECT_EQ(choose_linked_gpus(*NodeLinks::make_links({}), 0b11, 1).gpus, 0u);
}

TEST(Links, DropsGpusBeyondTheMaximum) {
  topology::Topology large;
  large.size = 20;
  large.pairs.resize(400);
  large.numa_nodes.resize(20);
  large.fabrics.resize(20);
  EXPECT_EQ(NodeLinks::make_links(std::move(large))->ids.size(), kMaxGpus);
}

}  // namespace
}  // namespace gpulet::scheduler
