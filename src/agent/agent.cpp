#include "agent/agent.h"

#include <algorithm>

#include "agent/health_words.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;

std::string describe(const inventory::Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

// The devices that break with this one, as the kubelet names them: itself, its MIG devices.
std::vector<std::string> uuids_below(const health::View& view, const health::Scope& broken) {
  std::vector<std::string> uuids;
  for (const auto& device : view.devices) {
    if (broken.covers(device.scope) && !device.uuid.empty()) uuids.push_back(device.uuid.str());
  }
  return uuids;
}

}  // namespace

Agent::Agent(Ports ports, config::Config config, std::uint64_t seed, std::function<void(const Error&)> fatal)
    : ports_(std::move(ports)),
      config_(std::move(config)),
      seed_(seed),
      fatal_(std::move(fatal)),
      care_({.loop = ports_.loop,
             .driver = ports_.driver,
             .memory = ports_.memory,
             .changed = [this](const auto& view, const auto& changes) { on_health(view, changes); },
             .reread = [this] { read_soon(Duration::zero()); }},
            config_),
      driver_backoff_(kDriverBackoff, seed) {}

Agent::~Agent() {
  ports_.driver.set_events({});
  ports_.host.set_events({});
}

void Agent::start() {
  ports_.driver.set_events({
      .evidence = [this](const health::Evidence& evidence) { care_.take(evidence); },
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
      .allocated = ports_.allocated,
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
  unseen_timer_.reset();
  // What was offered stays known to the kubelet, as unhealthy: Pods that run keep their devices, new ones
  // wait.
  if (reading_) {
    for (auto& gpu : reading_->gpus) gpu.unreadable = error;
    if (!care_.on_snapshot(*reading_)) step();
    care_.driver_away();
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
  if (!care_.on_snapshot(*reading_)) step();
  await_unseen();
}

// What has no name cannot be asked, neither can what is not there: a reading tells when that has changed.
void Agent::await_unseen() {
  unseen_timer_.reset();
  const auto& health = config_.gpulet.health;
  const bool nameless = std::ranges::any_of(reading_->gpus, [](const auto& gpu) { return gpu.uuid.empty(); });
  const auto view = care_.view();
  const bool missing =
      view && std::ranges::any_of(view->devices, [](const auto& device) { return !device.gpu_index; });
  if (!nameless && !missing && !reading_->gpus.empty()) return;
  const auto wait = missing && !nameless ? health.poll_interval : health.alive_interval;
  unseen_timer_ = ports_.loop.after(wait, [this] { read_now(); });
}

void Agent::on_health(const health::ViewPtr& view, const HealthChanges& changes) {
  if (!changes.empty() || !published_) step();  // the kubelet first
  report(*view, changes);
  if (ports_.health_changed) ports_.health_changed(view, changes);
}

void Agent::step() {
  if (!reading_) return;
  auto judged = std::make_shared<const inventory::Snapshot>(care_.judge(*reading_));
  if (published_) report_gone(*published_, *judged);
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

void Agent::report(const health::View& view, const HealthChanges& changes) {
  for (auto& news : health_news(view, changes)) {
    if (!news.names_pods || !ports_.pods) {
      ports_.reporter.event(news.severity, news.reason, news.message);
      continue;
    }
    auto uuids = uuids_below(view, news.device);
    ports_.pods([this, news = std::move(news), uuids = std::move(uuids),
                 alive = std::weak_ptr(alive_)](const std::map<DeviceId, std::string>& pods) {
      if (alive.expired()) return;
      std::set<std::string> users;
      for (const auto& [id, pod] : pods) {
        if (std::ranges::count(uuids, id.str().substr(0, id.str().find("::"))) != 0) users.insert(pod);
      }
      std::string list;
      for (const auto& user : users) list += (list.empty() ? "" : ", ") + user;
      ports_.reporter.event(news.severity, news.reason,
                            news.message + (list.empty() ? "; no Pod holds it" : "; held by " + list));
    });
  }
}

void Agent::report_gone(const inventory::Snapshot& before, const inventory::Snapshot& after) {
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
  ports_.reporter.event(Severity::kNormal, "ConfigReloaded", "the new configuration is in force");
  if (!care_.apply(config_)) step();
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

kubelet::DevicesByResource Agent::offered() const {
  kubelet::DevicesByResource offered;
  for (const auto& [name, served] : served_) {
    auto& ids = offered[name];
    if (!served.offer) continue;
    for (const auto& device : served.offer->resource.devices) ids.push_back(device.id);
  }
  return offered;
}

std::vector<kubelet::OfferPtr> Agent::offers() const {
  std::vector<kubelet::OfferPtr> offers;
  for (const auto& [name, served] : served_) {
    if (served.offer) offers.push_back(served.offer);
  }
  return offers;
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
