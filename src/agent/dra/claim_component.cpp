#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/observe/node_metrics.h"
#include "agent/resources/cdi_controller.h"
#include "agent/resources/device_nodes.h"
#include "agent/resources/mps_controller.h"
#include "base/dns_name.h"
#include "base/log.h"
#include "dra/claim_controller.h"
#include "dra/claim_services.h"
#include "dra/device_health.h"
#include "dra/device_pool.h"
#include "dra/gpu_groups.h"
#include "dra/health_streams.h"
#include "dra/served_socket.h"
#include "dra/slice_publisher.h"
#include "k8s/client_config.h"
#include "k8s/parallel_reader.h"
#include "partition/rules.h"

namespace gpulet::agent {
namespace {

constexpr Duration kOrphanInterval = std::chrono::minutes(10);
// The same health is sent again, well before the kubelet takes it for unknown.
constexpr Duration kHealthInterval = dra::kHealthTimeout / 3;
// The kubelet registers a driver within a second. A Pod that comes earlier fails, and is tried again after a
// minute: the devices are published once the driver is registered, or after this time without a kubelet.
constexpr Duration kRegistrationWait = std::chrono::seconds(5);
constexpr BackoffLimits kSpecRetry{std::chrono::milliseconds(100), std::chrono::seconds(10)};

// Needs get on resourceclaims. An invalid name counts as a claim that does not exist.
class ApiClaimSource final : public dra::ClaimSource {
 public:
  ApiClaimSource(Loop& loop, const k8s::ClientConfig& access)
      : loop_(loop), reader_(k8s::ParallelReader::start_reader(loop, access)) {}

  void read_claim(const dra::ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    if (!is_dns_label(claim.name_space) || !is_dns_subdomain(claim.name)) {
      loop_.post([done = std::move(done), alive = lifetime_.watch()] {
        if (alive) done(std::nullopt);
      });
      return;
    }
    reader_->read_object(
        "/apis/resource.k8s.io/v1/namespaces/" + claim.name_space + "/resourceclaims/" + claim.name,
        "get on resourceclaims.resource.k8s.io", std::move(done));
  }

 private:
  Loop& loop_;
  std::unique_ptr<k8s::ParallelReader> reader_;
  Lifetime lifetime_;
};

// Of the node's MpsController. Daemons are started from the first begin_daemons() on: the plan of resources
// comes first.
class NodeClaimDaemons final : public dra::ClaimDaemons {
 public:
  NodeClaimDaemons(Node& node, MpsController& mps) : node_(node), mps_(mps) {}

  void begin_daemons() {
    has_begun_ = true;
    mps_.apply_claim_daemons(node_.config);
  }
  void set_daemons(std::vector<mps::DaemonSpec> daemons) override {
    mps_.set_claim_daemons(std::move(daemons));
    if (has_begun_) mps_.apply_claim_daemons(node_.config);
  }
  Status check_daemon(const std::string& name) const override { return mps_.check_claim_daemon(name); }
  std::string find_holder(const DeviceUuid& device) const override { return mps_.find_holder(device); }
  std::string mps_root() const override { return node_.config.flags.mps_root; }

