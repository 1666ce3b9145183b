#include "agent/health/evidence_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "agent/driver/nvml_driver.h"
#include "health/state/state_machine.h"
#include "inventory/snapshot.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/state/mig.h"

namespace gpulet::agent {
namespace {

using health::EccLocation;
using health::Evidence;
using health::FabricState;
using health::Reachability;
using health::Source;
using nvml::SimRoot;
using std::chrono::seconds;

// All that NVML is polled for.
constexpr Source kPolled[] = {
    Source::kRecoveryAction, Source::kRowRemap, Source::kRetiredPages, Source::kEcc,
    Source::kNvLink,         Source::kPcie,     Source::kViolations,   Source::kFabric,
    Source::kInforom,        Source::kEnergy,   Source::kProcesses};

// Why that source is absent; nullopt when it is not.
std::optional<std::string> absence(const std::vector<Evidence>& all, Source source) {
  for (const auto& evidence : all) {
    const auto* notice = std::get_if<health::SourceNotice>(&evidence.body);
    if (notice != nullptr && notice->source == source) return notice->unavailable;
  }
  return std::nullopt;
}

class EvidenceReaderTest : public testing::Test {
 protected:
  void SetUp() override { start_driver(*sim::small_machine(2)); }
  void start_driver(const sim::Machine& machine, const char* library = GPULET_SIM_LIBRARY) {
    session_.reset();
    root_ = std::make_unique<SimRoot>(machine, library);
    auto opened = nvml::Session::open_session(root_->sim_root());
    ASSERT_TRUE(opened) << opened.error().full_message();
    session_ = *opened;
    gpu_ = *session_->device(0);
    scope_ = {*session_->device_uuid(gpu_)};
  }
  void set_field(const std::function<void(sim::Gpu&)>& change) { change(root_->edit_machine()->gpus[0]); }
  std::vector<Evidence> poll_evidence() const { return read_health_evidence(*session_, gpu_, scope_, now_); }
  // The only reading of its kind.
  template <class Body>
  Body reading_of() const {
    std::optional<Body> found;
    for (const auto& evidence : poll_evidence()) {
      const auto* body = std::get_if<Body>(&evidence.body);
      if (body == nullptr) continue;
      EXPECT_FALSE(found) << "twice";
      EXPECT_EQ(evidence.scope, scope_);
      EXPECT_EQ(evidence.at, now_);
      found = *body;
    }
    EXPECT_TRUE(found) << "not read";
    return found.value_or(Body{});
  }
  // Of a round that is nothing else.
  Reachability only_answer() const {
    const auto all = poll_evidence();
    EXPECT_EQ(all.size(), 1u);
    const auto* handle = all.empty() ? nullptr : std::get_if<health::HandleReading>(&all[0].body);
    if (handle == nullptr) return Reachability::kReachable;
    EXPECT_FALSE(handle->error.empty());
    return handle->reachability;
  }

