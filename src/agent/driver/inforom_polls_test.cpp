// When the agent reads a GPU's flash memory.
#include <gtest/gtest.h>

#include "agent/driver/nvml_driver.h"
#include "nvml/return_codes.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

std::uint64_t validations() {
  std::uint64_t count = 0;
  for (const auto& call : nvml::call_counts())
    if (call.function == "nvmlDeviceValidateInforom") count += call.count;
  return count;
}

TEST(InforomPolls, OnceAfterStartAndAfterEachFault) {
  nvml::SimRoot root(1);
  nvml::LoopThread thread;
  nvml::Collected<health::Evidence> evidence;
  std::unique_ptr<NvmlDriver> driver;
  thread.run_on_loop([&] {
    driver = std::make_unique<NvmlDriver>(thread.loop(), NvmlDriverOptions{.driver_root = root.sim_root()});
    driver->set_events({.evidence = [&](const health::Evidence& one) { evidence.push_value(one); },
                        .changed = [] {},
                        .wait_failed = [](const Error&) {}});
  });
  ASSERT_TRUE(thread.await<Status>([&](auto done) { driver->open_driver(done); }).value());
  const auto snapshot =
      thread.await<Result<inventory::Snapshot>>([&](auto done) { driver->read_snapshot(done); });
  ASSERT_TRUE(snapshot && *snapshot);
  const health::Scope gpu{(*snapshot)->gpus[0].uuid};
  const auto polls = [&](int count) {
    const auto before = validations();
    for (int i = 0; i < count; ++i)
      thread.await<Driver::Evidence>([&](auto done) { driver->poll_device(gpu, done); });
    return validations() - before;
  };
  EXPECT_EQ(polls(3), 1u) << "at the start";
  const auto before = evidence.size();
  sim::post_event(*root.edit_machine(), 0, sim::kEventXid, 63);
  evidence.wait_for_values(before + 1);
  EXPECT_EQ(polls(3), 1u) << "after an XID";
  root.edit_machine()->gpus[0].faults.inforom = 1;
  EXPECT_EQ(polls(3), 0u);
  ASSERT_TRUE(thread.await<Status>([&](auto done) { driver->open_driver(done); }).value());
  ASSERT_TRUE(thread.await<Result<inventory::Snapshot>>([&](auto done) { driver->read_snapshot(done); }));
  EXPECT_EQ(polls(3), 3u) << "while it is corrupted";
  thread.run_on_loop([&] { driver.reset(); });
}

}  // namespace
}  // namespace gpulet::agent
