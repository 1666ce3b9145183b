#include "agent/node/agent.h"

#include <algorithm>

#include "agent/health/health_controller.h"
#include "base/device_id.h"
#include "base/log.h"
#include "partition/rules.h"

namespace gpulet::agent {
namespace {

std::string gpu_text(const inventory::Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

// The UUIDs of the devices that a fault of `broken` takes down: itself and its MIG devices.
std::vector<std::string> uuids_in_scope(const health::HealthView& view, const health::Scope& broken) {
  std::vector<std::string> uuids;
  for (const auto& device : view.devices) {
    if (broken.covers(device.scope) && !device.uuid.empty()) uuids.push_back(device.uuid.str());
  }
  return uuids;
}

}  // namespace

Agent::Agent(AgentPorts ports, config::Config config, std::uint64_t seed,
             std::function<void(const Error&)> fatal)
    : ports_(std::move(ports)),
      config_(std::move(config)),
      seed_(seed),
      fatal_(std::move(fatal)),
      health_controller_(
          {.loop = ports_.loop,
           .driver = ports_.driver,
           .store = ports_.health_store,
           .on_changed = [this](const auto& view, const auto& changes) { on_health_update(view, changes); },
           .on_save_error = [this] { notify_changed(); },
           .request_snapshot = [this] { schedule_reading(Duration::zero()); }},
          config_),
      driver_backoff_(kDriverBackoff, seed) {}

Agent::~Agent() {
  ports_.driver.set_events({});
  ports_.host.set_events({});
}

void Agent::start_agent() {
  ports_.driver.set_events({
      .evidence = [this](const health::Evidence& evidence) { health_controller_.add_evidence(evidence); },
      .changed = [this] { schedule_reading(); },
      .wait_failed =
          [this](const Error& error) {
            ports_.reporter.report_event(Reporter::Severity::kWarning, "DriverEventsUnavailable",
                                         error.full_message());
            schedule_reading();
          },
  });
  ports_.host.set_events({
      .kubelet_started = [this] { on_kubelet_started(); },
      .socket_lost = [this](const ResourceName& name) { on_socket_lost(name); },
      .watched = [this](const ResourceName& name, bool watched) { on_watched(name, watched); },
      .allocated = ports_.allocated,
  });
  started_ = true;
  release_ ? close_driver() : open_driver();
}

void Agent::open_driver() {
  if (opening_ || closing_) return;
  opening_ = true;
  closed_ = false;
  driver_timer_.reset();
  ports_.driver.open_driver([this, alive = lifetime_.watch()](const Status& status) {
    if (!alive) return;
    opening_ = false;
    release_ ? close_driver() : on_driver_opened(status);
  });
}

void Agent::set_driver_release(std::optional<std::string> reason) {
  if (reason == release_) return;
  const bool was_released = release_.has_value();
  release_ = std::move(reason);
  if (!started_) return;
  if (!release_) {
    driver_backoff_.reset();
    open_driver();
  } else if (was_released) {
    mark_released();
  } else {
    close_driver();
  }
}

void Agent::close_driver() {
  mark_released();
  if (opening_ || closing_) return;  // their ends go on
  closing_ = true;
  driver_timer_.reset();
  read_timer_.reset();
  recheck_timer_.reset();
  auto close = [this, alive = lifetime_.watch()] {
    if (!alive) return;
    ports_.driver.close_driver([this, alive](const Status& status) {
      if (!alive) return;
      closing_ = false;
      on_driver_closed(status);
    });
  };
  ports_.prepare_close ? ports_.prepare_close(std::move(close)) : close();
}

void Agent::mark_released() {
  const Error error(Code::kUnavailable, std::string(health::kDriverReleased) + ": " + *release_);
  driver_answers_ = false;
  driver_error_ = error;
  health_controller_.set_driver_release(health::DriverRelease{*release_, closed_});
  mark_gpus_unreadable(error);
  notify_changed();
}

void Agent::on_driver_closed(const Status& status) {
  if (!release_) return open_driver();
  if (!status) {
    if (!std::exchange(close_failure_reported_, true)) {
      ports_.reporter.report_event(Reporter::Severity::kWarning, "DriverNotReleased",
                                   status.error().full_message() + "; retrying");
    }
    driver_timer_ = ports_.loop.after(driver_backoff_.next_delay(), [this] { close_driver(); });
    return;
  }
  close_failure_reported_ = false;
  driver_backoff_.reset();
  opened_once_ = true;  // from here on a missing driver is waited for
  closed_ = true;
  ports_.reporter.report_event(Reporter::Severity::kNormal, "DriverReleased",
                               std::string(health::kDriverReleased) + ": " + *release_);
  mark_released();
}

void Agent::on_driver_opened(const Status& status) {
  if (status) {
    opened_once_ = true;
    start_reading();
    return;
  }
  const Error error =
      ports_.explain_driver_error ? ports_.explain_driver_error(status.error()) : status.error();
  if (!opened_once_ && config_.flags.fail_on_init_error)
    return fatal_(
        error.with_context("cannot use the NVIDIA driver (set failOnInitError to false to wait for it)"));
  driver_failed(error);
}

void Agent::retry_driver() {
  if (without_gpu_) open_driver();
}

void Agent::report_driver_failure(const Error& error) {
  const bool without_gpu = !opened_once_ && ports_.may_have_gpu && !ports_.may_have_gpu();
  const bool was_without_gpu = std::exchange(without_gpu_, without_gpu);
  if (without_gpu) {
    if (!was_without_gpu)
      log::info("this node has no NVIDIA GPU: waiting for one", {{"driver", error.full_message()}});
  } else if (driver_answers_ || !driver_error_ || was_without_gpu ||
             driver_error_->message() != error.message()) {
    ports_.reporter.report_event(Reporter::Severity::kWarning, "DriverUnavailable", error.full_message());
  }
}

void Agent::driver_failed(const Error& error) {
  report_driver_failure(error);
  driver_answers_ = false;
  driver_error_ = error;
  recheck_timer_.reset();
  health_controller_.set_driver_release(std::nullopt);
  mark_gpus_unreadable(error);
  driver_timer_ =
      ports_.loop.after(without_gpu_ ? kNoGpuRetry : driver_backoff_.next_delay(), [this] { open_driver(); });
  notify_changed();
}

// The kubelet keeps the devices, as unhealthy: running Pods keep theirs, new ones wait.
void Agent::mark_gpus_unreadable(const Error& error) {
  if (!reading_) return;
  for (auto& gpu : reading_->gpus) gpu.unreadable = error;
  if (!health_controller_.on_new_snapshot(*reading_)) update_offers();
  health_controller_.on_driver_unavailable();
}

void Agent::schedule_reading(Duration delay) {
  if (read_timer_ || release_) return;
  read_timer_ = ports_.loop.after(delay, [this] { start_reading(); });
}

void Agent::start_reading() {
  read_timer_.reset();
  if (opening_ || closing_ || release_) return;  // the end of opening reads
  if (reading_in_progress_) {
    reading_requested_ = true;
    return;
  }
  reading_in_progress_ = true;
  ports_.driver.read_snapshot([this, alive = lifetime_.watch()](Result<inventory::Snapshot> snapshot) {
    if (!alive) return;
    reading_in_progress_ = false;
    if (release_ || closing_) return;  // of before the release
    on_reading(std::move(snapshot));
    if (reading_requested_) {
      reading_requested_ = false;
      schedule_reading();
    }
  });
}

void Agent::on_reading(Result<inventory::Snapshot> snapshot) {
  if (!snapshot) return driver_failed(snapshot.error());
  if (!driver_answers_) {
    log::info("the driver is available",
              {{"version", snapshot->driver.version}, {"gpus", snapshot->gpus.size()}});
  }
  driver_answers_ = true;
  without_gpu_ = false;
  driver_error_.reset();
  driver_backoff_.reset();
  reading_ = std::move(*snapshot);
  partition::mark_excluded_gpus(*reading_, config_, facts_.labels);
  if (!health_controller_.on_new_snapshot(*reading_)) update_offers();
  health_controller_.set_driver_release(std::nullopt);
  schedule_recheck();
}

// A GPU without a UUID cannot be probed, nor can one that is missing: only a new reading finds them.
void Agent::schedule_recheck() {
  recheck_timer_.reset();
  const auto& health = config_.gpulet.health;
  const bool nameless = std::ranges::any_of(reading_->gpus, [](const auto& gpu) { return gpu.uuid.empty(); });
  const auto view = health_controller_.health_view();
  const bool missing =
      view && std::ranges::any_of(view->devices, [](const auto& device) { return !device.gpu_index; });
  if (!nameless && !missing && !reading_->gpus.empty()) return;
  const auto wait = missing && !nameless ? health.poll_interval : health.liveness_interval;
  recheck_timer_ = ports_.loop.after(wait, [this] { start_reading(); });
}

void Agent::on_health_update(const health::HealthViewPtr& view, const HealthChanges& changes) {
  if (!changes.empty() || !published_) update_offers();  // the kubelet first
  report_health_changes(*view, changes);
  if (ports_.health_changed) ports_.health_changed(view, changes);
}

void Agent::update_offers() {
  if (!reading_) return;
  auto judged = std::make_shared<const inventory::Snapshot>(health_controller_.annotate_snapshot(*reading_));
  if (published_) report_missing_gpus(*published_, *judged);
  published_ = judged;
  if (!ports_.offers_devices) return notify_changed();
  if (ports_.gpu_offers) facts_.offers = ports_.gpu_offers(*judged, config_, facts_.labels);
  if (ports_.withdrawn) facts_.withdrawn = ports_.withdrawn(*judged);
  auto built = builder_.build_offers(*judged, config_,
                                     {ports_.read_files(config_), facts_, ports_.mps_health, ports_.cdi_names,
                                      ports_.loads, ports_.mps_program_problem});
  report_notes(built);
  withdraw_unoffered(built.offers);
  for (const auto& offer : built.offers) {
    auto& served = served_[offer->resource.name];
    if (served.offer == offer && served.serving) continue;
    served.offer = offer;
    serve_resource(offer->resource.name, served);
  }
  notify_changed();
}

void Agent::notify_changed() const {
  if (ports_.changed) ports_.changed();
}

void Agent::withdraw_unoffered(const std::vector<device_plugin::OfferPtr>& offers) {
  std::erase_if(served_, [&](const auto& entry) {
    const auto& name = entry.first;
    if (std::ranges::any_of(offers, [&](const auto& offer) { return offer->resource.name == name; }))
      return false;
    ports_.host.withdraw(name);
    ports_.reporter.report_event(Reporter::Severity::kNormal, "ResourceWithdrawn",
                                 name.str() + " is no longer offered");
    return true;
  });
}

void Agent::serve_resource(const ResourceName& name, ServedResource& served) {
  const bool was_serving = served.serving;
  const auto status = ports_.host.serve_offer(served.offer);
  if (!status) {
    served.serving = false;
    if (served.serve_error.empty()) {
      ports_.reporter.report_event(Reporter::Severity::kWarning, "SocketFailed",
                                   name.str() + ": " + status.error().full_message());
    }
    served.serve_error = status.error().full_message();
    if (!served.broken_since) served.broken_since = ports_.loop.now();
    served.retry = ports_.loop.after(kRegisterBackoff.max / 10, [this, name] {
      if (auto it = served_.find(name); it != served_.end()) serve_resource(name, it->second);
    });
    return;
  }
  served.serving = true;
  served.serve_error.clear();
  served.broken_since.reset();
  served.retry.reset();
  if (was_serving) return;
  if (config_.kubelet_socket && config_.kubelet_socket->empty()) return;  // "": do not register
  if (!served.registration) {
    Registration::Callbacks callbacks{
        .registered =
            [this, name] {
              ++registrations_;
              const auto& resource = served_.at(name).offer->resource;
              log::info("registered with the kubelet",
                        {{"resource", name.str()}, {"devices", resource.devices.size()}});
              notify_changed();
            },
        .failed =
            [this, name](const Error& error) {
              ports_.reporter.report_event(Reporter::Severity::kWarning, "RegistrationFailed",
                                           name.str() + ": " + error.full_message());
              notify_changed();
            },
    };
    served.registration = std::make_unique<Registration>(
        ports_.loop, ports_.host, name, seed_ ^ std::hash<ResourceName>{}(name), std::move(callbacks));
  }
  served.registration->register_now();
}

void Agent::on_kubelet_started() {
  log::info("the kubelet has restarted: registering");
  for (auto& [name, served] : served_) {
    // serve_resource() opens the socket again if the kubelet has cleared its directory.
    if (!served.serving) {
      serve_resource(name, served);
    } else if (served.registration) {
      served.registration->register_now();
    }
  }
}

void Agent::on_socket_lost(const ResourceName& name) {
  const auto it = served_.find(name);
  if (it == served_.end()) return;
  log::warning("the plugin socket was removed: opening it again", {{"resource", name.str()}});
  it->second.serving = false;
  serve_resource(name, it->second);
}

void Agent::on_watched(const ResourceName& name, bool watched) {
  const auto it = served_.find(name);
  if (it != served_.end() && it->second.registration) it->second.registration->on_watched(watched);
  notify_changed();
}

void Agent::report_health_changes(const health::HealthView& view, const HealthChanges& changes) {
  for (auto& event : health_events(view, changes)) {
    if (!event.names_pods || !ports_.list_pods) {
      ports_.reporter.report_event(event.severity, event.reason, event.message);
      continue;
    }
    auto uuids = uuids_in_scope(view, event.device);
    ports_.list_pods([this, event = std::move(event), uuids = std::move(uuids),
                      alive = lifetime_.watch()](const std::map<DeviceId, std::string>& pods) {
      if (!alive) return;
      std::set<std::string> users;
      for (const auto& [id, pod] : pods) {
        if (std::ranges::count(uuids, without_share(id.str())) != 0) users.insert(pod);
      }
      std::string list;
      for (const auto& user : users) list += (list.empty() ? "" : ", ") + user;
      ports_.reporter.report_event(
          event.severity, event.reason,
          event.message + (list.empty() ? "; no Pod holds it" : "; held by " + list));
    });
  }
}

void Agent::report_missing_gpus(const inventory::Snapshot& before, const inventory::Snapshot& after) {
  for (const auto& gpu : before.gpus) {
    if (after.find(gpu.uuid) != nullptr) continue;
    ports_.reporter.report_event(Reporter::Severity::kWarning, "GPUGone",
                                 gpu_text(gpu) + " is no longer there");
  }
}

void Agent::report_notes(const Offers& built) {
  for (const auto& note : reported_notes_.update(built.notes))
    ports_.reporter.report_event(Reporter::Severity::kWarning, "NotOffered", note);
  for (const auto& remark : logged_remarks_.update(built.remarks)) log::info(remark);
}

void Agent::mark_excluded_gpus() {
  if (!reading_) return;
  partition::mark_excluded_gpus(*reading_, config_, facts_.labels);
  health_controller_.on_excluded_marked(*reading_);
}

void Agent::reconfigure(config::Config config) {
  config_error_.reset();
  ++config_reloads_;
  config_ = std::move(config);
  ports_.reporter.report_event(Reporter::Severity::kNormal, "ConfigReloaded",
                               "the new configuration is in force");
  mark_excluded_gpus();
  if (driver_answers_ && partition::selects_by_display(config_)) schedule_reading();
  if (!health_controller_.apply_health_config(config_)) update_offers();
}

void Agent::set_facts(partition::NodeFacts facts) {
  if (facts.labels == facts_.labels && facts.withdrawn == facts_.withdrawn) return;
  facts_ = std::move(facts);
  mark_excluded_gpus();
  update_offers();
}

void Agent::reject_config(const Error& error) {
  ++config_reload_failures_;
  config_error_ = error.full_message();
  ports_.reporter.report_event(Reporter::Severity::kWarning, "ConfigInvalid",
                               error.full_message() + " (the previous configuration stays in force)");
  notify_changed();
}

device_plugin::DevicesByResource Agent::devices_by_resource() const {
  device_plugin::DevicesByResource offered;
  for (const auto& [name, served] : served_) {
    auto& ids = offered[name];
    if (!served.offer) continue;
    for (const auto& device : served.offer->resource.devices) ids.push_back(device.id);
  }
  return offered;
}

std::vector<device_plugin::OfferPtr> Agent::offers() const {
  std::vector<device_plugin::OfferPtr> offers;
  for (const auto& [name, served] : served_) {
    if (served.offer) offers.push_back(served.offer);
  }
  return offers;
}

AgentStatus Agent::status() const {
  AgentStatus state;
  state.driver_answers = driver_answers_;
  if (driver_error_) state.driver_error = driver_error_->full_message();
  state.without_gpu = without_gpu_;
  state.snapshot = published_;
  state.config_error = config_error_;
  if (const auto& error = health_controller_.save_error())
    state.other_problems.push_back("health state: " + error->full_message());
  state.config_reloads = config_reloads_;
  state.config_reload_failures = config_reload_failures_;
  state.registrations = registrations_;
  for (const auto& [name, served] : served_) {
    AgentStatus::Resource resource;
    resource.name = name;
    resource.devices = served.offer->resource.devices.size();
    resource.healthy = static_cast<std::size_t>(std::ranges::count_if(
        served.offer->resource.devices, [](const auto& device) { return device.health.healthy; }));
    resource.error = served.serve_error;
    if (served.registration) {
      resource.registered = served.registration->registered();
      resource.watched = served.registration->watched();
      if (resource.error.empty() && served.registration->last_error()) {
        resource.error = served.registration->last_error()->full_message();
      }
    }
    if (served.broken_since && ports_.loop.now() - *served.broken_since > kStuckAfter) state.stuck = true;
    state.resources.push_back(std::move(resource));
  }
  return state;
}

std::vector<std::string> AgentStatus::problems() const {
  std::vector<std::string> lines;
  if (!driver_answers && !without_gpu)
    lines.push_back("driver: " + (driver_error.empty() ? "not read yet" : driver_error));
  if (config_error) lines.push_back("config: " + *config_error);
  for (const auto& resource : resources) {
    if (!resource.error.empty()) {
      lines.push_back(resource.name.str() + ": " + resource.error);
    } else if (!resource.registered) {
      lines.push_back(resource.name.str() + ": not registered with the kubelet yet");
    } else if (!resource.watched) {
      lines.push_back(resource.name.str() + ": registered, but the kubelet does not watch it yet");
    }
  }
  lines.insert(lines.end(), other_problems.begin(), other_problems.end());
  return lines;
}

}  // namespace gpulet::agent
