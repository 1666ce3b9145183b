#include "agent/health/evidence_reader.h"

#include <algorithm>

#include "nvml/return_codes.h"

namespace gpulet::agent {
namespace {

using health::EccLocation;
using health::Evidence;
using health::FabricState;
using health::Reachability;
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
    reading.uncorrected[static_cast<std::size_t>(kLocations[i])] = ecc.at[i];
  reading.sram_threshold_exceeded = ecc.sram_threshold_exceeded.value_or(false);
  return reading;
}

health::NvLinkReading to_reading(const std::vector<nvml::NvLinkHealth>& links) {
  health::NvLinkReading reading;
  for (const auto& link : links) reading.links.push_back({link.index, link.up, link.errors});
  return reading;
}

health::PcieReading to_reading(const nvml::PcieHealth& pcie) {
  health::PcieReading reading;
  reading.replays = pcie.replays;
  // Both or none.
  if (pcie.width && pcie.full_width) {
    reading.width = *pcie.width;
    reading.full_width = *pcie.full_width;
  }
  return reading;
}

class PollRound {
 public:
  PollRound(const health::Scope& scope, Time now) : scope_(scope), now_(now) {}

  // Reads one source, unless the round has already ended.
  template <class Ask, class Make>
  void add_reading(Source source, const Ask& ask, const Make& make) {
    if (over_) return;
    const auto reading = ask();
    if (reading) {
      add_evidence(make(*reading));
      return;
    }
    add_unavailable(source, reading.error());
  }
  void end_early(Reachability answer, std::string why) {
    over_ = health::HandleReading{answer, std::move(why)};
  }

  std::vector<Evidence> finish_round() {
    if (over_) return {{scope_, now_, *over_}};
    evidence_.insert(evidence_.begin(), {scope_, now_, health::HandleReading{}});
    return std::move(evidence_);
  }

 private:
  void add_evidence(health::EvidenceBody body) { evidence_.push_back({scope_, now_, std::move(body)}); }
  void add_unavailable(Source source, const Error& error) {
    if (nvml::is_device_fault(error)) return end_early(health::reachability_of(error), error.full_message());
    const auto meaning = nvml::meaning_of(error);
    const bool lasting = meaning == nvml::Meaning::kNoSuchValue || meaning == nvml::Meaning::kNeedsRight;
    add_evidence(health::SourceNotice{source, error.full_message(), !lasting});
  }

  health::Scope scope_;
  Time now_;
  std::vector<Evidence> evidence_;
  std::optional<health::HandleReading> over_;
};

void read_memory_health(PollRound& round, const nvml::Health& gpu) {
  round.add_reading(
      Source::kRowRemap, [&] { return gpu.row_remap(); },
      [](const nvml::RowRemap& rows) {
        return health::RowRemapReading{rows.pending, rows.failed, rows.correctable, rows.uncorrectable};
      });
  round.add_reading(
      Source::kRetiredPages, [&] { return gpu.retired_pages(); },
      [](const nvml::RetiredPages& pages) {
        return health::RetiredPagesReading{pages.pending, pages.single_bit, pages.double_bit};
      });
  round.add_reading(
      Source::kEcc, [&] { return gpu.uncorrected_ecc(); },
      [](const nvml::UncorrectedEcc& ecc) { return to_reading(ecc); });
}

void read_links_and_power(PollRound& round, const nvml::Health& gpu) {
  round.add_reading(
      Source::kNvLink, [&] { return gpu.nvlinks(); },
      [](const std::vector<nvml::NvLinkHealth>& links) { return to_reading(links); });
  round.add_reading(
      Source::kPcie, [&] { return gpu.pcie(); },
      [](const nvml::PcieHealth& pcie) { return to_reading(pcie); });
  round.add_reading(
      Source::kViolations, [&] { return gpu.violations(); },
      [](const nvml::Violations& held) { return health::ViolationReading{held.thermal, held.power}; });
  round.add_reading(
      Source::kFabric, [&] { return gpu.fabric_health(); },
      [](const nvml::FabricHealth& fabric) { return health::FabricReading{fabric_state_of(fabric)}; });
  round.add_reading(
      Source::kEnergy, [&] { return gpu.energy_consumption(); },
      [](std::uint64_t millijoules) { return health::EnergyReading{millijoules}; });
}

// Whether the handle is the expected GPU; then also reads its recovery action.
bool read_identity(PollRound& round, const nvml::Session& session, nvml::Device device,
                   const DeviceUuid& gpu) {
  const auto uuid = session.device_uuid(device);
  if (!uuid || *uuid != gpu) {
    const auto handle = uuid ? health::HandleReading{Reachability::kLost, "in its place is " + uuid->str()}
                             : handle_reading_of_error(uuid.error());
    round.end_early(handle.reachability, handle.error);
    return false;
  }
  round.add_reading(
      Source::kRecoveryAction, [&] { return session.recovery_action(device); },
      [](unsigned action) { return health::RecoveryActionReading{action}; });
  return true;
}

std::vector<Evidence> poll_mig_device(const nvml::Session& session, nvml::Device device,
                                      const health::Scope& scope, Time now) {
  const auto processes = session.running_processes(device);
  if (processes) return {{scope, now, health::ProcessReading{static_cast<unsigned>(processes->size())}}};
  if (!nvml::is_device_fault(processes.error())) return {};
  return {{{scope.gpu}, now, handle_reading_of_error(processes.error())}};
}

}  // namespace

FabricState fabric_state_of(const nvml::FabricHealth& fabric) {
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

std::vector<Evidence> read_health_evidence(const nvml::Session& session, nvml::Device device,
                                           const health::Scope& scope, Time now, bool with_inforom) {
  if (!scope.is_whole_gpu()) return poll_mig_device(session, device, scope, now);
  PollRound round(scope, now);
  if (!read_identity(round, session, device, scope.gpu)) return round.finish_round();
  const nvml::Health gpu(session, device);
  read_memory_health(round, gpu);
  read_links_and_power(round, gpu);
  if (with_inforom) {
    round.add_reading(
        Source::kInforom, [&] { return gpu.inforom_valid(); },
        [](bool valid) { return health::InforomReading{valid}; });
  }
  round.add_reading(
      Source::kProcesses, [&] { return session.running_processes(device); },
      [](const std::vector<nvml::Process>& all) {
        return health::ProcessReading{static_cast<unsigned>(all.size())};
      });
  return round.finish_round();
}

std::vector<Evidence> read_liveness_evidence(const nvml::Session& session, nvml::Device device,
                                             const DeviceUuid& gpu, Time now) {
  PollRound round({gpu}, now);
  if (!read_identity(round, session, device, gpu)) return round.finish_round();
  // Drivers answer some calls from memory: this one reaches the GPU.
  const auto memory = session.memory_total(device);
  if (!memory && nvml::is_device_fault(memory.error())) {
    const auto handle = handle_reading_of_error(memory.error());
    round.end_early(handle.reachability, handle.error);
  }
  return round.finish_round();
}

health::HandleReading handle_reading_of_error(const Error& error) {
  return {health::reachability_of(error), error.full_message()};
}

}  // namespace gpulet::agent
