#include "nvml/session.h"

#include <gtest/gtest.h>

#include <thread>

#include "nvml/events.h"
#include "nvml/test_sim_root.h"

namespace gpulet::nvml {
namespace {

std::shared_ptr<const Session> open(const SimRoot& root) {
  auto session = Session::open(root.path());
  EXPECT_TRUE(session) << session.error().text();
  return session ? *session : nullptr;
}

TEST(Library, NoneSaysWhereItWasLookedFor) {
  const SimRoot root(1);
  const auto library = Library::open(root.path(), "libnvidia-ml-none.so.1");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), Code::kUnavailable);
  const std::string expected = "libnvidia-ml-none.so.1 is neither below " + root.path();
  EXPECT_NE(library.error().message().find(expected), std::string::npos);
  EXPECT_EQ(Library::open("/nowhere", "libnvidia-ml-none.so.1").error().code(), Code::kUnavailable);
}

TEST(Session, NoDriverIsUnavailableAndComesLater) {
  const auto root = SimRoot::unfinished();
  for (int i = 0; i < 3; ++i) {
    const auto session = Session::open(root->path());
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code(), Code::kUnavailable);
    EXPECT_NE(session.error().message().find(root->path()), std::string::npos);
  }
  root->install(GPULET_SIM_LIBRARY, "570.124.06");
  root->edit()->driver.loaded = 0;
  const auto unloaded = Session::open(root->path());
  ASSERT_FALSE(unloaded);
  EXPECT_EQ(unloaded.error().code(), Code::kUnavailable);
  root->edit()->driver.loaded = 1;
  EXPECT_NE(open(*root), nullptr);
}

TEST(Session, LoadsByThePathThatLinksLeadTo) {
  const SimRoot root(1);
  const auto session = open(root);
  EXPECT_EQ(session->library_path(), root.path() + "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06");
  EXPECT_EQ(session->driver_version(), "570.124.06");
}

TEST(Session, RefusesADriverThatIsTooOldAndLeavesNothingBehind) {
  auto machine = sim::small_machine(1);
  sim::set_text(machine->driver.version, "410.129");
  const SimRoot root(*machine);
  const auto session = Session::open(root.path());
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code(), Code::kUnsupported);
  EXPECT_EQ(session.error().message(), "NVIDIA driver 410.129 is too old: 418.81.07 or later is needed");
}

TEST(Session, VersionsCompareNumberByNumber) {
  EXPECT_TRUE(version_at_least("418.81.07", "418.81.07"));
  EXPECT_TRUE(version_at_least("570.124.06", "418.81.07"));
  EXPECT_TRUE(version_at_least("418.152.00", "418.81.07"));
  EXPECT_TRUE(version_at_least("1000.1", "418.81.07"));
  EXPECT_FALSE(version_at_least("418.81.06", "418.81.07"));
  EXPECT_FALSE(version_at_least("418.81", "418.81.07"));
  EXPECT_FALSE(version_at_least("99.999.99", "418.81.07"));
  EXPECT_FALSE(version_at_least("", "418.81.07"));
  EXPECT_FALSE(version_at_least("unknown", "418.81.07"));
}

