#include "agent/agent.h"

#include <algorithm>

#include "base/log.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;

health::XidFilter filter_of(const config::Config& config) {
  health::XidFilter filter(config.flags.disable_healthchecks, config.flags.enable_healthchecks);
  for (const auto& warning : filter.warnings()) log::warning(warning);
  return filter;
}

std::string describe(const inventory::Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

}  // namespace

Agent::Agent(Ports ports, config::Config config, std::uint64_t seed, std::function<void(const Error&)> fatal)
    : ports_(std::move(ports)),
      config_(std::move(config)),
      seed_(seed),
      fatal_(std::move(fatal)),
      judge_(filter_of(config_)),
      driver_backoff_(kDriverBackoff, seed),
      probe_backoff_(kProbeBackoff, seed + 1) {}

Agent::~Agent() {
  ports_.driver.set_events({});
  ports_.host.set_events({});
}

void Agent::start() {
  ports_.driver.set_events({
      .xid = [this](const health::XidEvent& event) { on_xid(event); },
      .changed = [this] { read_soon(); },
      .wait_failed =
          [this](const Error& error) {
            ports_.reporter.event(Severity::kWarning, "DriverEventsUnavailable", error.text());
            read_soon();
          },
  });
  ports_.host.set_events({
      .kubelet_started = [this] { on_kubelet_started(); },
      .socket_lost = [this](const ResourceName& name) { on_socket_lost(name); },
      .watched = [this](const ResourceName& name, bool watched) { on_watched(name, watched); },
  });
  open_driver();
}

void Agent::open_driver() {
  if (opening_) return;
  opening_ = true;
  driver_timer_.reset();
  ports_.driver.open([this, alive = std::weak_ptr(alive_)](const Status& status) {
    if (alive.expired()) return;
    opening_ = false;
    on_driver_opened(status);
  });
}

void Agent::on_driver_opened(const Status& status) {
  if (status) {
    opened_once_ = true;
    read_now();
    return;
  }
  if (!opened_once_ && config_.flags.fail_on_init_error) {
    fatal_(status.error().with(
        "the NVIDIA driver cannot be used (set failOnInitError to false to wait for it)"));
    return;
  }
  driver_failed(status.error());
}

void Agent::driver_failed(const Error& error) {
  if (driver_answers_ || !driver_error_ || driver_error_->message() != error.message()) {
    ports_.reporter.event(Severity::kWarning, "DriverUnavailable", error.text());
  }
  driver_answers_ = false;
  driver_error_ = error;
  alive_timer_.reset();
  // What was offered stays known to the kubelet, as unhealthy: Pods that run keep their devices, new ones
  // wait.
  if (reading_) {
    for (auto& gpu : reading_->gpus) gpu.unreadable = error;
    step();
  }
  driver_timer_ = ports_.loop.after(driver_backoff_.next(), [this] { open_driver(); });
  tell_changed();
}

void Agent::read_soon(Duration delay) {
  if (read_timer_) return;
  read_timer_ = ports_.loop.after(delay, [this] { read_now(); });
}

void Agent::read_now() {
  read_timer_.reset();
  if (opening_) return;  // its end reads
  if (reading_now_) {
    read_again_ = true;
    return;
  }
  reading_now_ = true;
  ports_.driver.read([this, alive = std::weak_ptr(alive_)](Result<inventory::Snapshot> snapshot) {
    if (alive.expired()) return;
    reading_now_ = false;
    on_read(std::move(snapshot));
    if (read_again_) {
      read_again_ = false;
      read_soon();
    }
  });
}

void Agent::on_read(Result<inventory::Snapshot> snapshot) {
  if (!snapshot) {
    driver_failed(snapshot.error());
    return;
  }
  if (!driver_answers_) {
    log::info("driver is there", {{"version", snapshot->driver.version}, {"gpus", snapshot->gpus.size()}});
  }
  driver_answers_ = true;
  driver_error_.reset();
  driver_backoff_.reset();
  reading_ = std::move(*snapshot);
  step();
  if (!alive_timer_) {
    alive_timer_ = ports_.loop.after(config_.gpulet.health_check_interval, [this] { check_alive(); });
  }
}

// A GPU can be lost without an event: each is asked one cheap question, and everything is read anew only when
// one does not answer it.
void Agent::check_alive() {
  alive_timer_ = ports_.loop.after(config_.gpulet.health_check_interval, [this] { check_alive(); });
  if (!reading_) return;
  if (reading_->gpus.empty()) {
    read_soon();
    return;
  }
  for (const auto& gpu : reading_->gpus) {
    if (gpu.unreadable) continue;  // the probes look after it
    ports_.driver.probe(gpu.uuid, [this, alive = std::weak_ptr(alive_)](const health::Probe& probe) {
      if (!alive.expired() && !probe.answers) read_soon();
    });
  }
}