 private:
  Node& node_;
  MpsController& mps_;
  bool has_begun_ = false;
};

// What is read from the disk for the devices of one snapshot.
struct DeviceFacts {
  Result<cdi::Spec> base;
  std::map<inventory::PciAddress, std::string> pcie_roots;
};

// Of the first driver root with a PCI bus that has the GPU.
std::map<inventory::PciAddress, std::string> read_pcie_roots(const inventory::Snapshot& snapshot,
                                                             const config::Config& config) {
  std::map<inventory::PciAddress, std::string> roots;
  for (const auto& directory : driver_roots(config)) {
    for (const auto& gpu : snapshot.gpus) {
      std::error_code error;
      const auto link =
          std::filesystem::read_symlink(directory + "/sys/bus/pci/devices/" + gpu.pci.sysfs_text(), error);
      const auto root = error ? std::nullopt : dra::pcie_root_of_link(link.string());
      if (root) roots.emplace(gpu.pci, *root);
    }
  }
  return roots;
}

std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints_of(const health::HealthViewPtr& view) {
  std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints;
  if (!view) return taints;
  for (const auto& device : view->devices) {
    if (device.uuid.empty()) continue;
    auto own = dra::health_taints(device.status);
    if (!own.empty()) taints[device.uuid] = std::move(own);
  }
  return taints;
}

metrics::ClaimStats::Operation operation_stats(const dra::OperationCounts& counts, std::size_t in_flight) {
  metrics::ClaimStats::Operation stats{.in_flight = in_flight,
                                       .durations = {counts.durations.begin(), counts.durations.end()},
                                       .time = counts.time};
  for (const auto& [code, count] : counts.errors) stats.errors.emplace(code_name(code), count);
  return stats;
}

metrics::ClaimStats claim_stats(const dra::ClaimController& controller, const std::string& node) {
  const auto counts = controller.counts();
  metrics::ClaimStats stats{.driver = std::string(dra::kDriverName),
                            .node = node,
                            .duration_bounds = {dra::kDurationBounds.begin(), dra::kDurationBounds.end()},
                            .prepare = operation_stats(counts.prepare, counts.preparing),
                            .unprepare = operation_stats(counts.unprepare, 0),
                            .prepared_claims = controller.records().size(),
                            .prepared_devices = {{"gpu", 0}, {"mig", 0}}};
  for (const auto& [uid, record] : controller.records()) {
    for (const auto& held : record.devices) {
      ++stats.prepared_devices[held.uuid.str().starts_with("MIG-") ? "mig" : "gpu"];
    }
  }
  return stats;
}

// Everything of one period in which claims are served. Its end closes the sockets; the slices stay, so that
// an update of the agent does not withdraw the node's GPUs.
class ClaimServer {
 public:
  static Result<std::unique_ptr<ClaimServer>> serve_claims(Node& node, MpsController& mps) {
    const auto& settings = node.config.gpulet;
    auto server = std::make_unique<ClaimServer>(node, mps);
    GPULET_TRY_ASSIGN(server->controller_,
                      dra::ClaimController::start_controller(
                          node.loop, *server->source_, server->daemons_,
                          {.pool_name = node.client_config->node_name,
                           .record_directory = settings.dra.record_dir,
                           .cdi_directory = settings.cdi.spec_dir,
                           .nvidia_checkpoint = settings.kubelet_dir + "/plugins/" +
                                                std::string(dra::kDriverName) + "/checkpoint.json"}));
    server->serve();
    // The kubelet finds the registration last.
    for (const auto& path :
         {server->service_path(), dra::registration_socket_path(settings.kubelet_dir + "/plugins_registry",
                                                                std::string(dra::kDriverName))}) {
      GPULET_TRY_ASSIGN(auto socket, dra::ServedSocket::open_socket(node.loop, node.grpc, path));
      server->sockets_.push_back(std::move(socket));
    }
    server->registration_wait_ =
        node.loop.after(kRegistrationWait, [self = server.get()] { self->publish_devices(); });
    server->end_orphans();
    server->update_devices();
    server->resend_health();
    return server;
  }

  ClaimServer(Node& node, MpsController& mps)
      : node_(node),
        relay_(std::make_shared<LoopRelay>(node.loop)),
        daemons_(node, mps),
        source_(std::make_unique<ApiClaimSource>(node.loop, *node.client_config)),
        publisher_(dra::SlicePublisher::start_publisher(
            node.loop, *node.client_config,
            {std::string(dra::kDriverName), node.client_config->node_name, node.client_config->node_name}, {},
            [this] { on_slices_shown(); })) {}
  ~ClaimServer() {
    relay_->close_relay();
    node_.claim_services->close_services();
    while (!sockets_.empty()) sockets_.pop_back();  // the registration first
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
    auto pool = dra::make_device_pool({.snapshot = snapshot_,
                                       .taints = taints_of(agent->health_view()),
                                       .withdrawn = withdrawn_gpus(),
                                       .pcie_roots = facts_->pcie_roots});
    arranger_.arrange_devices(*snapshot_, pool);
    pool_ = std::make_shared<const dra::DevicePool>(std::move(pool));
    node_.claim_pool = pool_;
    report_health();
    report_notes();
    if (is_published_) publish_devices();
    offer_devices();
  }

  metrics::ClaimStats stats() const { return claim_stats(*controller_, node_.client_config->node_name); }

  // The CDI document depends on what is in the driver root.
  void refresh_facts() {
    if (snapshot_) read_facts();
  }

 private:
  std::map<DeviceUuid, std::string> withdrawn_gpus() const {
    auto withdrawn = node_.devices->withdrawn();
    for (const auto& gpu : snapshot_->gpus) {
      if (partition::is_display_adapter(gpu)) withdrawn.emplace(gpu.uuid, "is a display adapter");
    }
    return withdrawn;
  }

  std::string service_path() const {
    return dra::service_socket_path(node_.config.gpulet.kubelet_dir + "/plugins",
                                    std::string(dra::kDriverName));
  }

  void serve() {
    node_.claim_services->open_services(
        node_.loop, {std::string(dra::kDriverName), service_path()},
        {.prepare =
             [this](const auto& claims, auto done) {
               controller_->prepare_claims(claims, [this, done = std::move(done)](auto prepared) {
                 done(std::move(prepared));
                 node_.notify_allocated();
               });
             },
         .unprepare =
             [this](const auto& claims) {
               auto ended = controller_->unprepare_claims(claims);
               node_.notify_allocated();
               return ended;
             },
         .registered =
             [this](const Status& status) {
               registration_wait_.reset();
               if (!status) return log::warning("claims are not served", status.error());
               log::info("registered with the kubelet", {{"driver", dra::kDriverName}});
               publish_devices();
             }});
  }