TEST(Session, EverySymbolIsOptional) {
  auto machine = sim::small_machine(1);
  const SimRoot root(*machine, GPULET_BARE_DRIVER);
  const auto session = open(root);
  ASSERT_NE(session, nullptr);
  const auto gpu = session->device(0);
  ASSERT_TRUE(gpu);
  EXPECT_EQ(*session->name(*gpu), "Tesla V100-SXM2-32GB");
  EXPECT_EQ(session->mig_mode(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->memory_total(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->fabric(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->recovery_action(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->nvlink_active(*gpu, 0).error().code(), Code::kUnsupported);
  // The old wait fills no instances: the event is outside MIG.
  const auto set = session->create_event_set();
  ASSERT_TRUE(set);
  const auto event = session->wait_event(*set, 0);
  ASSERT_TRUE(event && *event);
  EXPECT_EQ((*event)->data, 79u);
  EXPECT_EQ((*event)->gpu_instance, 0xFFFFFFFFu);
  EXPECT_EQ((*event)->compute_instance, 0xFFFFFFFFu);
}

TEST(Session, HandlesOfAnEarlierOneAreRefused) {
  SimRoot root(2);
  auto first = open(root);
  const auto gpu = *first->device(0);
  first.reset();
  const auto second = open(root);
  for (const auto& error :
       {second->uuid(gpu).error(), second->mig_mode(gpu).error(), second->fabric(gpu).error(),
        second->common_ancestor(*second->device(0), gpu).error()}) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(error.message().find("earlier"), std::string::npos);
  }
  EXPECT_TRUE(second->uuid(*second->device(0)));
}

TEST(Session, ErrorsSayWhatHappenedToTheGpu) {
  SimRoot root(2);
  const auto session = open(root);
  const auto gpu = *session->device(1);
  root.edit()->gpus[1].faults.lost = 1;
  EXPECT_EQ(session->uuid(gpu).error().code(), Code::kDeviceLost);
  EXPECT_EQ(session->device(1).error().code(), Code::kDeviceLost);
  EXPECT_TRUE(session->device(0));
  root.edit()->gpus[1].faults.lost = 0;
  EXPECT_EQ(session->device(7).error().code(), Code::kInvalidArgument);
  const std::pair<std::uint32_t, Code> codes[] = {
      {4, Code::kPermissionDenied}, {10, Code::kDeadlineExceeded}, {16, Code::kFailedPrecondition},
      {3, Code::kUnsupported},      {6, Code::kNotFound},          {999, Code::kIo},
      {18, Code::kUnavailable},     {1, Code::kUnavailable},
  };
  for (const auto& [result, code] : codes) {
    root.edit()->gpus[1].faults.error = result;
    EXPECT_EQ(session->uuid(gpu).error().code(), code) << result;
  }
}

TEST(Session, AReloadEndsItAndTheNextOneWorks) {
  SimRoot root(1);
  auto session = open(root);
  {
    auto machine = root.edit();
    sim::unload_driver(*machine);
  }
  EXPECT_EQ(session->device_count().error().code(), Code::kUnavailable);
  {
    auto machine = root.edit();
    sim::load_driver(*machine);
  }
  EXPECT_EQ(session->device_count().error().code(), Code::kUnavailable) << "initialised before the reload";
  EXPECT_TRUE(Session::close(std::move(session), std::chrono::seconds(5)));
  EXPECT_EQ(*open(root)->device_count(), 1u);
}

// Another library version under the same name, while the old one is still held by a call that hangs.
TEST(Session, ANewLibraryIsLoadedBesideAnOldOneThatIsHeld) {
  SimRoot root(1);
  const auto held = open(root);
  root.install(GPULET_SIM_LIBRARY, "580.10");
  const auto fresh = open(root);
  EXPECT_NE(fresh->library_path(), held->library_path());
  EXPECT_EQ(*fresh->device_count(), 1u);
}

TEST(Session, OneThatIsLetGoLateDoesNotShutDownTheNext) {
  SimRoot root(1);
  auto held = open(root);
  {
    auto machine = root.edit();
    sim::unload_driver(*machine);
    sim::load_driver(*machine);
  }
  std::shared_ptr<const Session> stuck = held;  // as a call that does not return has it
  EXPECT_FALSE(Session::close(std::move(held), std::chrono::milliseconds(1)));
  auto fresh = open(root);
  stuck.reset();
  EXPECT_EQ(*fresh->device_count(), 1u);
  fresh.reset();
  EXPECT_TRUE(open(root)->device_count());
}

TEST(Session, OneThatIsLetGoWhileTheNextBeginsDoesNotShutItDown) {
  SimRoot root(1);
  for (int round = 0; round < 200; ++round) {
    auto held = open(root);
    {
      auto machine = root.edit();
      sim::unload_driver(*machine);
      sim::load_driver(*machine);
    }
    std::thread late([&] { held.reset(); });
    const auto fresh = open(root);
    late.join();
    ASSERT_EQ(fresh->device_count().value_or(0), 1u) << "round " << round;
  }
}

TEST(Session, EventsCarryTheirInstances) {
  SimRoot root(2);
  const auto session = open(root);
  const auto set = EventSet::create(session);
  ASSERT_TRUE(set);
  const auto gpu = *session->device(1);
  constexpr std::uint64_t kPowerSourceChange = 0x80;  // of laptops: nvmlEventTypePowerSourceChange
  const auto types = (*set)->add(gpu, kEventXid | kEventDoubleBitEcc | kPowerSourceChange);
  ASSERT_TRUE(types);
  EXPECT_EQ(*types, kEventXid | kEventDoubleBitEcc) << "only those that the GPU supports";
  const auto nothing = session->wait_event((*set)->raw(), 0);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  {
    auto machine = root.edit();
    sim::post_event(*machine, 0, sim::kEventXid, 79);
    sim::post_event(*machine, 1, sim::kEventXid, 94, 3, 1);
  }
  const auto event = session->wait_event((*set)->raw(), 5000);
  ASSERT_TRUE(event && *event);
  EXPECT_EQ((*event)->device, gpu);
  EXPECT_EQ((*event)->data, 94u);
  EXPECT_EQ((*event)->gpu_instance, 3u);
  EXPECT_EQ((*event)->compute_instance, 1u);
}

}  // namespace
}  // namespace gpulet::nvml
