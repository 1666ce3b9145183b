#include "agent/fraction/driver_limits.h"

#include <filesystem>
#include <utility>

#include "agent/driver/memory_limits.h"
#include "agent/fraction/container_cgroup.h"
#include "agent/fraction/dmem_controller.h"
#include "agent/node/devices.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

constexpr uid_t kRoot = 0;

Status no_driver() { return fail(Code::kUnavailable, "there is no driver"); }

}  // namespace

void DriverLimits::follow_config() {
  const auto& settings = node_.config.gpulet.fraction;
  if (!settings.driver_limits || directory_ != settings.limit_dir) socket_.reset();
  problem_.clear();
  if (!service_ || directory_ != settings.limit_dir) {
    // Of limits in force, which the next service clears with their containers.
    if (service_) {
      const auto moved = LimitRecordStore(directory_).move_records(LimitRecordStore(settings.limit_dir));
      if (!moved) log::warning("cannot move the records of memory limits", moved.error());
    }
    directory_ = settings.limit_dir;
    service_.emplace(service_ports(), LimitRecordStore(directory_));
    if (is_driver_there_) service_->restore_limits();
  }
  if (!settings.driver_limits) {
    if (!service_->has_limits()) service_.reset();
    return;
  }
  if (socket_) return;
  auto opened = LimitSocket::open_socket(node_.loop, limit_socket_path(settings), kRoot,
                                         [this](const LimitRequest& request, LimitSocket::Done done) {
                                           service_->answer_request(request, std::move(done));
                                         });
  if (opened) {
    socket_ = std::move(*opened);
    return;
  }
  problem_ = opened.error().full_message();
  node_.reporter->report_event(Reporter::Severity::kWarning, "MemoryLimitSocket",
                               "no container with a GPU starts: " + problem_);
}

void DriverLimits::detach() {
  is_driver_there_ = false;
  socket_.reset();
  service_.reset();
}

void DriverLimits::follow_driver(bool is_there) {
  if (!std::exchange(is_driver_there_, is_there) && is_there && service_) service_->restore_limits();
}

void DriverLimits::on_driver_loaded() {
  if (service_ && is_driver_there_) service_->restore_limits();
}

void DriverLimits::on_pods_read(const Status& result) {
  if (service_) service_->on_pods_read(result);
}

bool DriverLimits::is_in_force(const std::string& container_id, const DeviceUuid& gpu) const {
  return service_ && service_->is_in_force(container_id, gpu);
}

LimitPorts DriverLimits::service_ports() {
  return {
      .loop = node_.loop,
      .find_limits = [this](const std::string& uid,
                            const std::string& container) { return find_limits(uid, container); },
      .refresh_pods =
          [this](const PodRef& starting) {
            if (auto* ledger = ports_.ledger()) ledger->refresh_pods(starting);
          },
      .find_cgroup = [](unsigned pid, const std::string& path) { return find_container_cgroup(pid, path); },
      .has_processes = [](const std::string& cgroup) { return has_processes(cgroup); },
      .watch_end =
          [this](const std::string& cgroup, std::function<void()> ended) {
            return watch_cgroup_end(node_.loop, cgroup, std::move(ended));
          },
      .set_limit = [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit,
                          LimitPorts::Done done) { set_limit(gpu, cgroup, limit, std::move(done)); },
      .clear_limit = [this](const DeviceUuid& gpu, const std::string& cgroup,
                            LimitPorts::Done done) { clear_limit(gpu, cgroup, std::move(done)); },
      .notify = ports_.notify,
      .counts_for_ancestors = [this](const DeviceUuid& gpu) { return !dmem_mount_of(gpu).empty(); },
      .set_pod_limit = [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit,
                              LimitPorts::Done done) { set_pod_limit(gpu, cgroup, limit, std::move(done)); },
      .hold_compute = ports_.hold_compute,
  };
}

ContainerLimits DriverLimits::find_limits(const std::string& pod_uid, const std::string& container) const {
  if (auto* ledger = ports_.ledger()) return ledger->find_limits(pod_uid, container);
  if (node_.client_config) return {};
  return {.state = ContainerLimits::State::kRefused,
          .reason = "the agent has no access to the API server: what Pods request is not known"};
}

std::string DriverLimits::dmem_mount_of(const DeviceUuid& gpu) const {
  const auto* agent = node_.devices->agent();
  const auto snapshot = agent != nullptr ? agent->status().snapshot : nullptr;
  const auto* found = snapshot ? snapshot->find(gpu) : nullptr;
  if (found == nullptr) return {};
  const auto mount = find_dmem_mount();
  return is_counted_by_dmem(mount, found->pci) ? mount : std::string();
}

// Without the controller in the Pod's cgroup, the container's has none either.
void DriverLimits::set_pod_limit(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit,
                                 LimitPorts::Done done) {
  const auto enabled = enable_dmem(dmem_mount_of(gpu), cgroup);
  auto* driver = node_.devices->driver();
  if (enabled && driver != nullptr) return set_pod_memory_limit(*driver, gpu, cgroup, limit, std::move(done));
  node_.loop.post([result = enabled ? no_driver() : enabled, done = std::move(done)] { done(result); });
}

void DriverLimits::set_limit(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit,
                             LimitPorts::Done done) {
  const auto mount = dmem_mount_of(gpu);
  if (const auto enabled = mount.empty() ? Status{} : enable_dmem(mount, cgroup); !enabled)
    return node_.loop.post([enabled, done = std::move(done)] { done(enabled); });
  if (auto* driver = node_.devices->driver())
    return set_memory_limit(*driver, gpu, cgroup, limit, std::move(done));
  node_.loop.post([done = std::move(done)] { done(no_driver()); });
}

void DriverLimits::clear_limit(const DeviceUuid& gpu, const std::string& cgroup, LimitPorts::Done done) {
  auto* driver = node_.devices->driver();
  if (driver == nullptr) return node_.loop.post([done = std::move(done)] { done(no_driver()); });
  const bool is_counted = !dmem_mount_of(gpu).empty();
  clear_memory_limit(
      *driver, gpu, cgroup, [cgroup, is_counted, done = std::move(done)](const Status& cleared) {
        std::error_code ignored;
        if (cleared || std::filesystem::exists(cgroup, ignored)) return done(cleared);
        // Nobody can name it to the driver any more; what the kernel counts has ended with it.
        if (!is_counted)
          log::warning("a cgroup is gone before its memory limit was cleared: the driver may keep the limit",
                       cleared.error());
        done(fail(Code::kNotFound, "the cgroup is gone", cgroup));
      });
}

}  // namespace gpulet::agent
