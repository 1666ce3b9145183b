#include "nvml/session.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/test_ld_cache.h"
#include "nvml/events.h"
#include "nvml/library.h"
#include "nvml/test_sim_root.h"

namespace gpulet::nvml {
namespace {

std::shared_ptr<const Session> open_driver(const SimRoot& root) {
  auto session = Session::open_session(root.sim_root());
  EXPECT_TRUE(session) << session.error().full_message();
  return session ? *session : nullptr;
}

TEST(Library, ReportsTheDirectoriesSearched) {
  const SimRoot root(1);
  const auto library = Library::load_library(root.sim_root(), {}, "libnvidia-ml-none.so.1");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), Code::kUnavailable);
  const std::string expected = "libnvidia-ml-none.so.1 is neither below " + root.sim_root();
  EXPECT_NE(library.error().message().find(expected), std::string::npos);
  EXPECT_EQ(Library::load_library("/nowhere", {}, "libnvidia-ml-none.so.1").error().code(),
            Code::kUnavailable);
}

TEST(Session, OpensOnceADriverIsInstalled) {
  const auto root = SimRoot::without_library();
  for (int i = 0; i < 3; ++i) {
    const auto session = Session::open_session(root->sim_root());
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code(), Code::kUnavailable);
    EXPECT_NE(session.error().message().find(root->sim_root()), std::string::npos);
  }
  root->install(GPULET_SIM_LIBRARY, "570.124.06");
  root->edit_machine()->driver.loaded = 0;
  const auto unloaded = Session::open_session(root->sim_root());
  ASSERT_FALSE(unloaded);
  EXPECT_EQ(unloaded.error().code(), Code::kUnavailable);
  root->edit_machine()->driver.loaded = 1;
  EXPECT_NE(open_driver(*root), nullptr);
}

TEST(Session, LoadsTheResolvedPath) {
  const SimRoot root(1);
  const auto session = open_driver(root);
  EXPECT_EQ(session->library_path(),
            root.sim_root() + "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06");
  EXPECT_EQ(session->driver_version(), "570.124.06");
}

TEST(Session, CudaVersionIsKnownWhereTheLoaderDoesNotFindLibcuda) {
  SimRoot root(1);
  const auto session = open_driver(root);
  const auto whole = session->cuda_version();
  ASSERT_TRUE(whole);
  {
    auto machine = root.edit_machine();
    machine->answers[machine->answer_count++] = {"nvmlSystemGetCudaDriverVersion_v2", sim::kMaxGpus,
                                                 NVML_ERROR_LIBRARY_NOT_FOUND};
  }
  EXPECT_EQ(session->cuda_version().value_or(0), *whole);
}

TEST(Session, FindsTheLibraryWhereDistributionsPutIt) {
  for (const std::string directory : {"/usr/lib64", "/usr/local/glibc/usr/lib", "/run/opengl-driver/lib",
                                      "/home/kubernetes/bin/nvidia/lib64"}) {
    SimRoot root(1);
    std::filesystem::remove_all(root.sim_root() + "/usr");
    root.install(GPULET_SIM_LIBRARY, "570.124.06", directory);
    const auto session = open_driver(root);
    ASSERT_NE(session, nullptr) << directory;
    EXPECT_EQ(session->library_path(), root.sim_root() + directory + "/libnvidia-ml.so.570.124.06");
  }
}

// Bottlerocket, and a driver installed below a prefix of its own.
TEST(Session, FindsTheLibraryByTheLoadersCache) {
  SimRoot root(1);
  std::filesystem::remove_all(root.sim_root() + "/usr");
  root.install(GPULET_SIM_LIBRARY, "570.124.06", "/opt/driver");
  root.add_root_file("etc/ld.so.cache", test::cache_of("libnvidia-ml.so.1", "/opt/driver/libnvidia-ml.so.1"));
  const auto session = open_driver(root);
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->library_path(), root.sim_root() + "/opt/driver/libnvidia-ml.so.570.124.06");
}

