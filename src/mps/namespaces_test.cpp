#include "mps/namespaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace gpulet::mps {
namespace {

using testing::ElementsAre;

std::string command_of(const Arguments& arguments) { return text::join(arguments, " "); }

TEST(MpsNamespaces, AreSetByArguments) {
  const std::vector<SharedDevice> devices{{DeviceUuid("GPU-a"), 0, false, {}},
                                          {DeviceUuid("GPU-b"), 1, false, {}}};
  EXPECT_EQ(command_of(launch_arguments()), "-d -p 3 -m");
  EXPECT_EQ(command_of(create_server_arguments(devices)),
            "server create gpulet --uid=0 --allowed-devices=GPU-a,GPU-b");
  EXPECT_EQ(command_of(smallest_limit_arguments()),
            "server set gpulet --active-thread-percentage=1 --pinned-memory-limit=1M");
  EXPECT_EQ(command_of(create_namespace_arguments("a_1")), "namespace create a_1 --server=gpulet");
  EXPECT_EQ(command_of(set_namespace_arguments("a_1", {30, 4096})),
            "namespace set a_1 --server=gpulet --active-thread-percentage=30 --pinned-memory-limit=4096M");
  EXPECT_EQ(command_of(set_namespace_arguments("a_1", {30, 0})),
            "namespace set a_1 --server=gpulet --active-thread-percentage=30");
  EXPECT_EQ(command_of(get_threads_arguments("a_1")), "namespace get a_1 gpulet active-thread-percentage");
  EXPECT_EQ(command_of(get_memory_arguments("a_1")), "namespace get a_1 gpulet pinned-memory-limit");
}

TEST(MpsNamespaces, AreKnownByTheHelp) {
  EXPECT_TRUE(lists_namespace_verbs("usage: …\n  create  Make one\n  delete\n  list\n  set\n  get\n"));
  EXPECT_FALSE(lists_namespace_verbs("  create\n  delete\n  list\n  reset\n  get\n"));
  EXPECT_FALSE(lists_namespace_verbs(""));
}

TEST(MpsNamespaces, HoldWhatTheyAnswer) {
  for (const char* text : {"30\n", "30.00\n", " 30.0 "}) EXPECT_TRUE(holds_threads(text, 30)) << text;
  for (const char* text : {"", "31", "30 %", "30.2", "30\n30\n", "Error: no namespace"})
    EXPECT_FALSE(holds_threads(text, 30)) << text;
  for (const char* text : {"4G\n", "4096M", "4194304K"}) EXPECT_TRUE(holds_memory(text, 4096)) << text;
  EXPECT_TRUE(holds_memory("19G", 20'389)) << "rounded down to what is shown";
  for (const char* text : {"", "-", "5G", "4095M", "4G 4G", "4", "18446744073709551615G", "G"})
    EXPECT_FALSE(holds_memory(text, 4096)) << text;
  EXPECT_TRUE(is_server_ready("Ready\n"));
  for (const char* text : {"", "Fault\n", "Ready Ready"}) EXPECT_FALSE(is_server_ready(text)) << text;
}

TEST(MpsNamespaces, ListClientsByTheirFirstColumn) {
  EXPECT_THAT(clients_in("51023,gpulet,0,a_1,python a,b.py\nnone\n7,gpulet,0,a_1,x\n", 9),
              ElementsAre("51023", "7"));
  EXPECT_THAT(clients_in("1,a\n2,a\n3,a\n", 2), ElementsAre("1", "2"));
}

}  // namespace
}  // namespace gpulet::mps
