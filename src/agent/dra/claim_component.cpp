#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/dra/api_claim_source.h"
#include "agent/dra/claim_daemon_health.h"
#include "agent/dra/claim_limits.h"
#include "agent/dra/claim_report.h"
#include "agent/dra/claim_sockets.h"
#include "agent/dra/device_facts.h"
#include "agent/dra/node_claim_daemons.h"
#include "agent/dra/node_claim_partitions.h"
#include "agent/dra/offer_readings.h"
#include "agent/dra/plugin_watcher.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/observe/node_metrics.h"
#include "agent/resources/cdi_controller.h"
#include "agent/resources/device_nodes.h"
#include "agent/resources/mps_controller.h"
#include "base/log.h"
#include "dra/claim_controller.h"
#include "dra/claim_services.h"
#include "dra/device_health.h"
#include "dra/device_pool.h"
#include "dra/gpu_groups.h"
#include "dra/health_streams.h"
#include "dra/slice_publisher.h"
#include "k8s/client_config.h"
#include "k8s/parallel_reader.h"
#include "partition/offer_switch.h"

namespace gpulet::agent {
namespace {

constexpr Duration kOrphanInterval = std::chrono::minutes(10);
// The same health is sent again, well before the kubelet takes it for unknown.
constexpr Duration kHealthInterval = dra::kHealthTimeout / 3;
// The kubelet registers a driver within a second. A Pod that comes earlier fails, and is tried again after a
// minute: the devices are published once the driver is registered, or after this time without a kubelet.
constexpr Duration kRegistrationWait = std::chrono::seconds(5);
constexpr Duration kClaimPoll = std::chrono::seconds(1);  // while a GPU leaves the claims
constexpr Duration kShownWait = std::chrono::seconds(1);  // what waits for longer is shown
constexpr BackoffLimits kSpecRetry{std::chrono::milliseconds(100), std::chrono::seconds(10)};

// Everything of one period in which claims are served. Its end closes the sockets; the slices stay, so that
// an update of the agent does not withdraw the node's GPUs.
class ClaimServer {
 public:
  static Result<std::unique_ptr<ClaimServer>> serve_claims(Node& node, MpsController& mps) {
    const auto& settings = node.config.gpulet;
    auto server = std::make_unique<ClaimServer>(node, mps);
    GPULET_TRY_ASSIGN(server->controller_,
                      dra::ClaimController::start_controller(
                          node.loop, *server->source_, server->daemons_, server->partitions_,
                          {.pool_name = node.client_config->node_name,
                           .record_directory = settings.dra.record_dir,
                           .cdi_directory = settings.cdi.spec_dir,
                           .nvidia_checkpoint = settings.kubelet_dir + "/plugins/" +
                                                std::string(dra::kDriverName) + "/checkpoint.json"}));
    node.claim_records = &server->controller_->records();
    server->serve();
    if (!node.claim_sockets) {
      GPULET_TRY_ASSIGN(node.claim_sockets, ClaimSockets::open_sockets(node));
    }
    server->registration_wait_ =
        node.loop.after(kRegistrationWait, [self = server.get()] { self->publish_first(true); });
    server->end_orphans();
    server->update_devices();
    server->resend_health();
    return server;
  }

  ClaimServer(Node& node, MpsController& mps)
      : node_(node),
        relay_(std::make_shared<LoopRelay>(node.loop)),
        daemons_(node, mps),
        partitions_({.loop = node.loop,
                     .driver = [this] { return node_.devices->driver(); },
                     .request_reading = [this] { node_.devices->request_reading(); },
                     .changed = [this] { update_devices(); }}),
        source_(std::make_unique<ApiClaimSource>(node.loop, *node.client_config)),
        node_reader_(k8s::ParallelReader::start_reader(node.loop, *node.client_config)),
        publisher_(dra::SlicePublisher::start_publisher(
            node.loop, *node.client_config,
            {std::string(dra::kDriverName), node.client_config->node_name, node.client_config->node_name}, {},
            [this] { on_slices_shown(); })) {
    plugin_watcher_.emplace(plugin_ports());
  }
  ~ClaimServer() {
    relay_->close_relay();
    node_.claim_records = nullptr;
    node_.claim_services->close_services();
    node_.claim_sockets.reset();
  }
  ClaimServer(const ClaimServer&) = delete;

