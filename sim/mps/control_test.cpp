#include "sim/mps/control.h"

#include <gtest/gtest.h>

namespace gpulet::sim::mps {
namespace {

struct ControlFixture {
  pid_t next = 100;
  std::vector<pid_t> ended;
  Control control{{{"GPU-a", true}, {"GPU-b", true}},
                  {.start = [this](uid_t) -> Result<pid_t> { return next++; },
                   .end = [this](pid_t pid) { ended.push_back(pid); }}};
  std::string execute_command(const std::string& line) { return control.execute_command(line); }
};

TEST(MpsControl, ShowsDefaultsLikeTheRealOne) {
  ControlFixture f;
  EXPECT_EQ(f.execute_command("get_default_active_thread_percentage"), "100.0\n");
  EXPECT_EQ(f.execute_command("set_default_active_thread_percentage 25"), "25.0\n");
  EXPECT_EQ(f.execute_command("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(f.execute_command("get_default_device_pinned_mem_limit 0"), "");
  EXPECT_EQ(f.execute_command("set_default_device_pinned_mem_limit 0 4095M"), "");
  EXPECT_EQ(f.execute_command("set_default_device_pinned_mem_limit 1 512M"), "");
  EXPECT_EQ(f.execute_command("get_default_device_pinned_mem_limit 0"), "3G\n");
  EXPECT_EQ(f.execute_command("get_default_device_pinned_mem_limit"), "3G\n");
  EXPECT_EQ(f.execute_command("get_default_device_pinned_mem_limit 1"), "512M\n");
}

TEST(MpsControl, RefusesInvalidCommands) {
  ControlFixture f;
  for (const char* line :
       {"set_default_active_thread_percentage 0", "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage x", "set_default_active_thread_percentage"}) {
    EXPECT_EQ(f.execute_command(line).substr(0, 7), "Invalid") << line;
  }
  for (const char* line :
       {"set_default_device_pinned_mem_limit 2 1G", "set_default_device_pinned_mem_limit 0 1K",
        "set_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit GPU-c", "quit now"}) {
    EXPECT_EQ(f.execute_command(line).substr(0, 7), "Invalid") << line;
  }
  EXPECT_EQ(f.execute_command("dance"), "Unknown command: dance\n");
  EXPECT_EQ(f.execute_command("get_server_status 5"), "Server does not exist\n");
  EXPECT_EQ(f.execute_command("get_default_active_thread_percentage"), "100.0\n");
  EXPECT_FALSE(f.control.is_quitting());
}

TEST(MpsControl, AServerKeepsItsInitialLimits) {
  ControlFixture f;
  f.execute_command("set_default_active_thread_percentage 50");
  EXPECT_EQ(f.execute_command("start_server -uid 1000"), "");
  EXPECT_EQ(f.execute_command("start_server -uid 1000"), "Server already exists\n");
  f.execute_command("set_default_active_thread_percentage 25");
  EXPECT_EQ(f.execute_command("get_server_list"), "100\n");
  EXPECT_EQ(f.execute_command("get_server_status 100"), "ACTIVE\n");
  EXPECT_EQ(f.execute_command("get_active_thread_percentage 100"), "50.0\n");
  EXPECT_EQ(f.execute_command("set_active_thread_percentage 100 30"), "30.0\n");
  EXPECT_EQ(f.execute_command("set_device_pinned_mem_limit 100 0 2G"), "");
  EXPECT_EQ(f.execute_command("get_device_pinned_mem_limit 100 0"), "2G\n");
  EXPECT_EQ(f.execute_command("quit -t 5"), "");
  EXPECT_TRUE(f.control.is_quitting());
  EXPECT_EQ(f.ended, std::vector<pid_t>{100});
}

TEST(MpsControl, AClientGetsTheLowerLimit) {
  ControlFixture f;
  f.execute_command("set_default_active_thread_percentage 60");
  f.execute_command("set_default_device_pinned_mem_limit 0 60G");
  auto allowed = f.control.add_client(0, {.pid = 7, .limits = {.threads = 40, .memory_mib = {{"0", 1000}}}});
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->threads, 40);
  EXPECT_EQ(allowed->memory_mib, (std::map<std::string, std::uint64_t>{{"0", 1000}}));
  allowed = f.control.add_client(0, {.pid = 8, .limits = {.threads = 100, .memory_mib = {{"0", 100000}}}});
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->threads, 60);
  EXPECT_EQ(allowed->memory_mib.at("0"), 61440u);
  EXPECT_EQ(f.execute_command("get_client_list 100"), "7\n8\n");
  EXPECT_EQ(f.control.add_client(1, {.pid = 9, .limits = {}}).error().code(), Code::kUnavailable);
  f.control.remove_client(7);
  f.control.remove_client(8);
  EXPECT_TRUE(f.control.add_client(1, {.pid = 9, .limits = {}}));
  EXPECT_EQ(f.ended, std::vector<pid_t>{100});
}

TEST(MpsControl, ALimitByUuidHasNoEffect) {
  ControlFixture f;
  EXPECT_EQ(f.execute_command("set_default_device_pinned_mem_limit GPU-a 5G"), "");
  EXPECT_EQ(f.execute_command("get_default_device_pinned_mem_limit GPU-a"), "5G\n");
  const auto allowed = f.control.add_client(0, {.pid = 7, .limits = {}});
  ASSERT_TRUE(allowed);
  EXPECT_TRUE(allowed->memory_mib.empty());
}

TEST(MpsControl, LimitsTheClientsOfAServer) {
  ControlFixture f;
  for (std::size_t i = 0; i < kMaxClients; ++i) {
    ASSERT_TRUE(f.control.add_client(0, {.pid = static_cast<pid_t>(1000 + i), .limits = {}}));
  }
  EXPECT_EQ(f.control.add_client(0, {.pid = 1, .limits = {}}).error().code(), Code::kFailedPrecondition);
  f.control.remove_server(100);
  EXPECT_TRUE(f.control.add_client(0, {.pid = 1, .limits = {}}));
}

}  // namespace
}  // namespace gpulet::sim::mps
