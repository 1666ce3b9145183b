#include "agent/node/standby.h"

#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "agent/dra/claim_sockets.h"
#include "agent/driver/driver_release.h"
#include "agent/driver/gpu_presence.h"
#include "agent/resources/device_nodes.h"
#include "base/log.h"
#include "base/process.h"

namespace gpulet::agent {
namespace {

bool is_present(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool is_driver_released(const std::string& state_dir) {
  return is_present(release_path(state_dir)) ||
         ProcessLock::is_locked(mig_apply_lock_path(state_dir)).value_or(false);
}

}  // namespace

Standby::Standby(Node& node) : node_(node), backoff_(kDriverBackoff, std::random_device{}()) {
  open_pages();
  read_driver();
}

bool Standby::registers_claims() const {
  return has_own_sockets(node_) && node_.client_config && !node_.client_config->node_name.empty() &&
         wants_claims(node_);
}

void Standby::register_claims(std::function<void()> done) {
  if (!registers_claims()) return done();
  node_.claim_services->announce_services(node_.loop, claim_identity(node_), [done](const Status& status) {
    if (!status) log::warning("claims are not served", status.error());
    done();
  });
  auto sockets = ClaimSockets::open_sockets(node_);
  if (sockets) {
    node_.claim_sockets = std::move(*sockets);
    return;
  }
  log::warning("claims are registered once the other agent has ended", sockets.error());
  node_.claim_services->close_services();
  done();
}

void Standby::read_driver() {
  const auto& config = node_.config;
  if (is_driver_released(config.gpulet.state_dir)) return on_driver({});
  driver_ = std::make_unique<NvmlDriver>(node_.loop,
                                         NvmlDriverOptions{.driver_root = config.flags.container_driver_root,
                                                           .call_timeout = config.gpulet.driver_call_timeout,
                                                           .events = false,
                                                           .hold = config.gpulet.driver_hold});
  driver_->open_driver([this, alive = lifetime_.watch()](const Status& status) {
    if (!alive) return;
    if (!status) return on_driver(status);
    driver_->read_snapshot([this, alive](const Result<inventory::Snapshot>& snapshot) {
      if (alive) on_driver(snapshot ? Status() : fail(snapshot.error()));
    });
  });
}

void Standby::on_driver(const Status& status) {
  // Not from inside its callback.
  node_.loop.post([this, alive = lifetime_.watch()] {
    if (alive) driver_.reset();
  });
  const bool works = status || !may_have_gpu(driver_roots(node_.config));
  const std::string error = works ? std::string() : status.error().full_message();
  if (std::exchange(driver_error_, error) != error && !works)
    log::warning("this agent cannot use the driver", status.error());
  publish_pages();
  if (!works) retry_ = node_.loop.after(backoff_.next_delay(), [this] { read_driver(); });
}

// At an address of the host, the serving agent answers instead.
void Standby::open_pages() {
  const auto& settings = node_.config.gpulet;
  if (settings.listen.empty()) return;
  if (!settings.web_config_file.empty()) {
    auto access = WebConfigWatcher::start_watching(
        node_.loop, settings.web_config_file, [this](const http::AccessRules& now) {
          return listener_ ? listener_->set_access_rules(now) : Status{};
        });
    if (!access) return log::warning("the pages are not served", access.error());
    access_ = std::move(*access);
  }
  auto listener = web::Listener::start_listener(
      node_.loop, settings.listen, {.access_rules = access_ ? access_->access() : http::AccessRules{}});
  if (!listener)
    return log::info("the pages are served once the other agent has ended",
                     {{"error", listener.error().full_message()}});
  listener_ = std::move(*listener);
  log::info("listening", {{"address", settings.listen}, {"port", listener_->listening_port()}});
  publish_pages();
  confirm_pages();
}

void Standby::publish_pages() {
  if (!listener_) return;
  web::Pages pages;
  pages.ready = driver_error_.empty();
  if (!pages.ready) pages.ready_text = "driver: " + driver_error_ + "\n";
  listener_->publish_pages(std::move(pages));
}

void Standby::confirm_pages() {
  listener_->confirm_pages();
  heartbeat_ = node_.loop.after(kStandbyHeartbeat, [this] { confirm_pages(); });
}

}  // namespace gpulet::agent