  // The snapshot, its health, or what is withdrawn may differ.
  void update_devices() {
    const auto* agent = node_.devices->agent();
    const auto status = agent != nullptr ? std::optional(agent->status()) : std::nullopt;
    if (!status || !status->snapshot) return;
    is_driver_open_ = status->driver_answers;
    snapshot_ = status->snapshot;
    daemons_.begin_daemons();
    std::string key = spec_inputs_key(*snapshot_, node_.config);
    if (std::exchange(facts_key_, key) != key) read_facts();
    if (!facts_) return;
    auto dynamic = partitions_.dynamic_gpus(*snapshot_, node_.config, node_.labels, controller_->records(),
                                            controller_->held_partitions());
    // What an earlier process has published stays until the profiles are known.
    const bool is_known =
        std::ranges::none_of(dynamic, [](const auto& gpu) { return gpu.second.profiles.empty(); });
    if (!all_devices_ && !is_known && !is_late_) return;
    shares_ = wanted_shares();
    all_devices_ =
        dra::make_device_pool({.snapshot = snapshot_,
                               .taints = taints_of(agent->health_view()),
                               .withdrawn = with_display_adapters(node_.devices->withdrawn(), *snapshot_),
                               .pcie_roots = facts_->pcie_roots,
                               .dynamic = std::move(dynamic),
                               .shares = shares_});
    report_notes();
    if (!follow_claims()) apply_offers();
    watch_plugin();
  }

  void add_counts(NodeCounts& counts) const {
    counts.claims = claim_stats(*controller_, node_.client_config->node_name);
    counts.claim_status = claim_status(node_.offer_switch, *controller_, node_.published_claim_devices,
                                       {node_.loop.now(), node_.loop.wall_now()});
  }

  // The driver is another one: what it was asked is not answered.
  void restart_driver_calls() {
    partitions_.restart_calls();
    controller_->restart_partitions();
  }

  // The CDI document depends on what is in the driver root.
  void refresh_facts() {
    if (snapshot_) read_facts();
  }

 private:
  std::map<DeviceUuid, config::ConsumableShares> wanted_shares() const {
    return shared_gpus(*snapshot_, node_.config, node_.labels, controller_->records());
  }

  // A GPU that a claim holds whole is shared once the claim has ended.
  void follow_shares() {
    node_.loop.post([this, alive = lifetime_.watch()] {
      if (alive && all_devices_ && wanted_shares() != shares_) update_devices();
    });
  }

  void serve() {
    node_.claim_services->open_services(
        node_.loop, claim_identity(node_),
        {.prepare =
             [this](const auto& claims, auto done) {
               ++node_.claim_calls.begun;
               controller_->prepare_claims(claims, [this, done = std::move(done)](auto prepared) {
                 ++node_.claim_calls.answered;
                 done(std::move(prepared));
                 node_.notify_allocated();
                 follow_shares();
               });
               if (!wait_timer_) wait_timer_ = node_.loop.after(kShownWait, [this] { show_waiting(); });
             },
         .unprepare =
             [this](const auto& claims) {
               ++node_.claim_calls.begun;
               auto ended = controller_->unprepare_claims(claims);
               ++node_.claim_calls.answered;
               node_.notify_allocated();
               follow_shares();
               return ended;
             },
         .registered =
             [this](const Status& status) {
               if (!status) return log::warning("claims are not served", status.error());
               log::info("registered with the kubelet", {{"driver", dra::kDriverName}});
               publish_first(false);
             }});
  }

  void show_waiting() {
    wait_timer_.reset();
    if (!controller_->unprepared_claims().empty()) node_.notify_state_changed();
  }

  void publish_first(bool is_late) {
    is_registered_ = true;
    is_late_ |= is_late;
    if (!all_devices_) update_devices();
    report_moves();
    publish_devices();
  }