  void publish_devices() {
    is_published_ = true;
    if (!pool_) return;
    std::vector<dra::Device> devices;
    for (const auto& offered : pool_->devices) devices.push_back(offered.device);
    publisher_->set_devices(std::move(devices));
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
          auto facts = std::make_shared<DeviceFacts>(
              DeviceFacts{make_gpu_spec(*snapshot, config), read_pcie_roots(*snapshot, config)});
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
    offer_devices();
    node_.published_claim_devices = dra::shown_uuids(publisher_->shown_slices()).size();
  }

  // What claims are prepared from.
  void offer_devices() {
    if (!controller_) return;
    if (!is_driver_open_ || !pool_ || !facts_ || !facts_->base) return controller_->set_devices(nullptr);
    const auto& settings = node_.config.gpulet.dra;
    controller_->set_devices(std::make_shared<const dra::NodeDevices>(dra::NodeDevices{
        *pool_,
        *facts_->base,
        dra::shown_uuids(publisher_->shown_slices()),
        {.time_slicing_settings = settings.time_slicing_settings, .mps_support = settings.mps_support}}));
  }

  // To the kubelet, where it differs from what was sent last.
  void report_health() {
    const auto* agent = node_.devices->agent();
    const auto view = agent != nullptr ? agent->health_view() : nullptr;
    if (!view || !pool_) return;
    auto report = dra::make_health_report(*pool_, controller_->records(), *view);
    if (report == reported_) return;
    reported_ = std::move(report);
    const auto since_1970 = node_.loop.wall_now().time_since_epoch();
    node_.claim_services->send_health(
        {.pool = node_.client_config->node_name,
         .unix_time_s = std::chrono::duration_cast<std::chrono::seconds>(since_1970).count(),
         .devices = reported_});
  }

  void resend_health() {
    reported_.clear();
    report_health();
    health_timer_ = node_.loop.after(kHealthInterval, [this] { resend_health(); });
  }

  void report_notes() {
    std::set<std::string> now;
    for (const auto& note : pool_->notes) {
      now.insert(note);
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
  std::unique_ptr<dra::ClaimSource> source_;
  std::unique_ptr<dra::ClaimController> controller_;
  std::unique_ptr<dra::SlicePublisher> publisher_;
  std::vector<std::unique_ptr<dra::ServedSocket>> sockets_;
  inventory::SnapshotPtr snapshot_;
  std::optional<DeviceFacts> facts_;
  std::string facts_key_;  // spec_inputs_key() of the newest reading
  dra::DeviceArranger arranger_;
  std::shared_ptr<const dra::DevicePool> pool_;
  std::vector<dra::DeviceHealth> reported_;  // empty where it is to be sent again
  bool is_driver_open_ = false, is_published_ = false;
  bool reading_ = false, read_again_ = false;
  std::set<std::string> notes_;
  std::string spec_error_;
  Backoff backoff_{kSpecRetry, 0};
  Subscription retry_, orphan_timer_, health_timer_, registration_wait_;
  Lifetime lifetime_;
};

class ClaimComponent final : public Component {
 public:
  ClaimComponent(Node& node, MpsController& mps) : node_(node), mps_(mps) {}

  void start() override { begin_serving(); }
  void apply_config() override {
    begin_serving();
    update_devices();
    if (node_.is_config_pending || node_.config.gpulet.dra.enabled == node_.serves_claims()) return;
    log::warning("gpulet.dra.enabled has changed: it takes effect when the agent starts again");
  }
  void attach_devices() override { update_devices(); }
  void on_state_changed() override { update_devices(); }
  void on_device_nodes_changed() override {
    if (server_) server_->refresh_facts();
  }
  void on_health_changed(const health::HealthViewPtr&, const std::vector<health::StatusChange>&) override {
    update_devices();
  }
  void add_counts(NodeCounts& counts) const override {
    if (server_) counts.claims = server_->stats();
  }

 private:
  void update_devices() {
    if (server_) server_->update_devices();
  }

  void begin_serving() {
    if (server_ || node_.is_config_pending || !node_.serves_claims()) return;
    if (!node_.client_config || node_.client_config->node_name.empty()) {
      return log::error("gpulet.dra.enabled needs a cluster and the node's name (NODE_NAME)");
    }
    auto server = ClaimServer::serve_claims(node_, mps_);
    if (!server) return log::error("claims are not served", server.error());
    server_ = std::move(*server);
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
