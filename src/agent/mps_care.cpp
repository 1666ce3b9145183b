#include "agent/mps_care.h"

#include <sys/stat.h>

#include "mps/shm.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;

bool is_folder(const char* path) {
  struct stat status{};
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

MpsCare::MpsCare(Loop& loop, Reporter& reporter, std::function<NvmlDriver*()> driver,
                 std::function<void()> changed)
    : loop_(loop), reporter_(reporter), driver_(std::move(driver)), changed_(std::move(changed)) {}

std::map<std::string, inventory::Health> MpsCare::wants(const std::vector<mps::DaemonSpec>& specs,
                                                        const config::Config& config) {
  const bool ours = config.gpulet.mps.manage;
  const std::string root = is_folder(kMpsMount) ? kMpsMount : config.flags.mps_root;
  // Without a wish, there is something to do only where an agent before this one has left what it had.
  if (!manager_ && (!ours || (specs.empty() && !mps::shm_is_mounted(root)))) return {};
  const auto& driver_root = config.flags.container_driver_root;
  if (manager_ && (!ours || root != root_ || driver_root != driver_root_)) {
    // Those of the former root end; the new ones find their GPUs taken until then, and wait.
    stopping_.push_back(std::move(manager_));
    stopping_.back()->stop([this, manager = stopping_.back().get(), alive = std::weak_ptr(alive_)] {
      loop_.post([this, manager, alive] {
        if (!alive.expired()) std::erase_if(stopping_, [&](const auto& one) { return one.get() == manager; });
      });
    });
    healths_.clear();
    clear(root_);
    if (!ours) return {};
  }
  if (!manager_) {
    root_ = root;
    driver_root_ = driver_root;
    const auto set_mode = [driver = driver_](const DeviceUuid& gpu, mps::ComputeMode mode,
                                             std::function<void(Status)> done) {
      auto* nvml = driver();
      if (nvml == nullptr) return done(fail(Code::kUnavailable, "the driver is being initialised"));
      nvml->about<bool>(
          gpu, "setting the compute mode of", std::chrono::seconds(10),
          [mode](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<bool> {
            GPULET_TRY_ASSIGN(const auto device, session->device(index));
            GPULET_TRY(session->set_compute_mode(device, mode == mps::ComputeMode::kExclusiveProcess
                                                             ? nvml::ComputeMode::kExclusiveProcess
                                                             : nvml::ComputeMode::kDefault));
            return true;
          },
          [done = std::move(done)](const Result<bool>& set) {
            done(set ? Status{} : Status(fail(set.error())));
          });
    };
    manager_ = std::make_unique<mps::Manager>(
        loop_, mps::DaemonOptions{.root = root, .driver_root = driver_root}, set_mode,
        [this](const std::string& name, const inventory::Health& health) { on_health(name, health); });
  }
  specs.empty() ? clear(root) : prepare(root);
  manager_->apply(specs);
  std::map<std::string, inventory::Health> healths;
  for (const auto& spec : specs) {
    healths[spec.name] =
        manager_->health(spec.name).value_or(inventory::Health{false, "its MPS control daemon is starting"});
  }
  return healths;
}

void MpsCare::stop(std::function<void()> done) {
  if (!manager_) return done();
  manager_->stop([this, done = std::move(done)] {
    clear(root_);
    done();
  });
}

void MpsCare::prepare(const std::string& root) {
  if (mps::shm_is_mounted(root)) return;
  if (const auto mounted = mps::mount_shm(root); !mounted) {
    reporter_.event(Severity::kWarning, "MpsSharedMemory",
                    mounted.error().text() + "; MPS clients share the memory of the folder's file system");
  }
}

void MpsCare::clear(const std::string& root) {
  if (const auto cleared = mps::unmount_shm(root); !cleared) {
    reporter_.event(Severity::kWarning, "MpsSharedMemory", cleared.error().text());
  }
}

void MpsCare::on_health(const std::string& name, const inventory::Health& health) {
  const auto before = healths_.find(name);
  if (before != healths_.end() && before->second == health) return;
  const bool was_healthy = before == healths_.end() || before->second.healthy;
  if (health.healthy) {
    reporter_.event(Severity::kNormal, "MpsDaemonReady", name + ": its MPS control daemon serves");
  } else if (was_healthy && before != healths_.end()) {
    reporter_.event(Severity::kWarning, "MpsDaemonUnhealthy", name + ": " + health.reason);
  }
  healths_[name] = health;
  loop_.post([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) changed_();
  });
}

}  // namespace gpulet::agent
