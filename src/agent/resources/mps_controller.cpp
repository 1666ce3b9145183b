#include "agent/resources/mps_controller.h"

#include <sys/stat.h>

#include <algorithm>

#include "mps/manager.h"

namespace gpulet::agent {
namespace {

bool is_directory(const char* path) {
  struct stat status{};
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

MpsController::MpsController(Loop& loop, Reporter& reporter, std::function<NvmlDriver*()> driver,
                             std::function<void()> changed)
    : loop_(loop), reporter_(reporter), driver_(std::move(driver)), changed_(std::move(changed)) {}

std::map<std::string, inventory::Health> MpsController::apply_daemons(
    const std::vector<mps::DaemonSpec>& specs, const config::Config& config) {
  if (paused_) {
    std::map<std::string, inventory::Health> stopped;
    for (const auto& spec : specs)
      stopped[spec.name] = {false, "its MPS control daemon is stopped: the driver is released"};
    return stopped;
  }
  const std::string root = is_directory(kMpsMount) ? kMpsMount : config.flags.mps_root;
  const auto& driver_root = config.flags.container_driver_root;
  const auto& host_root = config.flags.mps_root;
  const bool moved = root != root_ || driver_root != driver_root_ || host_root != host_root_;
  const bool ours = config.gpulet.mps.manage;
  if (manager_ && (!ours || moved)) give_up_daemons();
  if (external_ && (ours || moved || specs.empty())) {
    external_.reset();
    daemon_health_.clear();
  }
  root_ = root;
  driver_root_ = driver_root;
  host_root_ = host_root;
  if (!ours) {
    if (specs.empty()) return {};
    if (!external_)
      external_ = std::make_unique<mps::ExternalDaemons>(
          loop_, daemon_options(), [this](const std::string& name, const inventory::Health& health) {
            on_daemon_health(name, health);
          });
    external_->apply_specs(specs);
    return external_->daemon_healths();
  }
  // Without daemons there is something to do only if a previous agent left its shared memory.
  if (!manager_ && specs.empty() && !mps::shm_is_mounted(root)) return {};
  if (!manager_) manager_ = make_manager();
  specs.empty() ? unmount_shared_memory(root) : mount_shared_memory(root);
  manager_->apply_specs(specs);
  return manager_->daemon_healths();
}

mps::DaemonOptions MpsController::daemon_options() const {
  return {.root = root_, .driver_root = driver_root_, .host_root = host_root_};
}

std::unique_ptr<mps::DaemonManager> MpsController::make_manager() {
  const auto set_mode = [driver = driver_](const DeviceUuid& gpu, mps::ComputeMode mode,
                                           std::function<void(Status)> done) {
    auto* nvml = driver();
    if (nvml == nullptr) return done(fail(Code::kUnavailable, "the driver is being initialised"));
    nvml->run_on_gpu<bool>(
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
  return std::make_unique<mps::DaemonManager>(
      loop_, daemon_options(), set_mode,
      [this](const std::string& name, const inventory::Health& health) { on_daemon_health(name, health); });
}

// Those of another root start meanwhile, and wait for their GPUs.
void MpsController::give_up_daemons() {
  stopping_.push_back(std::move(manager_));
  stopping_.back()->stop_all([this, manager = stopping_.back().get(), alive = lifetime_.watch()] {
    loop_.post([this, manager, alive] {
      if (alive) std::erase_if(stopping_, [&](const auto& one) { return one.get() == manager; });
    });
  });
  daemon_health_.clear();
  unmount_shared_memory(root_);
}

std::string MpsController::problem() const {
  if (paused_) return {};
  const auto healths = manager_    ? manager_->daemon_healths()
                       : external_ ? external_->daemon_healths()
                                   : mps::DaemonHealths();
  const auto* const unserved = mps::find_unserved_daemon(healths);
  return unserved ? unserved->first + ": " + unserved->second.reason : std::string();
}

void MpsController::pause_daemons(const std::vector<ContainerDevices>& containers,
                                  std::function<void()> done) {
  if (!has_daemons()) return done();
  for (const auto& container : containers) {
    for (const auto& [resource, devices] : container.devices) {
      const bool shared = std::ranges::any_of(manager_->specs(), [&](const mps::DaemonSpec& spec) {
        return std::ranges::count(spec.resources, resource) != 0;
      });
      if (!shared || devices.empty()) continue;
      reporter_.report_event(
          Reporter::Severity::kWarning, "MpsDaemonsInUse",
          "MPS control daemons keep running while the driver is released: " + container.pod.name_space + "/" +
              container.pod.name + " uses " + resource.str());
      return done();
    }
  }
  paused_ = true;
  stop_daemons(std::move(done));
}

void MpsController::stop_daemons(std::function<void()> done) {
  if (!manager_) return done();
  manager_->stop_all([this, done = std::move(done)] {
    unmount_shared_memory(root_);
    done();
  });
}

void MpsController::mount_shared_memory(const std::string& root) {
  if (mps::shm_is_mounted(root)) return;
  if (const auto mounted = mps::mount_shm(root); !mounted) {
    reporter_.report_event(
        Reporter::Severity::kWarning, "MpsSharedMemory",
        mounted.error().full_message() + "; MPS clients share the memory of the directory's file system");
  }
}

void MpsController::unmount_shared_memory(const std::string& root) {
  if (const auto cleared = mps::unmount_shm(root); !cleared) {
    reporter_.report_event(Reporter::Severity::kWarning, "MpsSharedMemory", cleared.error().full_message());
  }
}

void MpsController::on_daemon_health(const std::string& name, const inventory::Health& health) {
  const auto before = daemon_health_.find(name);
  if (before != daemon_health_.end() && before->second == health) return;
  const bool was_healthy = before == daemon_health_.end() || before->second.healthy;
  if (health.healthy) {
    reporter_.report_event(Reporter::Severity::kNormal, "MpsDaemonReady",
                           name + ": its MPS control daemon is ready");
  } else if (was_healthy && before != daemon_health_.end()) {
    reporter_.report_event(Reporter::Severity::kWarning, "MpsDaemonUnhealthy", name + ": " + health.reason);
  }
  daemon_health_[name] = health;
  loop_.post([this, alive = lifetime_.watch()] {
    if (alive) changed_();
  });
}

}  // namespace gpulet::agent