  // The slices of an earlier process stay until it is known which GPUs are theirs.
  void publish_devices() {
    if (!is_registered_ || !pool_) return;
    const bool is_entering = node_.offer_switch.has_stage(partition::OfferStage::kEnteringClaims);
    if (!is_published_ && !is_late_ && is_entering) return;
    is_published_ = true;
    if (pool_->devices.empty() && !node_.config.gpulet.dra.enabled) return publisher_->remove_slices();
    std::vector<dra::Device> devices;
    for (const auto& offered : pool_->devices) devices.push_back(offered.device);
    publisher_->set_devices(std::move(devices), pool_->counter_sets);
  }

  // Publishes the GPUs that claims offer now.
  void apply_offers() {
    if (!all_devices_) return;
    const auto& offers = node_.offer_switch.offers();
    const auto stage_of = [&](const DeviceUuid& gpu) { return partition::offer_of(offers, gpu).stage; };
    auto pool = dra::select_devices(
        *all_devices_, [&](const auto& gpu) { return stage_of(gpu) == partition::OfferStage::kClaims; });
    of_claims_ = dra::select_devices(*all_devices_, [&](const auto& gpu) {
      return stage_of(gpu) == partition::OfferStage::kClaims ||
             stage_of(gpu) == partition::OfferStage::kLeavingClaims;
    });
    arranger_.arrange_devices(*snapshot_, pool);
    pool_ = std::make_shared<const dra::DevicePool>(std::move(pool));
    node_.claim_pool = pool_;
    report_moves();
    report_health();
    publish_devices();
    offer_devices();
  }

  // At the start, most is known within milliseconds.
  void report_moves() {
    if (!is_late_) return;
    const auto& offers = node_.offer_switch.offers();
    for (const auto& [gpu, offer] : offers) {
      const auto before = partition::offer_of(reported_offers_, gpu);
      if (offer.reason == before.reason) continue;
      const bool is_of_claims = offer.stage == partition::OfferStage::kClaims;
      log::info(gpu.str() + " " +
                (!offer.reason.empty() ? offer.reason
                 : is_of_claims        ? "is offered by claims"
                                       : "is offered by the device plugin"));
    }
    reported_offers_ = offers;
  }

  // Whether a GPU has left the claims, or is known to be theirs: then everything follows at once.
  bool follow_claims() {
    using enum partition::OfferStage;
    const auto& offers = node_.offer_switch;
    claim_timer_.reset();
    if (!snapshot_ || (!offers.has_stage(kLeavingClaims) && !offers.has_stage(kEnteringClaims))) return false;
    partition::ClaimReading reading{.published = std::nullopt,
                                    .holders = claim_holders(controller_->records(), *snapshot_),
                                    .seen = dra::shown_gpus(publisher_->shown_slices())};
    if (publisher_->is_settled()) reading.published = reading.seen;
    const bool is_changed = node_.offer_switch.apply_reading(reading, node_.loop.now());
    if (offers.has_stage(kLeavingClaims)) {
      claim_timer_ = node_.loop.after(kClaimPoll, [this] { follow_claims(); });
    }
    if (is_changed) follow_switch();
    return is_changed;
  }

  // Claims first: what the device plugin offers is not prepared any more.
  void follow_switch() {
    apply_offers();
    node_.devices->replan();
    watch_plugin();
  }

  void watch_plugin() {
    using enum partition::OfferStage;
    const auto& offers = node_.offer_switch;
    plugin_watcher_->set_active(offers.has_stage(kLeavingDevicePlugin) || offers.has_stage(kEnteringClaims));
  }

