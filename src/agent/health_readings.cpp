#include "agent/health_readings.h"

#include <algorithm>

namespace gpulet::agent {
namespace {

using health::Answer;
using health::EccLocation;
using health::Evidence;
using health::FabricState;
using health::Source;
using nvml::MemoryLocation;

// NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*.
constexpr unsigned kRightConfiguration = 1;
constexpr unsigned kNoPartition = 4;
constexpr unsigned kFewLinks = 5;

// By nvml::MemoryLocation.
constexpr std::array<EccLocation, nvml::kMemoryLocations> kLocations = {
    EccLocation::kL1Cache, EccLocation::kL2Cache,      EccLocation::kDram, EccLocation::kRegisters,
    EccLocation::kTexture, EccLocation::kSharedMemory, EccLocation::kCbu,  EccLocation::kSram};
static_assert(kLocations[static_cast<std::size_t>(MemoryLocation::kDram)] == EccLocation::kDram);
static_assert(kLocations[static_cast<std::size_t>(MemoryLocation::kSram)] == EccLocation::kSram);

health::EccReading to_reading(const nvml::UncorrectedEcc& ecc) {
  health::EccReading reading;
  for (std::size_t i = 0; i < kLocations.size(); ++i)
    reading.uncorrected[static_cast<std::size_t>(kLocations[i])] = ecc.at[i].value_or(0);
  reading.sram_threshold_exceeded = ecc.sram_threshold_exceeded.value_or(false);
  return reading;
}

health::NvLinkReading to_reading(const std::vector<nvml::NvLinkHealth>& links) {
  health::NvLinkReading reading;
  for (const auto& link : links) reading.links.push_back({link.index, link.up, link.errors.value_or(0)});
  return reading;
}

health::PcieReading to_reading(const nvml::PcieHealth& pcie) {
  health::PcieReading reading;
  reading.replays = pcie.replays.value_or(0);
  // One without the other says nothing.
  if (pcie.width && pcie.full_width) {
    reading.width = *pcie.width;
    reading.full_width = *pcie.full_width;
  }
  return reading;
}

// What an error says of the GPU as a whole; nullopt: nothing. No call here needs a GPU that is not in use, so
// that a precondition is the reset.
std::optional<Answer> verdict(const Error& error) {
  switch (error.code()) {
    case Code::kDeviceLost:
      return Answer::kLost;
    case Code::kFailedPrecondition:
      return Answer::kResetRequired;
    case Code::kUnavailable:
      return Answer::kDriverAway;
    default:
      return std::nullopt;
  }
}

class Round {
 public:
  Round(const health::Scope& scope, Time now) : scope_(scope), now_(now) {}

  // Asks one source, unless an answer before has settled the round.
  template <class Ask, class Make>
  void take(Source source, const Ask& ask, const Make& make) {
    if (over_) return;
    const auto reading = ask();
    if (reading) {
      tell(make(*reading));
      answered_ = true;
      return;
    }
    miss(source, reading.error());
  }
  void end(Answer answer, std::string why) { over_ = health::HandleReading{answer, std::move(why)}; }

  std::vector<Evidence> finish() {
    // Every one was asked, and none could say.
    if (!over_ && !answered_ && failure_) end(Answer::kSilent, *failure_);
    if (over_) return {{scope_, now_, *over_}};
    evidence_.insert(evidence_.begin(), {scope_, now_, health::HandleReading{}});
    return std::move(evidence_);
  }

 private:
  void tell(health::Body body) { evidence_.push_back({scope_, now_, std::move(body)}); }
  void miss(Source source, const Error& error) {
    if (const auto answer = verdict(error)) return end(*answer, error.text());
    if (error.code() == Code::kUnsupported || error.code() == Code::kPermissionDenied) {
      tell(health::SourceNotice{source, error.text()});
    } else if (!failure_) {
      failure_ = error.text();
    }
  }

