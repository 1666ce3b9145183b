#include "agent/node/devices.h"

#include <algorithm>
#include <random>
#include <utility>

#include "agent/driver/gpu_presence.h"
#include "agent/observe/node_metrics.h"
#include "agent/resources/device_nodes.h"
#include "base/log.h"
#include "device_plugin/list_delay.h"
#include "dra/claimed_devices.h"
#include "inventory/platform.h"

namespace gpulet::agent {
namespace {

std::string health_state_path(const config::Config& config) {
  const auto& directory = config.gpulet.state_dir;
  return directory.empty() ? std::string() : directory + "/" + kHealthStateFile;
}

// Of a program that offers nothing: no socket is opened or watched.
class NoPluginHost final : public PluginHost {
 public:
  Status serve_offer(device_plugin::OfferPtr) override { return {}; }
  void withdraw(const ResourceName&) override {}
  void register_resource(const ResourceName&, std::function<void(Status)>) override {}
  void set_events(Events) override {}
};

}  // namespace

Devices::Endpoints::Endpoints(const config::Config& config)
    : device_plugin_dir(config.device_plugin_dir()),
      kubelet_socket(config.kubelet_socket.value_or(device_plugin_dir + "/kubelet.sock")),
      driver_root(config.flags.container_driver_root),
      driver_call_timeout(config.gpulet.driver_call_timeout),
      driver_hold(config.gpulet.driver_hold) {}

Devices::Devices(Node& node, MpsController& mps, CdiController& cdi)
    : node_(node), mps_(mps), cdi_(cdi), health_file_(node.loop, {}) {
  node_.devices = this;
}

Devices::~Devices() { node_.devices = nullptr; }

void Devices::start() {
  if (!node_.is_config_pending) build();
}

void Devices::apply_config() {
  if (is_closed_) return;
  if (!agent_) return build();
  if (*endpoints_ != Endpoints(node_.config)) return rebuild();
  health_file_.change_path(health_state_path(node_.config));
  agent_->reconfigure(node_.config);
  watch_kernel_log();
}

void Devices::build() {
  endpoints_.emplace(node_.config);
  driver_ = std::make_unique<NvmlDriver>(node_.loop,
                                         NvmlDriverOptions{.driver_root = endpoints_->driver_root,
                                                           .call_timeout = endpoints_->driver_call_timeout,
                                                           .hold = endpoints_->driver_hold});
  if (node_.sources.exporter) {
    host_ = std::make_unique<NoPluginHost>();
  } else {
    host_ = device_plugin::make_plugin_host(
        node_.loop, node_.grpc,
        {.directory = endpoints_->device_plugin_dir,
         .kubelet_socket = endpoints_->kubelet_socket,
         .list_containers = [this](auto done) { list_by(undelayed_resources_.get(), std::move(done)); }});
  }
  if (demand_source_) host_->set_demand_source(demand_source_);
  connect_to_kubelet();
  health_file_.change_path(health_state_path(node_.config));
  agent_.emplace(make_ports(), node_.config, std::random_device{}(),
                 [this](const Error& error) { node_.fail_with(error); });
  agent_->set_facts(facts_);
  agent_->set_driver_release(release_);
  node_.components.for_each_reversed([](Component& component) { component.attach_devices(); });
  watch_kernel_log();
  if (const auto found = inventory::find_unserved_platform(driver_roots(node_.config)))
    log::warning(inventory::platform_text(*found) + "; " + inventory::platform_advice(*found));
  agent_->start_agent();
}

void Devices::connect_to_kubelet() {
  using device_plugin::ListDelay;
  pod_resources_.reset();
  start_resources_.reset();
  undelayed_resources_ = dra::with_claimed_devices(
      device_plugin::make_pod_resources(node_.loop, node_.grpc,
                                        node_.config.gpulet.kubelet_dir + "/pod-resources/kubelet.sock"),
      [this] { return agent_ ? agent_->status().snapshot : nullptr; });
  const auto delayed = [this](ListDelay delay) {
    return device_plugin::delay_lists(node_.loop, *undelayed_resources_, delay, node_.grpc);
  };
  pod_resources_ = delayed(ListDelay::kUntilRecorded);
  start_resources_ = delayed(ListDelay::kWhileCallsOpen);
}

void Devices::rebuild() {
  node_.components.for_each_reversed([](Component& component) { component.detach_devices(); });
  agent_.reset();
  host_.reset();
  driver_.reset();
  build();
  node_.reporter->report_event(Reporter::Severity::kNormal, "ConfigReloaded",
                               "the new configuration is in force");
}

AgentPorts Devices::make_ports() {
  return {
      .loop = node_.loop,
      .driver = *driver_,
      .host = *host_,
      .reporter = *node_.reporter,
      .offers_devices = !node_.sources.exporter,
      .gpu_offers =
          [this](const auto& snapshot, const auto& config, const auto& labels) {
            node_.offer_switch.set_wanted(partition::wanted_sides(snapshot, config, labels),
                                          node_.serves_claims, node_.loop.now());
            return node_.offer_switch.offers();
          },
      .list_pods =
          [this](auto done) {
            list_holders([done = std::move(done)](Result<Holders> holders) {
              if (!holders) log::warning("cannot list the Pods that hold a device", holders.error());
              done(holders ? std::move(*holders) : Holders());
            });
          },
      .read_files =
          [this](const auto& config) {
            auto files = read_driver_files(config);
            if (files.compute_problem.empty()) files.compute_problem = cdi_.compute_problem();
            lacks_compute_ = !files.compute_problem.empty();
            return files;
          },
      .mps_health =
          [this](auto& specs) {
            auto healths = mps_.apply_daemons(specs, node_.config);
            mps_.fill_sm_partitions(specs);
            return healths;
          },
      .cdi_names = [this](const auto& snapshot) { return cdi_.update_specs(snapshot, node_.config); },
      .mps_program_problem = [this](const auto& version) { return mps_.program_problem(version); },
      .loads = node_.loads,
      .may_have_gpu = [this] { return may_have_gpu(driver_roots(node_.config)); },
      .explain_driver_error =
          [this](const Error& error) { return explain_driver_error(error, driver_roots(node_.config)); },
      .changed = [this] { node_.notify_state_changed(); },
      .health_store = &health_file_,
      .health_changed =
          [this](const auto& view, const auto& changes) {
            node_.components.for_each_reversed(
                [&](Component& component) { component.on_health_changed(view, changes); });
          },
      .allocated = [this] { node_.notify_allocated(); },
      .prepare_close =
          [this](auto done) {
            if (!before_close_) return pause_mps(std::move(done));
            before_close_([this, done = std::move(done)]() mutable { pause_mps(std::move(done)); });
          },
      .withdrawn =
          [this](const auto& snapshot) {
            if (before_offer_) {
              withdrawn_[WithdrawnFor::kPreflight] = before_offer_(snapshot);
              merge_withdrawn();
            }
            return facts_.withdrawn;
          },
  };
}

// One that cannot be read is logged once, and is part of each GPU's health.
void Devices::watch_kernel_log() {
  const auto& path = node_.config.gpulet.kernel_log;
  if (kernel_log_ && kernel_log_path_ == path) return agent_->set_kernel_log_status(std::nullopt);
  kernel_log_.reset();
  const bool is_logged = std::exchange(kernel_log_path_, path) == path;
  if (path.empty()) return agent_->set_kernel_log_status("gpulet.kernelLog is empty");
  auto log =
      KernelLog::start_kernel_log(node_.loop, path,
                                  {.line =
                                       [this](const auto& line) {
                                         if (agent_) agent_->submit_evidence(line);
                                       },
                                   .ended =
                                       [this](const Error& error) {
                                         log::warning("the kernel's log is no longer read", error);
                                         kernel_log_path_.reset();  // the next configuration tries again
                                         if (agent_) agent_->set_kernel_log_status(error.full_message());
                                       }});
  if (!log && !is_logged) log::info("the kernel's log is not read", {{"error", log.error().full_message()}});
  agent_->set_kernel_log_status(log ? std::nullopt : std::optional(log.error().full_message()));
  if (log) kernel_log_ = std::move(*log);
}

void Devices::on_node_labels() {
  facts_.labels = node_.labels;
  if (agent_) agent_->set_facts(facts_);
}

void Devices::set_withdrawn(WithdrawnFor purpose, std::map<DeviceUuid, std::string> gpus) {
  withdrawn_[purpose] = std::move(gpus);
  merge_withdrawn();
  if (agent_) agent_->set_facts(facts_);
}

void Devices::merge_withdrawn() {
  facts_.withdrawn.clear();
  for (const auto& [other, reasons] : withdrawn_) facts_.withdrawn.insert(reasons.begin(), reasons.end());
}

void Devices::set_before_offer(BeforeOffer source) {
  before_offer_ = std::move(source);
  if (before_offer_ || withdrawn_.erase(WithdrawnFor::kPreflight) == 0) return;
  merge_withdrawn();
}

void Devices::set_preflights(Preflights preflights) {
  if (agent_) agent_->set_preflights(std::move(preflights));
}

void Devices::set_driver_release(std::optional<std::string> reason) {
  release_ = std::move(reason);
  if (!release_) mps_.resume_daemons();
  if (agent_) agent_->set_driver_release(release_);
}

void Devices::pause_mps(std::function<void()> done) {
  if (!mps_.has_daemons()) return done();
  list_containers([this, done = std::move(done)](const Result<Containers>& containers) {
    if (!release_) return done();  // acquired again meanwhile
    if (containers) return mps_.pause_daemons(*containers, done);
    log::warning("MPS control daemons keep running: cannot list the Pods that use them", containers.error());
    done();
  });
}

void Devices::pause_mps_for_reset(const std::vector<DeviceUuid>& gpus, std::function<void(Status)> done) {
  const auto has_daemon = [this](const DeviceUuid& gpu) { return !mps_.find_holder(gpu).empty(); };
  if (!mps_.has_daemons() || std::ranges::none_of(gpus, has_daemon)) return done({});
  list_containers([this, done = std::move(done)](const Result<Containers>& containers) {
    if (!containers) return done(fail(containers.error()));
    if (const auto user = mps_.find_daemon_user(*containers); !user.empty())
      return done(fail(Code::kFailedPrecondition, "an MPS control daemon has it: " + user));
    is_mps_paused_ = true;
    mps_.pause_daemons(*containers, [done] { done({}); });
  });
}

void Devices::resume_mps_after_reset() {
  if (!std::exchange(is_mps_paused_, false) || release_) return;
  mps_.resume_daemons();
  replan();
}

void Devices::reject_config(const Error& error) {
  if (is_closed_) return;
  if (!agent_) build();
  agent_->reject_config(error);
}

void Devices::submit_evidence(const health::Evidence& evidence) {
  if (agent_) agent_->submit_evidence(evidence);
}

void Devices::set_repair_notes(std::map<DeviceUuid, std::string> notes) {
  if (agent_) agent_->set_repair_notes(std::move(notes));
}

void Devices::replan() {
  if (agent_) agent_->replan();
}

void Devices::retry_driver() {
  if (agent_) agent_->retry_driver();
}

void Devices::set_mig_event_status(std::optional<std::string> absent) {
  if (agent_) agent_->set_mig_event_status(std::move(absent));
}

void Devices::request_reading() {
  if (agent_) agent_->request_reading();
}

void Devices::add_counts(NodeCounts& counts) const {
  if (host_) counts.kubelet = host_->call_counts();
}

// Before the node's label has chosen the config, the socket of the kubelet is not known.
void Devices::list_by(device_plugin::PodResources* resources, std::function<void(Result<Containers>)> done) {
  if (resources != nullptr) return resources->list_containers(std::move(done));
  node_.loop.post([done = std::move(done)] {
    done(fail(Code::kUnavailable, "the node's configuration has not been chosen yet"));
  });
}

void Devices::list_containers(std::function<void(Result<Containers>)> done) {
  list_by(pod_resources_.get(), std::move(done));
}

void Devices::list_for_start(std::function<void(Result<Containers>)> done) {
  list_by(start_resources_.get(), std::move(done));
}

void Devices::list_holders(std::function<void(Result<Holders>)> done) {
  list_containers([done = std::move(done)](const Result<Containers>& containers) {
    if (!containers) return done(fail(containers.error()));
    done(device_plugin::pods_by_device(*containers));
  });
}

std::string Devices::why_no_compute_limit() {
  const auto snapshot = agent_ ? agent_->status().snapshot : nullptr;
  const auto offers = agent_ ? agent_->offers() : std::vector<device_plugin::OfferPtr>();
  if (!snapshot ||
      std::ranges::none_of(offers, [](const auto& offer) { return offer->resource.is_mps_by_rule; }))
    return {};
  return mps::why_no_namespaces(*snapshot, node_.config, mps_.program_problem(snapshot->driver.version));
}

void Devices::set_demand_source(device_plugin::DemandSource source) {
  demand_source_ = std::move(source);
  if (host_) host_->set_demand_source(demand_source_);
}

void Devices::close() {
  is_closed_ = true;
  agent_.reset();
  host_.reset();
}

}  // namespace gpulet::agent