  PluginWatcherPorts plugin_ports() {
    return {.loop = node_.loop,
            .list_containers = [this](auto done) { node_.devices->list_containers(std::move(done)); },
            .list_allocatable =
                [this](auto done) { node_.devices->pod_resources().list_allocatable(std::move(done)); },
            .read_node =
                [this](auto done) {
                  node_reader_->read_object("/api/v1/nodes/" + node_.client_config->node_name, "get on nodes",
                                            std::move(done));
                },
            .snapshot = [this] { return snapshot_; },
            .expected =
                [this] {
                  const auto* agent = node_.devices->agent();
                  return expected_allocatable(
                      agent != nullptr ? agent->offers() : std::vector<device_plugin::OfferPtr>(), *snapshot_,
                      node_.config, node_.labels);
                },
            .on_reading =
                [this](const auto& reading) {
                  if (node_.offer_switch.apply_reading(reading)) follow_switch();
                }};
  }

  // On a thread of its own: some 250 system calls.
  void read_facts() {
    if (reading_) {
      read_again_ = true;
      return;
    }
    retry_.reset();
    const auto started = start_detached_thread(
        "the CDI document of claims",
        [this, relay = relay_, snapshot = snapshot_, config = node_.config, alive = lifetime_.watch()] {
          auto facts = std::make_shared<DeviceFacts>(read_device_facts(*snapshot, config));
          relay->post_to_loop([this, facts, alive] {
            if (alive) on_facts(std::move(*facts));
          });
        });
    reading_ = started.has_value();
    if (!started) retry_later(started.error());
  }

  void on_facts(DeviceFacts facts) {
    reading_ = false;
    const std::optional<Error> error = facts.base ? std::nullopt : std::optional<Error>(facts.base.error());
    facts_ = std::move(facts);
    if (!error) {
      backoff_.reset();
      spec_error_.clear();
    }
    update_devices();
    node_.notify_state_changed();  // the GpuNode shows what is offered
    if (std::exchange(read_again_, false)) return read_facts();
    if (error) retry_later(*error);
  }

  void retry_later(const Error& error) {
    if (std::exchange(spec_error_, error.full_message()) != error.full_message()) {
      log::warning("claims wait: there is no CDI document of the GPUs", error);
    }
    retry_ = node_.loop.after(backoff_.next_delay(), [this] { read_facts(); });
  }

  void on_slices_shown() {
    if (controller_ && !follow_claims()) offer_devices();
    node_.published_claim_devices = dra::shown_uuids(publisher_->shown_slices()).size();
  }

  // What claims are prepared from.
  void offer_devices() {
    if (!controller_) return;
    if (!is_driver_open_ || !pool_ || !facts_ || !facts_->base) return controller_->set_devices(nullptr);
    const auto& settings = node_.config.gpulet.dra;
    controller_->set_devices(std::make_shared<const dra::NodeDevices>(dra::NodeDevices{
        *all_devices_,
        *facts_->base,
        dra::shown_uuids(publisher_->shown_slices()),
        withheld_gpus(*all_devices_, node_.offer_switch.offers()),
        {.time_slicing_settings = settings.time_slicing_settings, .mps_support = settings.mps_support},
        claim_limit_means(*snapshot_, node_.config)}));
  }

  // To the kubelet, where it differs from what was sent last.
  void report_health() {
    const auto* agent = node_.devices->agent();
    const auto view = agent != nullptr ? agent->health_view() : nullptr;
    if (!view || !pool_) return;
    for (const auto& notice : daemon_health_.check_claims(controller_->records(), node_.loop.now()))
      notifier_.notify_pods(notice, node_.config.gpulet.faults.pod_events);
    auto report =
        dra::make_health_report(of_claims_, controller_->records(), *view, daemon_health_.unserved_devices());
    if (report == reported_) return;
    reported_ = std::move(report);
    const auto since_1970 = node_.loop.wall_now().time_since_epoch();
    node_.claim_services->send_health(
        {.pool = node_.client_config->node_name,
         .unix_time_s = std::chrono::duration_cast<std::chrono::seconds>(since_1970).count(),
         .devices = reported_});
  }

  void resend_health() {
    follow_shares();
    reported_.clear();
    report_health();
    health_timer_ = node_.loop.after(kHealthInterval, [this] { resend_health(); });
  }