  health::Scope scope_;
  Time now_;
  std::vector<Evidence> evidence_;
  std::optional<health::HandleReading> over_;
  std::optional<std::string> failure_;
  bool answered_ = false;
};

void take_memory(Round& round, const nvml::Health& gpu) {
  round.take(
      Source::kRowRemap, [&] { return gpu.row_remap(); },
      [](const nvml::RowRemap& rows) {
        return health::RowRemapReading{rows.pending, rows.failed, rows.correctable, rows.uncorrectable};
      });
  round.take(
      Source::kRetiredPages, [&] { return gpu.retired_pages(); },
      [](const nvml::RetiredPages& pages) {
        return health::RetiredPagesReading{pages.pending, pages.single_bit, pages.double_bit};
      });
  round.take(
      Source::kEcc, [&] { return gpu.uncorrected_ecc(); },
      [](const nvml::UncorrectedEcc& ecc) { return to_reading(ecc); });
}

void take_links_and_power(Round& round, const nvml::Health& gpu) {
  round.take(
      Source::kNvLink, [&] { return gpu.nvlinks(); },
      [](const std::vector<nvml::NvLinkHealth>& links) { return to_reading(links); });
  round.take(
      Source::kPcie, [&] { return gpu.pcie(); },
      [](const nvml::PcieHealth& pcie) { return to_reading(pcie); });
  round.take(
      Source::kViolations, [&] { return gpu.violations(); },
      [](const nvml::Violations& held) { return health::ViolationReading{held.thermal, held.power}; });
  round.take(
      Source::kFabric, [&] { return gpu.fabric(); },
      [](const nvml::FabricHealth& fabric) { return health::FabricReading{fabric_state(fabric)}; });
  round.take(
      Source::kInforom, [&] { return gpu.inforom_valid(); },
      [](bool valid) { return health::InforomReading{valid}; });
  round.take(
      Source::kEnergy, [&] { return gpu.energy(); },
      [](std::uint64_t millijoules) { return health::EnergyReading{millijoules}; });
}

// Whether it is the GPU that it should be; its recovery action, if so.
bool take_identity(Round& round, const nvml::Session& session, nvml::Device device, const DeviceUuid& gpu) {
  const auto uuid = session.uuid(device);
  if (!uuid || *uuid != gpu) {
    const auto handle = uuid ? health::HandleReading{Answer::kLost, "in its place is " + uuid->str()}
                             : handle_of(uuid.error());
    round.end(handle.answer, handle.error);
    return false;
  }
  round.take(
      Source::kRecoveryAction, [&] { return session.recovery_action(device); },
      [](unsigned action) { return health::RecoveryActionReading{action}; });
  return true;
}

std::vector<Evidence> poll_mig_device(const nvml::Session& session, nvml::Device device,
                                      const health::Scope& scope, Time now) {
  const auto processes = session.processes(device);
  if (processes) return {{scope, now, health::ProcessReading{static_cast<unsigned>(processes->size())}}};
  const auto answer = verdict(processes.error());
  if (!answer) return {};
  return {{{scope.gpu}, now, health::HandleReading{*answer, processes.error().text()}}};
}

}  // namespace

FabricState fabric_state(const nvml::FabricHealth& fabric) {
  switch (fabric.registration) {
    case nvml::FabricRegistration::kNone:
      return FabricState::kNone;
    case nvml::FabricRegistration::kNotStarted:
    case nvml::FabricRegistration::kInProgress:
      return FabricState::kJoining;
    case nvml::FabricRegistration::kFailed:
      return FabricState::kFailed;
    case nvml::FabricRegistration::kDone:
      break;
  }
  const unsigned wrong = fabric.wrong_configuration;
  const bool alone = wrong == kNoPartition || wrong == kFewLinks;
  if (fabric.summary == nvml::FabricSummary::kUnhealthy || fabric.route_unhealthy ||
      (wrong > kRightConfiguration && !alone))
    return FabricState::kFailed;
  const bool less = fabric.summary == nvml::FabricSummary::kLimited || fabric.degraded_bandwidth ||
                    fabric.route_recovery || fabric.access_timeout_recovery || alone;
  return less ? FabricState::kDegraded : FabricState::kHealthy;
}

std::vector<Evidence> poll_health(const nvml::Session& session, nvml::Device device,
                                  const health::Scope& scope, Time now) {
  if (!scope.whole()) return poll_mig_device(session, device, scope, now);
  Round round(scope, now);
  if (!take_identity(round, session, device, scope.gpu)) return round.finish();
  const nvml::Health gpu(session, device);
  take_memory(round, gpu);
  take_links_and_power(round, gpu);
  round.take(
      Source::kProcesses, [&] { return session.processes(device); },
      [](const std::vector<nvml::Process>& all) {
        return health::ProcessReading{static_cast<unsigned>(all.size())};
      });
  return round.finish();
}

std::vector<Evidence> ask_health(const nvml::Session& session, nvml::Device device, const DeviceUuid& gpu,
                                 Time now) {
  Round round({gpu}, now);
  if (!take_identity(round, session, device, gpu)) return round.finish();
  // Drivers answer some questions from memory: this one goes to the GPU.
  const auto memory = session.memory_total(device);
  if (!memory && memory.error().code() != Code::kUnsupported) {
    const auto handle = handle_of(memory.error());
    round.end(handle.answer, handle.error);
  }
  return round.finish();
}

health::HandleReading handle_of(const Error& error) {
  return {verdict(error).value_or(Answer::kSilent), error.text()};
}

}  // namespace gpulet::agent
