#include "sim/mps/control.h"

#include <gtest/gtest.h>

namespace gpulet::sim::mps {
namespace {

struct Fixture {
  pid_t next = 100;
  std::vector<pid_t> ended;
  Control control{{{"GPU-a", true}, {"GPU-b", true}},
                  {.start = [this](uid_t) -> Result<pid_t> { return next++; },
                   .end = [this](pid_t pid) { ended.push_back(pid); }}};
  std::string answer(const std::string& line) { return control.answer(line); }
};

TEST(MpsControl, KeepsItsDefaultsAndShowsThemAsTheRealOneDoes) {
  Fixture f;
  EXPECT_EQ(f.answer("get_default_active_thread_percentage"), "100.0\n");
  EXPECT_EQ(f.answer("set_default_active_thread_percentage 25"), "25.0\n");
  EXPECT_EQ(f.answer("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(f.answer("get_default_device_pinned_mem_limit 0"), "");
  EXPECT_EQ(f.answer("set_default_device_pinned_mem_limit 0 4095M"), "");
  EXPECT_EQ(f.answer("set_default_device_pinned_mem_limit 1 512M"), "");
  EXPECT_EQ(f.answer("get_default_device_pinned_mem_limit 0"), "3G\n");
  EXPECT_EQ(f.answer("get_default_device_pinned_mem_limit"), "3G\n");
  EXPECT_EQ(f.answer("get_default_device_pinned_mem_limit 1"), "512M\n");
}

TEST(MpsControl, RefusesWhatMakesNoSense) {
  Fixture f;
  for (const char* line :
       {"set_default_active_thread_percentage 0", "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage x", "set_default_active_thread_percentage"}) {
    EXPECT_EQ(f.answer(line).substr(0, 7), "Invalid") << line;
  }
  for (const char* line :
       {"set_default_device_pinned_mem_limit 2 1G", "set_default_device_pinned_mem_limit 0 1K",
        "set_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit GPU-c", "quit now"}) {
    EXPECT_EQ(f.answer(line).substr(0, 7), "Invalid") << line;
  }
  EXPECT_EQ(f.answer("dance"), "Unknown command: dance\n");
  EXPECT_EQ(f.answer("get_server_status 5"), "Server does not exist\n");
  EXPECT_EQ(f.answer("get_default_active_thread_percentage"), "100.0\n");
  EXPECT_FALSE(f.control.quitting());
}

TEST(MpsControl, AServerKeepsTheLimitsThatItBeganWith) {
  Fixture f;
  f.answer("set_default_active_thread_percentage 50");
  EXPECT_EQ(f.answer("start_server -uid 1000"), "");
  EXPECT_EQ(f.answer("start_server -uid 1000"), "Server already exists\n");
  f.answer("set_default_active_thread_percentage 25");
  EXPECT_EQ(f.answer("get_server_list"), "100\n");
  EXPECT_EQ(f.answer("get_server_status 100"), "ACTIVE\n");
  EXPECT_EQ(f.answer("get_active_thread_percentage 100"), "50.0\n");
  EXPECT_EQ(f.answer("set_active_thread_percentage 100 30"), "30.0\n");
  EXPECT_EQ(f.answer("set_device_pinned_mem_limit 100 0 2G"), "");
  EXPECT_EQ(f.answer("get_device_pinned_mem_limit 100 0"), "2G\n");
  EXPECT_EQ(f.answer("quit -t 5"), "");
  EXPECT_TRUE(f.control.quitting());
  EXPECT_EQ(f.ended, std::vector<pid_t>{100});
}

TEST(MpsControl, AClientGetsTheLesserOfItsOwnLimitsAndItsServers) {
  Fixture f;
  f.answer("set_default_active_thread_percentage 60");
  f.answer("set_default_device_pinned_mem_limit 0 60G");
  auto allowed = f.control.attach(0, {.pid = 7, .limits = {.threads = 40, .memory_mib = {{"0", 1000}}}});
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->threads, 40);
  EXPECT_EQ(allowed->memory_mib, (std::map<std::string, std::uint64_t>{{"0", 1000}}));
  allowed = f.control.attach(0, {.pid = 8, .limits = {.threads = 100, .memory_mib = {{"0", 100000}}}});
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->threads, 60);
  EXPECT_EQ(allowed->memory_mib.at("0"), 61440u);
  EXPECT_EQ(f.answer("get_client_list 100"), "7\n8\n");
  EXPECT_EQ(f.control.attach(1, {.pid = 9, .limits = {}}).error().code(), Code::kUnavailable);
  f.control.detach(7);
  f.control.detach(8);
  EXPECT_TRUE(f.control.attach(1, {.pid = 9, .limits = {}}));
  EXPECT_EQ(f.ended, std::vector<pid_t>{100});
}

TEST(MpsControl, ALimitByUuidIsShownAndHoldsNobodyBack) {
  Fixture f;
  EXPECT_EQ(f.answer("set_default_device_pinned_mem_limit GPU-a 5G"), "");
  EXPECT_EQ(f.answer("get_default_device_pinned_mem_limit GPU-a"), "5G\n");
  const auto allowed = f.control.attach(0, {.pid = 7, .limits = {}});
  ASSERT_TRUE(allowed);
  EXPECT_TRUE(allowed->memory_mib.empty());
}

TEST(MpsControl, AServerHasALimitedNumberOfClients) {
  Fixture f;
  for (std::size_t i = 0; i < kMaxClients; ++i) {
    ASSERT_TRUE(f.control.attach(0, {.pid = static_cast<pid_t>(1000 + i), .limits = {}}));
  }
  EXPECT_EQ(f.control.attach(0, {.pid = 1, .limits = {}}).error().code(), Code::kFailedPrecondition);
  f.control.server_ended(100);
  EXPECT_TRUE(f.control.attach(0, {.pid = 1, .limits = {}}));
}

}  // namespace
}  // namespace gpulet::sim::mps