void Agent::on_xid(const health::XidEvent& event) {
  if (judge_.on_xid(event)) {
    probe_backoff_.reset();
    step();
  }
  // The GPU may have left the bus with it, which only a reading tells.
  read_soon();
}

void Agent::schedule_probes() {
  const bool unreadable = reading_ && std::ranges::any_of(reading_->gpus, [](const auto& gpu) {
                            return gpu.unreadable.has_value();
                          });
  if (!driver_answers_ || (judge_.to_probe().empty() && !unreadable)) {
    probe_timer_.reset();
    probe_backoff_.reset();
    return;
  }
  if (probe_timer_ || probes_out_ > 0) return;
  probe_timer_ = ports_.loop.after(probe_backoff_.next(), [this] { probe_all(); });
}

void Agent::probe_all() {
  probe_timer_.reset();
  if (!reading_) return;
  std::set<DeviceUuid> suspects;
  for (const auto& uuid : judge_.to_probe()) suspects.insert(uuid);
  for (const auto& gpu : reading_->gpus) {
    if (gpu.unreadable) suspects.insert(gpu.uuid);
  }
  probes_out_ = suspects.size();
  for (const auto& uuid : suspects) {
    ports_.driver.probe(uuid, [this, alive = std::weak_ptr(alive_)](const health::Probe& probe) {
      if (alive.expired()) return;
      --probes_out_;
      on_probe(probe);
    });
  }
  schedule_probes();
}

void Agent::on_probe(const health::Probe& probe) {
  const bool cleared = judge_.on_probe(probe);
  const auto* gpu = reading_ ? reading_->find(probe.gpu) : nullptr;
  const bool readable_again = probe.answers && gpu != nullptr && gpu->unreadable;
  if (readable_again) read_soon(Duration::zero());
  if (cleared) step();
  if (probes_out_ == 0) schedule_probes();
}

void Agent::step() {
  if (!reading_) return;
  auto judged = std::make_shared<const inventory::Snapshot>(judge_.judge(*reading_));
  if (published_) report_health(*published_, *judged);
  published_ = judged;
  auto built = builder_.build(*judged, config_, {ports_.files(config_), facts_, ports_.daemons, ports_.cdi});
  report_notes(built.notes);
  remove_unoffered(built.offers);
  for (const auto& offer : built.offers) {
    auto& served = served_[offer->resource.name];
    if (served.offer == offer && served.serving) continue;
    served.offer = offer;
    serve(offer->resource.name, served);
  }
  schedule_probes();
  tell_changed();
}

void Agent::tell_changed() const {
  if (ports_.changed) ports_.changed();
}

void Agent::remove_unoffered(const std::vector<kubelet::OfferPtr>& offers) {
  std::erase_if(served_, [&](const auto& entry) {
    const auto& name = entry.first;
    if (std::ranges::any_of(offers, [&](const auto& offer) { return offer->resource.name == name; }))
      return false;
    ports_.host.withdraw(name);
    ports_.reporter.event(Severity::kNormal, "ResourceWithdrawn", name.str() + " is no longer offered");
    return true;
  });
}