TEST(Session, FindsTheLibraryInGivenDirectories) {
  SimRoot root(1);
  root.install(GPULET_SIM_LIBRARY, "575.57.08", "/opt/driver");
  for (const std::string& directory : {std::string("/opt/driver"), root.sim_root() + "/opt/driver"}) {
    const auto session = Session::open_session(root.sim_root(), {"/none", directory});
    ASSERT_TRUE(session) << session.error().full_message();
    EXPECT_EQ((*session)->library_path(), root.sim_root() + "/opt/driver/libnvidia-ml.so.575.57.08");
  }
}

TEST(Session, RefusesATooOldDriver) {
  auto machine = sim::small_machine(1);
  sim::set_text(machine->driver.version, "410.129");
  const SimRoot root(*machine);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code(), Code::kUnsupported);
  EXPECT_EQ(session.error().message(), "NVIDIA driver 410.129 is too old: 418.81.07 or later is needed");
}

TEST(Session, VersionsCompareNumberByNumber) {
  EXPECT_TRUE(is_version_at_least("418.81.07", "418.81.07"));
  EXPECT_TRUE(is_version_at_least("570.124.06", "418.81.07"));
  EXPECT_TRUE(is_version_at_least("418.152.00", "418.81.07"));
  EXPECT_TRUE(is_version_at_least("1000.1", "418.81.07"));
  EXPECT_FALSE(is_version_at_least("418.81.06", "418.81.07"));
  EXPECT_FALSE(is_version_at_least("418.81", "418.81.07"));
  EXPECT_FALSE(is_version_at_least("99.999.99", "418.81.07"));
  EXPECT_FALSE(is_version_at_least("", "418.81.07"));
  EXPECT_FALSE(is_version_at_least("unknown", "418.81.07"));
}

