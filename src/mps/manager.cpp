#include "mps/manager.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "mps/plan.h"
#include "mps/shared_memory.h"

namespace gpulet::mps {
const DaemonHealths::value_type* find_unserved_daemon(const DaemonHealths& healths) {
  const auto serves = [](const auto& one) { return one.second.healthy; };
  return healths.empty() || std::ranges::any_of(healths, serves) ? nullptr : &*healths.begin();
}

DaemonManager::DaemonManager(Loop& loop, DaemonOptions options, SetComputeMode set_compute_mode,
                             HealthCallback health)
    : loop_(loop),
      options_(std::move(options)),
      set_compute_mode_(std::move(set_compute_mode)),
      health_callback_(std::move(health)) {}

DaemonManager::~DaemonManager() = default;

void DaemonManager::apply_specs(std::vector<DaemonSpec> specs) {
  desired_ = std::move(specs);
  if (!std::exchange(looked_for_former_, true)) stop_former_daemons();
  reconcile_daemons();
}

void DaemonManager::stop_all(std::function<void()> done) {
  stopped_ = std::move(done);
  apply_specs({});
}

bool DaemonManager::is_desired(const Daemon& daemon) const {
  return std::ranges::any_of(
      desired_, [&](const DaemonSpec& spec) { return serves_same_devices(spec, daemon.spec()); });
}

// Two daemons would conflict over a GPU or a directory.
bool DaemonManager::waits_for_stop(const DaemonSpec& spec) const {
  return std::ranges::any_of(stopping_, [&](const auto& daemon) {
    if (daemon->spec().name == spec.name) return true;
    return std::ranges::any_of(spec.devices, [&](const SharedDevice& device) {
      return std::ranges::any_of(daemon->spec().devices,
                                 [&](const SharedDevice& other) { return other.uuid == device.uuid; });
    });
  });
}

void DaemonManager::reconcile_daemons() {
  std::vector<std::string> gone;
  for (const auto& [name, daemon] : daemons_) {
    if (!is_desired(*daemon)) gone.push_back(name);
  }
  for (const auto& name : gone) stop_daemon(name);
  for (const auto& spec : desired_) {
    const auto running = daemons_.find(spec.name);
    if (running != daemons_.end()) {
      running->second->update_spec(spec);
    } else if (!waits_for_stop(spec)) {
      start_daemon(spec);
    } else {
      health_callback_(spec.name, *daemon_health(spec.name));
    }
  }
  update_ready_file();
  if (!stopped_ || !daemons_.empty() || !stopping_.empty()) return;
  loop_.post([done = std::exchange(stopped_, nullptr)] { done(); });
}

void DaemonManager::start_daemon(const DaemonSpec& spec) {
  DaemonOptions options = options_;
  options.seed += ++started_;
  auto& daemon = daemons_[spec.name];
  daemon = std::make_unique<Daemon>(
      loop_, spec, options, set_compute_mode_,
      [this, name = spec.name](const inventory::Health& health) { on_daemon_health(name, health); });
  daemon->start_daemon();
}

void DaemonManager::stop_daemon(const std::string& name) {
  auto daemon = std::move(daemons_.at(name));
  daemons_.erase(name);
  log::info("stopping an MPS control daemon", {{"daemon", name}});
  await_stop(std::move(daemon));
}

// Directories are "<domain>/<resource>", with MIG devices below, and "claims/<uid>". Directories that
// containers can write to are not searched.
void DaemonManager::stop_former_daemons() {
  constexpr int kResource = 1;
  constexpr int kDeepest = 3;
  std::error_code error;
  std::vector<std::string> names;
  auto entry = std::filesystem::recursive_directory_iterator(options_.root, error);
  for (; !error && entry != std::filesystem::end(entry); entry.increment(error)) {
    const auto name = entry->path().filename();
    const bool of_containers = entry.depth() == 0 ? name == "shm" || name == "claim-shm"
                                                  : entry.depth() > kResource &&
                                                        (name == "pipe" || name == "pipe3" || name == "log");
    if (of_containers || entry.depth() >= kDeepest) entry.disable_recursion_pending();
    if (name != ".started") continue;
    names.push_back(std::filesystem::relative(entry->path().parent_path(), options_.root, error).string());
  }
  for (const auto& name : names) {
    if (std::ranges::any_of(desired_, [&](const DaemonSpec& spec) { return spec.name == name; })) continue;
    auto spec = read_former_daemon(options_.root, name);
    if (!spec) continue;
    log::info("stopping an MPS control daemon of an earlier agent", {{"daemon", name}});
    await_stop(std::make_unique<Daemon>(loop_, std::move(*spec), options_, set_compute_mode_,
                                        [](const inventory::Health&) {}));
  }
}

void DaemonManager::await_stop(std::unique_ptr<Daemon> daemon) {
  Daemon* const raw = daemon.get();
  stopping_.push_back(std::move(daemon));
  // Posted, because `done` may be called immediately, and the daemon must not be destroyed inside its own
  // call.
  raw->stop_daemon([this, raw, alive = lifetime_.watch()] {
    loop_.post([this, raw, alive] {
      if (!alive) return;
      std::erase_if(stopping_, [raw](const auto& stopped) { return stopped.get() == raw; });
      reconcile_daemons();
    });
  });
}

std::optional<inventory::Health> DaemonManager::daemon_health(const std::string& name) const {
  if (const auto found = daemons_.find(name); found != daemons_.end()) return found->second->daemon_health();
  if (std::ranges::none_of(desired_, [&](const DaemonSpec& spec) { return spec.name == name; }))
    return std::nullopt;
  return inventory::Health{false, "the MPS control daemon of " + name + " waits for another to stop"};
}

DaemonHealths DaemonManager::daemon_healths() const {
  DaemonHealths healths;
  for (const auto& spec : desired_) healths.emplace(spec.name, *daemon_health(spec.name));
  return healths;
}

void DaemonManager::fill_sm_partitions(DaemonSpec& spec) const {
  const auto found = daemons_.find(spec.name);
  if (found == daemons_.end() || !found->second->daemon_health().healthy) return;
  for (auto& partition : spec.sm_partitions) partition.id = found->second->sm_partition_id(partition.share);
}

std::string DaemonManager::find_holder(const DeviceUuid& device) const {
  const auto serves = [&](const Daemon& daemon) {
    return find_daemon_of({&daemon.spec(), 1}, device) != nullptr;
  };
  for (const auto& daemon : stopping_) {
    if (serves(*daemon)) return daemon->spec().name;
  }
  for (const auto& [name, daemon] : daemons_) {
    if (serves(*daemon)) return name;
  }
  return {};
}

Daemon* DaemonManager::find_daemon(const DeviceUuid& device) {
  for (const auto& [name, daemon] : daemons_) {
    if (find_daemon_of({&daemon->spec(), 1}, device) != nullptr) return daemon.get();
  }
  return nullptr;
}

void DaemonManager::on_daemon_health(const std::string& name, const inventory::Health& health) {
  update_ready_file();
  health_callback_(name, health);
}

// NVIDIA's probes and plugin look for this file: all daemons of resources run, even if there are none.
void DaemonManager::update_ready_file() {
  const bool ready = !stopped_ && std::ranges::all_of(desired_, [&](const DaemonSpec& spec) {
    if (is_claim_daemon(spec.name)) return true;
    const auto found = daemons_.find(spec.name);
    return found != daemons_.end() && found->second->daemon_health().healthy;
  });
  if (ready_ == ready) return;
  const std::string path = ready_file(options_.root);
  if (!ready) {
    ::unlink(path.c_str());
  } else if (const auto written = write_file_atomic(path, ""); !written) {
    log::warning("cannot write the MPS ready file", written.error());
    return;
  }
  ready_ = ready;
}

Result<std::vector<std::string>> remove_leftovers(const std::string& root) {
  for (const auto& directory : {shm_directory(root), claim_shm_directory(root)})
    GPULET_TRY(unmount_shm(directory));
  std::vector<std::string> removed;
  for (const auto& path : {shm_directory(root), claim_shm_directory(root), ready_file(root),
                           root + "/nvidia.com", root + "/claims"}) {
    std::error_code error;
    // libstdc++ removes by descriptors, so it does not follow a directory that becomes a link
    // meanwhile.
    const auto count = std::filesystem::remove_all(path, error);
    if (error) return fail(errno_error("cannot remove", error.value(), path));
    if (count > 0) removed.push_back(path);
  }
  return removed;
}

}  // namespace gpulet::mps
