#include "agent/resources/mps_controller.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "mps/manager.h"
#include "mps/shared_memory.h"

namespace gpulet::agent {
namespace {

constexpr const char* kPaused = "its MPS control daemon is stopped: the driver is released";

bool is_directory(const char* path) {
  struct stat status{};
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

MpsController::MpsController(Loop& loop, Reporter& reporter, std::function<NvmlDriver*()> driver,
                             std::function<void()> changed)
    : loop_(loop), reporter_(reporter), driver_(std::move(driver)), changed_(std::move(changed)) {}

MpsController::Settings MpsController::settings_of(const config::Config& config) {
  return {.root = is_directory(kMpsMount) ? kMpsMount : config.flags.mps_root,
          .driver_root = config.flags.container_driver_root,
          .host_root = config.flags.mps_root,
          .is_ours = config.gpulet.mps.manage};
}

MpsController::Healths MpsController::apply_daemons(const std::vector<mps::DaemonSpec>& specs,
                                                    const config::Config& config) {
  resource_specs_ = specs;
  if (paused_) {
    Healths stopped;
    for (const auto& spec : specs) stopped[spec.name] = {false, kPaused};
    return stopped;
  }
  apply_settings(config);
  if (settings_.is_ours) {
    run_daemons();
  } else if (!specs.empty()) {
    if (!external_)
      external_ = std::make_unique<mps::ExternalDaemons>(
          loop_, daemon_options(), [this](const std::string& name, const inventory::Health& health) {
            on_daemon_health(name, health);
          });
    external_->apply_specs(specs);
  }
  return resource_healths();
}

void MpsController::fill_sm_partitions(std::vector<mps::DaemonSpec>& specs) const {
  for (auto& spec : specs) {
    if (manager_) manager_->fill_sm_partitions(spec);
  }
}

void MpsController::apply_claim_daemons(const config::Config& config) {
  if (paused_) return;
  apply_settings(config);
  if (settings_.is_ours) run_daemons();
}

// Ends what ran by other settings.
void MpsController::apply_settings(const config::Config& config) {
  auto settings = settings_of(config);
  const bool ours = settings.is_ours;
  const bool moved = settings.root != settings_.root || settings.driver_root != settings_.driver_root ||
                     settings.host_root != settings_.host_root;
  if (manager_ && (!ours || moved)) give_up_daemons();
  if (external_ && (ours || moved || resource_specs_.empty())) {
    external_.reset();
    daemon_health_.clear();
  }
  settings_ = std::move(settings);
  is_applied_ = true;
}

void MpsController::run_daemons() {
  if (ended_) return;
  auto specs = mps::without_held_devices(resource_specs_, claim_specs_);
  // Containers of claims need the host's path.
  if (!settings_.host_root.empty()) specs.insert(specs.end(), claim_specs_.begin(), claim_specs_.end());
  const auto& root = settings_.root;
  // Without daemons there is something to do only if a previous agent left its shared memory.
  if (!manager_ && specs.empty() && !is_shared_memory_mounted(root)) return;
  if (!manager_) manager_ = make_manager();
  std::erase_if(daemon_health_, [&](const auto& known) {
    return mps::is_claim_daemon(known.first) &&
           std::ranges::find(claim_specs_, known.first, &mps::DaemonSpec::name) == claim_specs_.end();
  });
  prepare_shared_memory(specs);
  manager_->apply_specs(std::move(specs));
}

// Of the daemons of resources.
MpsController::Healths MpsController::resource_healths() const {
  if (external_) return external_->daemon_healths();
  Healths healths;
  if (!manager_) return healths;
  for (const auto& spec : resource_specs_) {
    const auto health = manager_->daemon_health(spec.name);
    healths[spec.name] = health.value_or(
        inventory::Health{false, "a claim shares one of its devices by its own MPS control daemon"});
  }
  return healths;
}

Status MpsController::check_claim_daemon(const std::string& name) const {
  if (paused_) return fail(Code::kUnavailable, kPaused);
  if (!is_applied_) return fail(Code::kUnavailable, "its MPS control daemon is not started yet");
  if (!settings_.is_ours) {
    return fail(Code::kUnsupported,
                "gpulet.mps.manage is false: no MPS control daemon is started for the claim");
  }
  if (settings_.host_root.empty()) {
    return fail(Code::kUnsupported,
                "flags.mpsRoot is not set: the claim's MPS control daemon has no directory");
  }
  const auto health = manager_ ? manager_->daemon_health(name) : std::nullopt;
  if (!health) return fail(Code::kUnavailable, "its MPS control daemon is not started yet");
  if (!health->healthy) return fail(Code::kUnavailable, health->reason);
  return {};
}

std::string MpsController::find_holder(const DeviceUuid& device) const {
  auto holder = manager_ ? manager_->find_holder(device) : std::string();
  for (const auto& stopping : stopping_) {
    if (holder.empty()) holder = stopping->find_holder(device);
  }
  if (!holder.empty()) return holder;
  const auto* planned = mps::find_daemon_of(resource_specs_, device);
  return planned == nullptr ? std::string() : planned->name;
}

mps::DaemonOptions MpsController::daemon_options() {
  return {.root = settings_.root,
          .driver_root = settings_.driver_root,
          .host_root = settings_.host_root,
          .protocol_missing = [this, alive = lifetime_.watch()](const std::string& why) {
            if (!alive || std::exchange(program_problem_, why) == why) return;
            // The next plan has protocol 2.
            loop_.post([this, alive] {
              if (alive) changed_();
            });
          }};
}

std::string MpsController::program_problem(const std::string& driver_version) {
  if (std::exchange(asked_version_, driver_version) != driver_version) program_problem_.clear();
  return program_problem_;
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
  unmount_all_shared_memory();
}

std::string MpsController::problem() const {
  if (paused_) return {};
  const auto healths = resource_healths();
  const auto* const unserved = mps::find_unserved_daemon(healths);
  return unserved ? unserved->first + ": " + unserved->second.reason : std::string();
}

std::string MpsController::find_daemon_user(const std::vector<ContainerDevices>& containers) const {
  if (!has_daemons()) return {};
  for (const auto& container : containers) {
    for (const auto& [resource, devices] : container.devices) {
      const bool shared = std::ranges::any_of(manager_->specs(), [&](const mps::DaemonSpec& spec) {
        return std::ranges::count(spec.resources, resource) != 0;
      });
      if (shared && !devices.empty())
        return container.pod.name_space + "/" + container.pod.name + " uses " + resource.str();
    }
  }
  return {};
}

void MpsController::pause_daemons(const std::vector<ContainerDevices>& containers,
                                  std::function<void()> done) {
  if (!has_daemons()) return done();
  if (const auto user = find_daemon_user(containers); !user.empty()) {
    reporter_.report_event(Reporter::Severity::kWarning, "MpsDaemonsInUse",
                           "MPS control daemons keep running while the driver is released: " + user);
    return done();
  }
  paused_ = true;
  stop_daemons(std::move(done));
}

void MpsController::stop_daemons(std::function<void()> done) {
  if (!manager_) return done();
  manager_->stop_all([this, done = std::move(done)] {
    unmount_all_shared_memory();
    done();
  });
}

void MpsController::end_daemons(std::function<void()> done) {
  ended_ = true;
  stop_daemons(std::move(done));
}

bool MpsController::is_shared_memory_mounted(const std::string& root) {
  return mps::shm_is_mounted(mps::shm_directory(root)) || mps::shm_is_mounted(mps::claim_shm_directory(root));
}

void MpsController::prepare_shared_memory(const std::vector<mps::DaemonSpec>& specs) {
  const auto is_of_claim = [](const mps::DaemonSpec& spec) { return mps::is_claim_daemon(spec.name); };
  const auto shm = mps::shm_directory(settings_.root), claim_shm = mps::claim_shm_directory(settings_.root);
  std::ranges::all_of(specs, is_of_claim) ? unmount_shared_memory(shm) : mount_shared_memory(shm);
  if (std::ranges::any_of(specs, is_of_claim)) return mount_shared_memory(claim_shm);
  // A daemon that still stops has its directory there.
  std::error_code error;
  if (std::filesystem::is_empty(claim_shm, error) && !error) unmount_shared_memory(claim_shm);
}

void MpsController::unmount_all_shared_memory() {
  unmount_shared_memory(mps::shm_directory(settings_.root));
  unmount_shared_memory(mps::claim_shm_directory(settings_.root));
}

void MpsController::mount_shared_memory(const std::string& directory) {
  if (mps::shm_is_mounted(directory)) return;
  if (const auto mounted = mps::mount_shm(directory); !mounted) {
    reporter_.report_event(
        Reporter::Severity::kWarning, "MpsSharedMemory",
        mounted.error().full_message() + "; MPS clients share the memory of the directory's file system");
  }
}

void MpsController::unmount_shared_memory(const std::string& directory) {
  if (const auto cleared = mps::unmount_shm(directory); !cleared) {
    reporter_.report_event(Reporter::Severity::kWarning, "MpsSharedMemory", cleared.error().full_message());
  }
}

void MpsController::on_daemon_health(const std::string& name, const inventory::Health& health) {
  const auto before = daemon_health_.find(name);
  if (before != daemon_health_.end() && before->second == health) return;
  const bool was_healthy = before == daemon_health_.end() || before->second.healthy;
  if (health.healthy && !mps::is_claim_daemon(name)) {
    reporter_.report_event(Reporter::Severity::kNormal, "MpsDaemonReady",
                           name + ": its MPS control daemon is ready");
  } else if (!health.healthy && was_healthy && before != daemon_health_.end()) {
    reporter_.report_event(Reporter::Severity::kWarning, "MpsDaemonUnhealthy", name + ": " + health.reason);
  }
  daemon_health_[name] = health;
  loop_.post([this, alive = lifetime_.watch()] {
    if (alive) changed_();
  });
}

}  // namespace gpulet::agent
