// What NVML says, by the agent's own way to it: every call on its worker, with a limit.
#include "agent/health_readings.h"
#include "agent/nvml_driver.h"
#include "doctor/probes.h"
#include "mig/read.h"
#include "nvml/health.h"
#include "nvml/usage.h"

namespace gpulet::doctor {
namespace {

GpuFacts known_of(const inventory::Gpu& gpu) {
  GpuFacts facts;
  facts.index = gpu.index;
  facts.uuid = gpu.uuid.str();
  facts.unreadable = gpu.unreadable;
  facts.mig.enabled = gpu.mig_enabled;
  facts.mig.pending = gpu.mig_pending;
  return facts;
}

void ask_health(const nvml::Health& gpu, GpuFacts& facts) {
  if (const auto rows = gpu.row_remap()) {
    facts.rows_pending = rows->pending;
    facts.rows_failed = rows->failed;
  }
  if (const auto pages = gpu.retired_pages()) facts.pages_pending = pages->pending;
  if (const auto ecc = gpu.uncorrected_ecc())
    facts.sram_threshold = ecc->sram_threshold_exceeded.value_or(false);
  if (const auto valid = gpu.inforom_valid()) facts.inforom_valid = *valid;
  if (const auto pcie = gpu.pcie(); pcie && pcie->width && pcie->full_width) {
    facts.width = *pcie->width;
    facts.full_width = *pcie->full_width;
  }
  if (const auto fabric = gpu.fabric()) facts.fabric = agent::fabric_state(*fabric);
}

void ask_mig(const nvml::Session& session, GpuFacts& facts) {
  if (!facts.mig.enabled) return;
  const auto state = mig::read(session, facts.index);
  if (!state) return;
  facts.mig.instances = static_cast<unsigned>(state->instances.size());
  for (const auto& instance : state->instances) facts.mig.empty_instances += instance.compute.empty() ? 1 : 0;
}

Result<GpuFacts> ask_gpu(const nvml::Session& session, GpuFacts facts) {
  GPULET_TRY_ASSIGN(const auto device, session.device(facts.index));
  facts.recovery_action = session.recovery_action(device).value_or(0);
  ask_health(nvml::Health(session, device), facts);
  const nvml::Usage usage(session, device);
  facts.clock_events = usage.clock_events().value_or(0);
  facts.temperature = usage.temperature().value_or(0);
  ask_mig(session, facts);
  // Readings that fail are left out above; what a GPU that is lost says of itself must not be.
  const auto memory = session.memory_total(device);
  if (!memory && memory.error().code() != Code::kUnsupported) facts.unreadable = memory.error();
  return facts;
}

// One round: open, read, then each GPU that can be read.
class Round {
 public:
  using Done = std::function<void(Result<Driver>)>;

  Round(Loop& loop, const std::string& driver_root, const std::vector<std::string>& sys_roots)
      : driver_(loop, {.driver_root = driver_root,
                       .sys_roots = sys_roots,
                       .call_timeout = kProbeLimit,
                       .events = false}) {}

  void start(Done done) {
    done_ = std::move(done);
    driver_.open([this](const Status& opened) {
      if (!opened) return done_(fail(opened.error()));
      driver_.read([this](const Result<inventory::Snapshot>& snapshot) {
        if (!snapshot) return done_(fail(snapshot.error()));
        ask(*snapshot);
      });
    });
  }

 private:
  void ask(const inventory::Snapshot& snapshot) {
    found_.version = snapshot.driver.version;
    for (const auto& gpu : snapshot.gpus) found_.gpus.push_back(known_of(gpu));
    waiting_ = 1;
    for (std::size_t i = 0; i < found_.gpus.size(); ++i) {
      const auto& gpu = found_.gpus[i];
      if (gpu.unreadable) continue;
      ++waiting_;
      driver_.about<GpuFacts>(
          snapshot.gpus[i].uuid, "asking", kProbeLimit,
          [gpu](const agent::NvmlDriver::SessionPtr& session, unsigned) { return ask_gpu(*session, gpu); },
          [this, i](Result<GpuFacts> facts) {
            if (facts) found_.gpus[i] = std::move(*facts);
            if (!facts) found_.gpus[i].unreadable = facts.error();
            answered();
          });
    }
    answered();
  }
  void answered() {
    if (--waiting_ == 0) done_(std::move(found_));
  }

  agent::NvmlDriver driver_;
  Done done_;
  Driver found_;
  std::size_t waiting_ = 0;
};

}  // namespace

Result<Driver> ask_driver(Prober& prober, const std::string& driver_root,
                          const std::vector<std::string>& sys_roots) {
  Round round(prober.loop(), driver_root, sys_roots);
  return prober.on_loop<Driver>("the driver", 4 * kProbeLimit,
                                [&](auto done) { round.start(std::move(done)); });
}

}  // namespace gpulet::doctor