  void report_notes() {
    std::set<std::string> now(all_devices_->notes.begin(), all_devices_->notes.end());
    for (const auto& note : now) {
      if (!notes_.contains(note)) log::warning("a device is not offered by claims", {{"reason", note}});
    }
    notes_ = std::move(now);
  }

  void end_orphans() {
    controller_->end_orphans();
    orphan_timer_ = node_.loop.after(kOrphanInterval, [this] { end_orphans(); });
  }

  Node& node_;
  std::shared_ptr<LoopRelay> relay_;
  NodeClaimDaemons daemons_;
  NodeClaimPartitions partitions_;
  std::unique_ptr<dra::ClaimSource> source_;
  std::unique_ptr<k8s::ParallelReader> node_reader_;
  std::unique_ptr<dra::ClaimController> controller_;
  std::unique_ptr<dra::SlicePublisher> publisher_;
  inventory::SnapshotPtr snapshot_;
  std::optional<DeviceFacts> facts_;
  std::string facts_key_;  // spec_inputs_key() of the newest reading
  dra::DeviceArranger arranger_;
  std::map<DeviceUuid, config::ConsumableShares> shares_;  // of all_devices_
  std::optional<dra::DevicePool> all_devices_;             // whichever side offers them
  std::shared_ptr<const dra::DevicePool> pool_;            // those that claims offer
  dra::DevicePool of_claims_;                              // and those that leave them
  std::vector<dra::DeviceHealth> reported_;                // empty where it is to be sent again
  ClaimDaemonHealth daemon_health_{
      {.check_daemon = [this](const auto& name) { return daemons_.check_daemon(name); },
       .is_being_prepared = [this](const auto& uid) { return controller_->is_being_prepared(uid); }}};
  DaemonNotifier notifier_{node_.loop, *source_, *node_.client_config};
  bool is_driver_open_ = false, is_registered_ = false, is_late_ = false, is_published_ = false;
  bool reading_ = false, read_again_ = false;
  std::set<std::string> notes_;
  std::string spec_error_;
  Backoff backoff_{kSpecRetry, 0};
  partition::GpuOffers reported_offers_;
  std::optional<PluginWatcher> plugin_watcher_;
  Subscription claim_timer_, wait_timer_, retry_, orphan_timer_, health_timer_, registration_wait_;
  Lifetime lifetime_;
};

class ClaimComponent final : public Component {
 public:
  ClaimComponent(Node& node, MpsController& mps) : node_(node), mps_(mps) {}

  void start() override { begin_serving(); }
  void apply_config() override {
    begin_serving();
    update_devices();
  }
  void attach_devices() override {
    if (server_) server_->restart_driver_calls();
    update_devices();
  }
  void on_state_changed() override { update_devices(); }
  void on_device_nodes_changed() override {
    if (server_) server_->refresh_facts();
  }
  void on_health_changed(const health::HealthViewPtr&, const std::vector<health::StatusChange>&) override {
    update_devices();
  }
  void add_counts(NodeCounts& counts) const override {
    if (server_) server_->add_counts(counts);
  }

 private:
  void update_devices() {
    if (server_) server_->update_devices();
  }

  void begin_serving() {
    if (server_ || node_.is_config_pending) return;
    if (!wants_claims(node_)) return end_announcement();
    if (!node_.client_config || node_.client_config->node_name.empty())
      return log::error("gpulet.dra.enabled needs a cluster and the node's name (NODE_NAME)");
    auto server = ClaimServer::serve_claims(node_, mps_);
    if (!server) {
      end_announcement();
      return log::error("claims are not served", server.error());
    }
    server_ = std::move(*server);
    node_.serves_claims = true;
  }

  // Of before this agent served the node (Standby).
  void end_announcement() {
    if (!node_.claim_sockets) return;
    node_.claim_services->close_services();
    node_.claim_sockets.reset();
  }

  Node& node_;
  MpsController& mps_;
  std::unique_ptr<ClaimServer> server_;
};

}  // namespace

std::unique_ptr<Component> make_claim_component(Node& node, MpsController& mps) {
  return std::make_unique<ClaimComponent>(node, mps);
}

}  // namespace gpulet::agent