  std::unique_ptr<SimRoot> root_;
  std::shared_ptr<const nvml::Session> session_;
  nvml::Device gpu_;
  health::Scope scope_;
  Time now_ = Time(seconds(1000));
};

TEST_F(EvidenceReaderTest, EverySourceReportsOnceOrIsUnavailable) {
  const auto all = poll_evidence();
  ASSERT_FALSE(all.empty());
  ASSERT_TRUE(std::holds_alternative<health::HandleReading>(all[0].body)) << "the handle comes first";
  EXPECT_EQ(std::get<health::HandleReading>(all[0].body).reachability, Reachability::kReachable);
  for (const auto source : kPolled) {
    const auto from_source = [source](const Evidence& e) { return health::source_of(e.body) == source; };
    EXPECT_EQ(std::ranges::count_if(all, from_source), 1) << health::enum_name(source);
    EXPECT_EQ(absence(all, source).has_value(), source == Source::kRetiredPages) << health::enum_name(source);
  }
  EXPECT_EQ(all.size(), std::size(kPolled) + 1);
}

TEST_F(EvidenceReaderTest, RecoveryActionRowsAndPages) {
  set_field([](sim::Gpu& gpu) {
    gpu.recovery_action = 4;
    gpu.remapped_rows.correctable = 5;
    gpu.remapped_rows.uncorrectable = 6;
    gpu.remapped_rows.failed = 1;
  });
  EXPECT_EQ(reading_of<health::RecoveryActionReading>().action, 4u);
  const auto rows = reading_of<health::RowRemapReading>();
  EXPECT_FALSE(rows.pending);
  EXPECT_TRUE(rows.failed);
  EXPECT_EQ(rows.correctable, 5u);
  EXPECT_EQ(rows.uncorrectable, 6u);
  set_field([](sim::Gpu& gpu) {
    gpu.remapped_rows.supported = 0;
    gpu.retired_pages_supported = 1;
    gpu.retired_pages_pending = 1;
    gpu.retired_page_count = 2;
    gpu.retired_pages[0].cause = 1;
    gpu.retired_pages[1].cause = 1;
  });
  const auto pages = reading_of<health::RetiredPagesReading>();
  EXPECT_TRUE(pages.pending);
  EXPECT_EQ(pages.double_bit, 2u);
  EXPECT_EQ(pages.single_bit, 0u);
  EXPECT_TRUE(absence(poll_evidence(), Source::kRowRemap));
}

TEST_F(EvidenceReaderTest, EccKeepsItsLocations) {
  set_field([](sim::Gpu& gpu) {
    for (std::size_t i = 0; i < 8; ++i) gpu.ecc[1][0].by_location[i] = i + 1;
    gpu.sram_threshold = 1;
  });
  const auto ecc = reading_of<health::EccReading>();
  const auto at = [&](EccLocation location) { return ecc.uncorrected[static_cast<std::size_t>(location)]; };
  // By nvml.h's numbers of the places.
  EXPECT_EQ(at(EccLocation::kL1Cache), 1u);
  EXPECT_EQ(at(EccLocation::kL2Cache), 2u);
  EXPECT_EQ(at(EccLocation::kDram), 3u);
  EXPECT_EQ(at(EccLocation::kRegisters), 4u);
  EXPECT_EQ(at(EccLocation::kTexture), 5u);
  EXPECT_EQ(at(EccLocation::kSharedMemory), 6u);
  EXPECT_EQ(at(EccLocation::kCbu), 7u);
  EXPECT_EQ(at(EccLocation::kSram), 8u);
  EXPECT_TRUE(ecc.sram_threshold_exceeded);
  set_field([](sim::Gpu& gpu) { gpu.ecc_current = 0; });
  EXPECT_NE(absence(poll_evidence(), Source::kEcc).value_or("").find("nvmlDeviceGetMemoryErrorCounter"),
            std::string::npos);
}

TEST_F(EvidenceReaderTest, LinksPcieClocksEnergyAndInforom) {
  set_field([](sim::Gpu& gpu) {
    gpu.links[3].active = 0;
    gpu.links[4].crc_flit_errors = 11;
    gpu.pcie_replays = 9;
    gpu.pcie_width = 4;
    gpu.violation_thermal_ns = 3'000'000'000;
    gpu.violation_power_ns = 2'000'000'000;
    gpu.energy_mj = 77;
    gpu.energy_since_ns = ~std::uint64_t{0};
    gpu.faults.inforom = 1;
  });
  const auto links = reading_of<health::NvLinkReading>().links;
  ASSERT_EQ(links.size(), 18u);
  EXPECT_FALSE(links[3].up);
  EXPECT_TRUE(links[4].up);
  EXPECT_EQ(links[4].errors, 11u);
  const auto pcie = reading_of<health::PcieReading>();
  EXPECT_EQ(pcie.replays, 9u);
  EXPECT_EQ(pcie.width, 4u);
  EXPECT_EQ(pcie.full_width, 16u);
  EXPECT_EQ(reading_of<health::ViolationReading>().thermal, seconds(3));
  EXPECT_EQ(reading_of<health::ViolationReading>().power, seconds(2));
  EXPECT_EQ(reading_of<health::EnergyReading>().millijoules, 77u);
  EXPECT_FALSE(reading_of<health::InforomReading>().valid);
  set_field([](sim::Gpu& gpu) {
    for (auto& link : gpu.links) link = {};
    gpu.pcie_width_max = sim::kNotReported;
    gpu.power_usage_mw = sim::kNotReported;
    gpu.inforom_image[0] = '\0';
  });
  EXPECT_EQ(reading_of<health::PcieReading>().width, 0u) << "not less than what it could have";
  EXPECT_EQ(reading_of<health::PcieReading>().full_width, 0u);
  for (const auto source : {Source::kNvLink, Source::kEnergy, Source::kInforom})
    EXPECT_TRUE(absence(poll_evidence(), source)) << health::enum_name(source);
}

TEST_F(EvidenceReaderTest, FabricStates) {
  using nvml::FabricHealth;
  using nvml::FabricRegistration;
  using nvml::FabricSummary;
  const auto done = [](FabricHealth fabric) {
    fabric.registration = FabricRegistration::kDone;
    return fabric_state_of(fabric);
  };
  EXPECT_EQ(fabric_state_of({}), FabricState::kNone);
  EXPECT_EQ(fabric_state_of({FabricRegistration::kNotStarted}), FabricState::kJoining);
  EXPECT_EQ(fabric_state_of({FabricRegistration::kInProgress}), FabricState::kJoining);
  EXPECT_EQ(fabric_state_of({FabricRegistration::kFailed}), FabricState::kFailed);
  EXPECT_EQ(done({}), FabricState::kHealthy);
  EXPECT_EQ(done({.summary = FabricSummary::kHealthy, .wrong_configuration = 1}), FabricState::kHealthy);
  EXPECT_EQ(done({.summary = FabricSummary::kUnhealthy}), FabricState::kFailed);
  EXPECT_EQ(done({.route_unhealthy = true}), FabricState::kFailed);
  EXPECT_EQ(done({.wrong_configuration = 2}), FabricState::kFailed);
  EXPECT_EQ(done({.wrong_configuration = 4}), FabricState::kDegraded);
  EXPECT_EQ(done({.wrong_configuration = 5}), FabricState::kDegraded);
  EXPECT_EQ(done({.summary = FabricSummary::kLimited}), FabricState::kDegraded);
  EXPECT_EQ(done({.degraded_bandwidth = true}), FabricState::kDegraded);
  EXPECT_EQ(done({.route_recovery = true}), FabricState::kDegraded);
  EXPECT_EQ(done({.access_timeout_recovery = true}), FabricState::kDegraded);

  EXPECT_EQ(reading_of<health::FabricReading>().state, FabricState::kNone);
  set_field([](sim::Gpu& gpu) { gpu.fabric.state = 2; });
  EXPECT_EQ(reading_of<health::FabricReading>().state, FabricState::kJoining);
}

TEST_F(EvidenceReaderTest, ProcessesOfAGpuAndOfAMigDevice) {
  std::uint32_t used_instance = 0, free_instance = 0;
  set_field([&](sim::Gpu& gpu) {
    sim::GpuInstance* used = nullptr;
    sim::GpuInstance* free = nullptr;
    sim::ComputeInstance* compute = nullptr;
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &used), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(gpu, *used, 2, std::nullopt, &compute), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 0, &free), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(gpu, *free, 2, std::nullopt, &compute), sim::MigOutcome::kOk);
    used_instance = used->id;
    free_instance = free->id;
    for (const std::uint32_t pid : {71u, 72u}) {
      sim::Process process{};
      process.pid = pid;
      process.gpu_instance = used->id;
      ASSERT_TRUE(sim::add_process(gpu, process));
    }
  });
  EXPECT_EQ(reading_of<health::ProcessReading>().count, 2u);
  EXPECT_TRUE(absence(poll_evidence(), Source::kRowRemap))
      << "the driver does not tell while there are instances";
  const auto whole = scope_;
  unsigned found = 0;
  for (unsigned i = 0; i < 2; ++i) {
    const auto mig = session_->mig_device(gpu_, i);
    ASSERT_TRUE(mig) << mig.error().full_message();
    scope_ = {whole.gpu, *session_->gpu_instance_id(*mig), 0};
    const auto all = read_health_evidence(*session_, *mig, scope_, now_);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].scope, scope_);
    const auto count = std::get<health::ProcessReading>(all[0].body).count;
    EXPECT_EQ(count, scope_.gpu_instance == used_instance ? 2u : 0u);
    found += scope_.gpu_instance == used_instance || scope_.gpu_instance == free_instance ? 1 : 0;
    set_field([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
    const auto lost = read_health_evidence(*session_, *mig, scope_, now_);
    set_field([](sim::Gpu& gpu) { gpu.faults.lost = 0; });
    ASSERT_EQ(lost.size(), 1u);
    EXPECT_EQ(lost[0].scope, whole) << "it is the GPU that is lost";
    EXPECT_EQ(std::get<health::HandleReading>(lost[0].body).reachability, Reachability::kLost);
  }
  EXPECT_EQ(found, 2u);
}