TEST(Session, EverySymbolIsOptional) {
  auto machine = sim::small_machine(1);
  const SimRoot root(*machine, GPULET_BARE_DRIVER);
  const auto session = open_driver(root);
  ASSERT_NE(session, nullptr);
  const auto gpu = session->device(0);
  ASSERT_TRUE(gpu);
  EXPECT_EQ(*session->product_name(*gpu), "Tesla V100-SXM2-32GB");
  EXPECT_EQ(session->mig_mode(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->memory_total(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->fabric_info(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->recovery_action(*gpu).error().code(), Code::kUnsupported);
  EXPECT_EQ(session->nvlink_active(*gpu, 0).error().code(), Code::kUnsupported);
  // The old wait does not fill the instances, so the event is outside MIG.
  const auto set = session->create_event_set();
  ASSERT_TRUE(set);
  const auto event = session->wait_event(*set, 0);
  ASSERT_TRUE(event && *event);
  EXPECT_EQ((*event)->data, 79u);
  EXPECT_EQ((*event)->gpu_instance, 0xFFFFFFFFu);
  EXPECT_EQ((*event)->compute_instance, 0xFFFFFFFFu);
}

TEST(Session, RefusesHandlesOfAnEarlierSession) {
  SimRoot root(2);
  auto first = open_driver(root);
  const auto gpu = *first->device(0);
  first.reset();
  const auto second = open_driver(root);
  for (const auto& error :
       {second->device_uuid(gpu).error(), second->mig_mode(gpu).error(), second->fabric_info(gpu).error(),
        second->common_ancestor(*second->device(0), gpu).error()}) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(error.message().find("earlier"), std::string::npos);
  }
  EXPECT_TRUE(second->device_uuid(*second->device(0)));
}

TEST(Session, ReturnsTypedErrors) {
  SimRoot root(2);
  const auto session = open_driver(root);
  const auto gpu = *session->device(1);
  root.edit_machine()->gpus[1].faults.lost = 1;
  EXPECT_EQ(session->device_uuid(gpu).error().code(), Code::kDeviceLost);
  EXPECT_EQ(session->device(1).error().code(), Code::kDeviceLost);
  EXPECT_TRUE(session->device(0));
  root.edit_machine()->gpus[1].faults.lost = 0;
  EXPECT_EQ(session->device(7).error().code(), Code::kInvalidArgument);
  const std::pair<std::uint32_t, Code> codes[] = {
      {4, Code::kPermissionDenied}, {10, Code::kDeadlineExceeded}, {16, Code::kResetRequired},
      {3, Code::kUnsupported},      {6, Code::kNotFound},          {999, Code::kIo},
      {18, Code::kUnavailable},     {1, Code::kUnavailable},
  };
  for (const auto& [result, code] : codes) {
    root.edit_machine()->gpus[1].faults.error = result;
    EXPECT_EQ(session->device_uuid(gpu).error().code(), code) << result;
  }
}

TEST(Session, AReloadEndsASessionAndTheNextOneWorks) {
  SimRoot root(1);
  auto session = open_driver(root);
  {
    auto machine = root.edit_machine();
    sim::unload_driver(*machine);
  }
  EXPECT_EQ(session->device_count().error().code(), Code::kUnavailable);
  {
    auto machine = root.edit_machine();
    sim::load_driver(*machine);
  }
  EXPECT_EQ(session->device_count().error().code(), Code::kUnavailable) << "initialised before the reload";
  EXPECT_TRUE(Session::shut_down(std::move(session), std::chrono::seconds(5)));
  EXPECT_EQ(*open_driver(root)->device_count(), 1u);
}

// Installs another library version under the same name while a hanging call holds the old one.
TEST(Session, LoadsANewLibraryWhileAnOldOneIsLoaded) {
  SimRoot root(1);
  const auto held = open_driver(root);
  root.install(GPULET_SIM_LIBRARY, "580.10");
  const auto fresh = open_driver(root);
  EXPECT_NE(fresh->library_path(), held->library_path());
  EXPECT_EQ(*fresh->device_count(), 1u);
}

TEST(Session, ALateReleaseDoesNotShutDownTheNext) {
  SimRoot root(1);
  auto held = open_driver(root);
  {
    auto machine = root.edit_machine();
    sim::unload_driver(*machine);
    sim::load_driver(*machine);
  }
  std::shared_ptr<const Session> stuck = held;  // as a call that never returns holds it
  EXPECT_FALSE(Session::shut_down(std::move(held), std::chrono::milliseconds(1)));
  auto fresh = open_driver(root);
  stuck.reset();
  EXPECT_EQ(*fresh->device_count(), 1u);
  fresh.reset();
  EXPECT_TRUE(open_driver(root)->device_count());
}

TEST(Session, AReleaseDuringTheNextOpenDoesNotShutItDown) {
  SimRoot root(1);
  for (int round = 0; round < 200; ++round) {
    auto held = open_driver(root);
    {
      auto machine = root.edit_machine();
      sim::unload_driver(*machine);
      sim::load_driver(*machine);
    }
    std::thread late([&] { held.reset(); });
    const auto fresh = open_driver(root);
    late.join();
    ASSERT_EQ(fresh->device_count().value_or(0), 1u) << "round " << round;
  }
}

TEST(Session, EventsCarryTheirInstances) {
  SimRoot root(2);
  const auto session = open_driver(root);
  const auto set = EventSet::create_event_set(session);
  ASSERT_TRUE(set);
  const auto gpu = *session->device(1);
  constexpr std::uint64_t kPowerSourceChange = 0x80;  // on laptops: nvmlEventTypePowerSourceChange
  const auto types = (*set)->register_device(gpu, kEventXid | kEventDoubleBitEcc | kPowerSourceChange);
  ASSERT_TRUE(types);
  EXPECT_EQ(*types, kEventXid | kEventDoubleBitEcc) << "only those that the GPU supports";
  const auto nothing = session->wait_event((*set)->raw(), 0);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  {
    auto machine = root.edit_machine();
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
