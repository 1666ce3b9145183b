#include <unistd.h>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "mig/hardware.h"
#include "mig/test_hardware.h"

namespace gpulet::mig {
namespace {

// The driver reports compute profiles only for existing instances.
void forget_compute(State& state) {
  for (auto& profile : state.profiles) {
    const bool exists =
        std::ranges::find(state.instances, profile.id, &GpuInstance::profile) != state.instances.end();
    if (!exists) profile.compute.clear();
  }
}

TEST(Read, ReadsEveryMachine) {
  for (const auto& name : states::machines_with_mig()) {
    SimHardware sim_gpu(name);
    State expected = sim_gpu.on_gpu([](sim::Gpu& gpu) { return states::state_of(gpu); });
    forget_compute(expected);
    EXPECT_EQ(sim_gpu.current_state(), expected) << name;
    // Also with an instance of each profile in turn, with a compute instance on its first slice.
    for (const auto& profile : expected.profiles) {
      ASSERT_FALSE(profile.placements.empty()) << name << " " << profile.name;
      State now = sim_gpu.on_gpu([&](sim::Gpu& gpu) {
        for (auto& instance : gpu.mig.instances) instance = {};
        EXPECT_NE(states::add_instance(gpu, profile.name, profile.placements.back().start, {1}), nullptr);
        return states::state_of(gpu);
      });
      forget_compute(now);
      EXPECT_EQ(sim_gpu.current_state(), now) << name << " " << profile.name;
    }
  }
}

TEST(Read, AGpuWithoutMigIsNotCapable) {
  nvml::SimRoot root(*states::test_machine("t4"));
  const auto session = *nvml::Session::open_session(root.sim_root());
  const auto state = read_mig_state(*session, 0);
  ASSERT_TRUE(state) << state.error().full_message();
  EXPECT_FALSE(state->capable);
  EXPECT_TRUE(state->profiles.empty());
  EXPECT_EQ(state->model, "Tesla T4");
  EXPECT_EQ(read_mig_state(*session, 77).error().code(), Code::kInvalidArgument);
  root.edit_machine()->gpus[0].faults.lost = 1;
  EXPECT_EQ(read_mig_state(*session, 0).error().code(), Code::kDeviceLost);
}

TEST(Read, ReadsProfilesBeforeTheModeIsOn) {
  SimHardware sim_gpu("dgx-a100", false);
  sim_gpu.on_gpu([](sim::Gpu& gpu) { gpu.mig.pending = 1; });
  const State state = sim_gpu.current_state();
  EXPECT_TRUE(state.capable);
  EXPECT_FALSE(state.enabled);
  EXPECT_EQ(state.pending, true);
  EXPECT_FALSE(state.profiles.empty());
  EXPECT_TRUE(state.instances.empty());
}

TEST(Read, HoldersByInstanceWithTheirNames) {
  SimHardware sim_gpu("hgx-h100");
  const auto [low, high] = sim_gpu.on_gpu([](sim::Gpu& gpu) {
    return std::pair(states::add_instance(gpu, "1g.10gb", 0)->id,
                     states::add_instance(gpu, "3g.40gb", 4, {1, 1})->id);
  });
  const auto own = static_cast<unsigned>(::getpid());
  sim_gpu.add_holder(own, high, 0);
  sim_gpu.add_holder(own, high, 1);
  sim_gpu.add_holder(4'100'000'000, high, 1);
  const State state = sim_gpu.current_state();
  ASSERT_EQ(state.instances.size(), 2u);
  const std::string comm(text::trim(*read_file("/proc/self/comm", 64)));
  EXPECT_EQ(state.instances[0].holders, std::vector<std::string>{});
  EXPECT_EQ(
      state.instances[1].holders,
      (std::vector<std::string>{"process " + std::to_string(own) + " (" + comm + ")", "process 4100000000"}));
  EXPECT_EQ(state.holders, std::vector<std::string>{});
  EXPECT_EQ(*read_holders(sim_gpu.session(), 0, high), state.instances[1].holders);
  EXPECT_EQ(*read_holders(sim_gpu.session(), 0, low), std::vector<std::string>{});
  EXPECT_EQ(*read_holders(sim_gpu.session(), 0, std::nullopt), std::vector<std::string>{});
}

TEST(Read, EscapesAProcessName) {
  SimHardware sim_gpu("hgx-h100", false);
  char directory[] = "/tmp/gpulet-proc-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string proc = directory;
  std::filesystem::create_directories(proc + "/4711");
  std::ofstream(proc + "/4711/comm") << "a\x1b[2J\nb\n";
  sim_gpu.add_holder(4711, sim::kNoInstance, sim::kNoInstance);
  const auto state = read_mig_state(sim_gpu.session(), 0, proc);
  std::filesystem::remove_all(proc);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->holders, std::vector<std::string>{"process 4711 (a?[2J?b)"});
}

}  // namespace

namespace {

using Lines = std::vector<std::string>;

TEST(Holders, PodsHoldInstancesSharesAndWholeGpus) {
  const auto machine = states::test_machine("hgx-h100");
  auto& gpu = machine->gpus[0];
  states::set_mig_mode(gpu);
  ASSERT_NE(states::add_instance(gpu, "1g.10gb", 0), nullptr);
  ASSERT_NE(states::add_instance(gpu, "3g.40gb", 4, {1, 1}), nullptr);
  State state = states::state_of(gpu);
  const auto id = [&](std::size_t instance, std::size_t compute, const char* share) {
    return DeviceId(state.instances.at(instance).compute.at(compute).uuid.str() + share);
  };
  state.instances[1].holders = {"process 1"};
  add_pod_holders(state, {{id(1, 0, "::0"), "default/a"},
                          {id(1, 0, "::1"), "default/a"},
                          {id(1, 1, ""), "team/b"},
                          {DeviceId("MIG-of-another"), "default/c"}});
  EXPECT_EQ(state.instances[0].holders, Lines{});
  EXPECT_EQ(state.instances[1].holders,
            (id(1, 0, "") < id(1, 1, "") ? Lines{"process 1", "Pod default/a", "Pod team/b"}
                                         : Lines{"process 1", "Pod team/b", "Pod default/a"}));
  EXPECT_EQ(state.holders, Lines{});
  add_pod_holders(state, {{DeviceId(state.uuid.str() + "::3"), "default/whole"},
                          {DeviceId(state.uuid.str() + "::4"), "default/whole"}});
  EXPECT_EQ(state.holders, Lines{"Pod default/whole"});
  EXPECT_EQ(state.instances[0].holders, Lines{"Pod default/whole"});
}

// A Pod gets an instance while steps are running.
TEST(Holders, AreReadBeforeEachStep) {
  SimHardware sim_gpu("hgx-h100");
  ASSERT_EQ(sim_gpu.plan_and_apply({true, {{"1g.10gb", 7}}}).outcome, Outcome::kDone);
  const State before = sim_gpu.current_state();
  const DeviceId last(before.instances.at(6).compute.at(0).uuid.str());
  int reads = 0;
  const auto hardware = with_pod_holders(sim_gpu.hardware(), [&]() -> Result<PodsByDevice> {
    return ++reads < 4 ? PodsByDevice{} : PodsByDevice{{last, "default/late"}};
  });
  const auto steps = make_plan(*hardware->read_state(), {true, {{"7g.80gb", 1}}});
  ASSERT_TRUE(steps && !steps->is_blocked());
  const Report report = apply_plan(*hardware, *steps);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore) << describe_report(report);
  ASSERT_TRUE(report.error);
  EXPECT_NE(report.error->full_message().find("in use by Pod default/late"), std::string::npos)
      << describe_report(report);
  EXPECT_EQ(current_layout(sim_gpu.current_state()), current_layout(before));
  EXPECT_EQ(sim_gpu.current_state().instances.at(6).compute.at(0).uuid.str(), last.str());
  const auto blocked = make_plan(*hardware->read_state(), {true, {{"7g.80gb", 1}}});
  EXPECT_EQ(blocked->blocked_by, Lines{"Pod default/late, on 1g.10gb at 6"});
}

TEST(Holders, AnErrorIsNotAnEmptyList) {
  SimHardware sim_gpu("hgx-h100", false);
  bool known = true;
  const auto hardware = with_pod_holders(sim_gpu.hardware(), [&]() -> Result<PodsByDevice> {
    if (known) return PodsByDevice{};
    return fail(Code::kUnavailable, "nobody listens", "kubelet.sock");
  });
  const auto steps = make_plan(*hardware->read_state(), {true, {{"7g.80gb", 1}}});
  ASSERT_TRUE(steps);
  known = false;
  const Report report = apply_plan(*hardware, *steps);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore);
  EXPECT_EQ(report.error->code(), Code::kUnavailable);
  EXPECT_FALSE(sim_gpu.current_state().enabled);
}

}  // namespace
}  // namespace gpulet::mig