TEST_F(EvidenceReaderTest, AnErrorOfTheWholeGpuEndsTheRound) {
  set_field([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  EXPECT_EQ(only_answer(), Reachability::kLost);
  set_field([](sim::Gpu& gpu) {
    gpu.faults.lost = 0;
    gpu.faults.error = 16;  // NVML_ERROR_RESET_REQUIRED
  });
  EXPECT_EQ(only_answer(), Reachability::kResetRequired);
  set_field([](sim::Gpu& gpu) { gpu.faults.error = 999; });
  EXPECT_EQ(only_answer(), Reachability::kSilent);
  set_field([](sim::Gpu& gpu) { gpu.faults.error = 0; });
  EXPECT_EQ(reading_of<health::HandleReading>().reachability, Reachability::kReachable);
  scope_.gpu = DeviceUuid("GPU-of-another-card");
  EXPECT_EQ(only_answer(), Reachability::kLost);
  sim::unload_driver(*root_->edit_machine());
  EXPECT_EQ(only_answer(), Reachability::kDriverAway);
}

TEST_F(EvidenceReaderTest, AMinimalDriverHasNoSource) {
  start_driver(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto all = poll_evidence();
  EXPECT_EQ(all.size(), std::size(kPolled) + 1);
  EXPECT_EQ(std::get<health::HandleReading>(all[0].body).reachability, Reachability::kReachable);
  for (const auto source : kPolled) {
    EXPECT_NE(absence(all, source).value_or("").find("this driver has no such function"), std::string::npos)
        << health::enum_name(source);
  }
}

// Polls, the rules and the way back together.
TEST_F(EvidenceReaderTest, PolledFaultsWithdrawAGpuUntilPollsClearThem) {
  health::HealthStateMachine machine(health::Policy{}, health::XidFilter("", ""));
  inventory::Snapshot snapshot;
  snapshot.gpus.resize(1);
  snapshot.gpus[0].uuid = scope_.gpu;
  machine.apply_snapshot(snapshot, now_);
  machine.add_evidence({scope_, now_, health::SourceNotice{Source::kProbe, "no program"}});
  const auto after = [&](Duration time) {
    now_ += time;
    for (const auto& evidence : poll_evidence()) machine.add_evidence(evidence);
    machine.advance_to(now_);
    const auto status = machine.device_status(scope_);
    EXPECT_TRUE(status);
    return status.value_or(health::DeviceStatus{}).state;
  };
  EXPECT_EQ(after(seconds(1)), health::DeviceState::kHealthy);
  EXPECT_EQ(machine.unavailable_sources(scope_.gpu).size(), 2u) << "retired pages, and the program";
  set_field([](sim::Gpu& gpu) { gpu.remapped_rows.failed = 1; });
  EXPECT_EQ(after(seconds(1)), health::DeviceState::kQuarantined);
  set_field([](sim::Gpu& gpu) { gpu.remapped_rows.failed = 0; });
  EXPECT_EQ(after(seconds(1)), health::DeviceState::kRecovering);
  EXPECT_EQ(after(seconds(29)), health::DeviceState::kRecovering) << "the checks have not passed for 30 s";
  EXPECT_EQ(after(seconds(2)), health::DeviceState::kHealthy);
  set_field([](sim::Gpu& gpu) { gpu.pcie_width = 8; });
  EXPECT_EQ(after(seconds(1)), health::DeviceState::kDegraded);
  set_field([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  EXPECT_EQ(after(seconds(1)), health::DeviceState::kLost);
}

// As in the agent: on the driver's thread, where one GPU may hang while the others respond.
TEST(EvidenceReaderOnDriverThread, AHangingGpuDelaysNoOther) {
  using Answered = Result<std::vector<Evidence>>;
  SimRoot root(2);
  nvml::LoopThread thread;
  std::unique_ptr<NvmlDriver> driver;
  thread.run_on_loop([&] {
    driver = std::make_unique<NvmlDriver>(thread.loop(),
                                          NvmlDriverOptions{.driver_root = root.sim_root(), .events = false});
  });
  const auto opened = thread.await<Status>([&](auto done) { driver->open_driver(done); });
  ASSERT_TRUE(opened && *opened);
  const auto read =
      thread.await<Result<inventory::Snapshot>>([&](auto done) { driver->read_snapshot(done); });
  ASSERT_TRUE(read && *read);
  const auto gpus = (*read)->gpus;
  ASSERT_EQ(gpus.size(), 2u);
  const auto poll = [&](const DeviceUuid& gpu, Duration limit) {
    auto answer = thread.await<Answered>([&](auto done) {
      driver->run_on_gpu<std::vector<Evidence>>(
          gpu, "polling the health of", limit,
          [gpu](const NvmlDriver::SessionPtr& session, unsigned index) -> Answered {
            GPULET_TRY_ASSIGN(const auto device, session->device(index));
            return read_health_evidence(*session, device, {gpu}, Time(seconds(1)));
          },
          done);
    });
    EXPECT_TRUE(answer) << "about() never answered";
    return answer.value_or(fail(Code::kInternal, "no answer"));
  };
  root.edit_machine()->gpus[0].faults.hang = 1;
  EXPECT_EQ(poll(gpus[0].uuid, std::chrono::milliseconds(50)).error().code(), Code::kDeadlineExceeded);
  const auto other = poll(gpus[1].uuid, seconds(20));
  ASSERT_TRUE(other) << other.error().full_message();
  EXPECT_EQ(other->size(), std::size(kPolled) + 1);
  root.edit_machine()->gpus[0].faults.hang = 0;
  thread.run_on_loop([&] { driver.reset(); });
}

}  // namespace
}  // namespace gpulet::agent
