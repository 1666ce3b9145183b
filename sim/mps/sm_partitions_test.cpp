#include "sim/mps/sm_partitions.h"

#include <gtest/gtest.h>

namespace gpulet::sim::mps {
namespace {

// An H100: 132 SMs are 16 chunks of 8, and four SMs that no partition gets.
struct PartitionsFixture {
  SmPartitions partitions{{{"GPU-aaaabbbb-1", 132, sms_of_chunk(9)}, {"GPU-old", 80, sms_of_chunk(7)}}};
  // The id, or the refusal.
  std::string add(const std::string& chunks, const std::string& uuid = "GPU-aaaabbbb-1") {
    auto answer = partitions.add_partition(uuid, chunks);
    if (answer.starts_with("Failed")) return answer;
    EXPECT_TRUE(answer.starts_with("Partition ") && answer.ends_with(" created\n")) << answer;
    return answer.substr(10, answer.size() - 19);
  }
};

TEST(SmPartitions, ChunksAreGivenOutOnce) {
  PartitionsFixture f;
  const auto first = f.add("7"), second = f.add("9");
  EXPECT_EQ(first, "GPU-aaaabbbb-1/Dw8PDw8PDwAAAAAAAAAAAAAAAAAAAAAAAAAA");
  EXPECT_NE(first, second);
  EXPECT_EQ(f.add("1"), "Failed to create partition: not enough free chunks\n");
  const auto list = f.partitions.list_partitions();
  EXPECT_NE(list.find("GPU-aaaa   Dw8PDw8PDwAAAAAAAAAAAAAAAAAAAAAAAAAA               7     56 No"),
            std::string::npos)
      << list;
  EXPECT_EQ(f.partitions.remove_partition("GPU-aaaabbbb-1", first.substr(first.find('/') + 1)), "");
  EXPECT_EQ(f.add("7"), first) << "the same chunks have the same id";
}

TEST(SmPartitions, RefusesWhatDoesNotExist) {
  PartitionsFixture f;
  for (const char* chunks : {"0", "17", "x", "-1", ""})
    EXPECT_EQ(f.add(chunks).substr(0, 6), "Failed") << chunks;
  EXPECT_EQ(f.add("1", "GPU-none").substr(0, 6), "Failed");
  EXPECT_EQ(f.add("1", "GPU-old").substr(0, 6), "Failed") << "before Ampere";
  EXPECT_EQ(f.partitions.remove_partition("GPU-aaaabbbb-1", "Dw").substr(0, 6), "Failed");
}

TEST(SmPartitions, AClientNamesItsPartition) {
  PartitionsFixture f;
  const auto id = f.add("7");
  EXPECT_EQ(f.partitions.add_client(id), 56u);
  for (const char* other : {"", "GPU-aaaabbbb-1", "GPU-aaaabbbb-1/", "GPU-none/Dw"})
    EXPECT_FALSE(f.partitions.add_client(other)) << other;
  EXPECT_NE(f.partitions.list_partitions().find(" Yes\n"), std::string::npos);
  const auto part = id.substr(id.find('/') + 1);
  EXPECT_EQ(f.partitions.remove_partition("GPU-aaaabbbb-1", part),
            "Failed to remove partition: it is in use\n");
  f.partitions.remove_client(id);
  EXPECT_EQ(f.partitions.remove_partition("GPU-aaaabbbb-1", part), "");
}

}  // namespace
}  // namespace gpulet::sim::mps