void Agent::serve(const ResourceName& name, Served& served) {
  const bool was_serving = served.serving;
  const auto status = ports_.host.serve(served.offer);
  if (!status) {
    served.serving = false;
    if (served.serve_error.empty()) {
      ports_.reporter.event(Severity::kWarning, "SocketFailed", name.str() + ": " + status.error().text());
    }
    served.serve_error = status.error().text();
    if (!served.broken_since) served.broken_since = ports_.loop.now();
    served.retry = ports_.loop.after(kRegisterBackoff.longest / 10, [this, name] {
      if (auto it = served_.find(name); it != served_.end()) serve(name, it->second);
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
    Registration::Told told{
        .registered =
            [this, name] {
              ++registrations_;
              const auto& resource = served_.at(name).offer->resource;
              log::info("registered with the kubelet",
                        {{"resource", name.str()}, {"devices", resource.devices.size()}});
              tell_changed();
            },
        .failed =
            [this, name](const Error& error) {
              ports_.reporter.event(Severity::kWarning, "RegistrationFailed",
                                    name.str() + ": " + error.text());
              tell_changed();
            },
    };
    served.registration = std::make_unique<Registration>(
        ports_.loop, ports_.host, name, seed_ ^ std::hash<ResourceName>{}(name), std::move(told));
  }
  served.registration->start();
}

void Agent::on_kubelet_started() {
  log::info("the kubelet's socket is new: registering");
  for (auto& [name, served] : served_) {
    // serve() opens the socket anew where the kubelet has cleared its folder.
    if (!served.serving) {
      serve(name, served);
    } else if (served.registration) {
      served.registration->start();
    }
  }
}

void Agent::on_socket_lost(const ResourceName& name) {
  const auto it = served_.find(name);
  if (it == served_.end()) return;
  log::warning("somebody removed our socket: opening it anew", {{"resource", name.str()}});
  it->second.serving = false;
  serve(name, it->second);
}

void Agent::on_watched(const ResourceName& name, bool watched) {
  const auto it = served_.find(name);
  if (it != served_.end() && it->second.registration) it->second.registration->on_watched(watched);
  tell_changed();
}

void Agent::report_health(const inventory::Snapshot& before, const inventory::Snapshot& after) {
  for (const auto& gpu : after.gpus) {
    const auto* old = before.find(gpu.uuid);
    const bool was_healthy = old == nullptr || old->health.healthy;
    if (was_healthy == gpu.health.healthy) continue;
    if (gpu.health.healthy) {
      ports_.reporter.event(Severity::kNormal, "GPUHealthy", describe(gpu) + " is healthy again and offered");
      continue;
    }
    const std::string what = describe(gpu) + " is withdrawn: " + gpu.health.reason;
    if (!ports_.pods) {
      ports_.reporter.event(Severity::kWarning, "GPUUnhealthy", what);
      continue;
    }
    // Every device of that GPU: itself, its MIG devices, and their shares.
    std::vector<std::string> uuids{gpu.uuid.str()};
    for (const auto& mig : gpu.mig_devices) uuids.push_back(mig.uuid.str());
    ports_.pods(
        [this, what, uuids, alive = std::weak_ptr(alive_)](const std::map<DeviceId, std::string>& pods) {
          if (alive.expired()) return;
          std::set<std::string> users;
          for (const auto& [id, pod] : pods) {
            if (std::ranges::count(uuids, id.str().substr(0, id.str().find("::"))) != 0) users.insert(pod);
          }
          std::string list;
          for (const auto& user : users) list += (list.empty() ? "" : ", ") + user;
          ports_.reporter.event(Severity::kWarning, "GPUUnhealthy",
                                what + (list.empty() ? "; no Pod holds it" : "; held by " + list));
        });
  }
  for (const auto& gpu : before.gpus) {
    if (after.find(gpu.uuid) != nullptr) continue;
    ports_.reporter.event(Severity::kWarning, "GPUGone", describe(gpu) + " is no longer there");
  }
}

void Agent::report_notes(const std::vector<partition::Note>& notes) {
  std::set<std::string> now;
  for (const auto& note : notes) {
    now.insert(note.message);
    if (!told_notes_.contains(note.message)) {
      ports_.reporter.event(Severity::kWarning, "NotOffered", note.message);
    }
  }
  told_notes_ = std::move(now);
}

void Agent::apply(config::Config config) {
  config_error_.reset();
  ++config_reloads_;
  config_ = std::move(config);
  judge_.set_filter(filter_of(config_));
  ports_.reporter.event(Severity::kNormal, "ConfigReloaded", "the new configuration is in force");
  step();
}

void Agent::set_facts(partition::NodeFacts facts) {
  if (facts.labels == facts_.labels && facts.withdrawn == facts_.withdrawn) return;
  facts_ = std::move(facts);
  step();
}

void Agent::config_failed(const Error& error) {
  ++config_reload_failures_;
  config_error_ = error.text();
  ports_.reporter.event(Severity::kWarning, "ConfigInvalid",
                        error.text() + " (the configuration before it stays in force)");
  tell_changed();
}

State Agent::state() const {
  State state;
  state.driver_answers = driver_answers_;
  if (driver_error_) state.driver_error = driver_error_->text();
  state.snapshot = published_;
  state.config_error = config_error_;
  state.config_reloads = config_reloads_;
  state.config_reload_failures = config_reload_failures_;
  state.registrations = registrations_;
  for (const auto& [name, served] : served_) {
    State::Resource resource;
    resource.name = name;
    resource.devices = served.offer->resource.devices.size();
    resource.healthy = static_cast<std::size_t>(std::ranges::count_if(
        served.offer->resource.devices, [](const auto& device) { return device.health.healthy; }));
    resource.error = served.serve_error;
    if (served.registration) {
      resource.registered = served.registration->registered();
      resource.watched = served.registration->watched();
      if (resource.error.empty() && served.registration->last_error()) {
        resource.error = served.registration->last_error()->text();
      }
    }
    if (served.broken_since && ports_.loop.now() - *served.broken_since > kStuck) state.stuck = true;
    state.resources.push_back(std::move(resource));
  }
  return state;
}

bool State::ready() const { return problems().empty(); }

std::vector<std::string> State::problems() const {
  std::vector<std::string> lines;
  if (!driver_answers) lines.push_back("driver: " + (driver_error.empty() ? "not read yet" : driver_error));
  if (config_error) lines.push_back("config: " + *config_error);
  for (const auto& resource : resources) {
    if (!resource.error.empty()) {
      lines.push_back(resource.name.str() + ": " + resource.error);
    } else if (!resource.registered) {
      lines.push_back(resource.name.str() + ": not registered with the kubelet yet");
    } else if (!resource.watched) {
      lines.push_back(resource.name.str() + ": registered, and the kubelet does not watch it yet");
    }
  }
  return lines;
}

}  // namespace gpulet::agent
