#include "extender/process.h"

#include <malloc.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/file_watch.h"
#include "base/host.h"
#include "base/log.h"
#include "base/process.h"
#include "extender/cluster_page.h"
#include "extender/cluster_watcher.h"
#include "extender/controller_notifier.h"
#include "extender/mig_demand_controller.h"
#include "extender/page_watcher.h"
#include "extender/server.h"
#include "http/access_gate.h"
#include "http/certificate.h"
#include "http/server.h"
#include "http/socket.h"
#include "k8s/event_recorder.h"
#include "metrics_api/authentication.h"
#include "metrics_api/request_pool.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPemBytes = 1u << 20;
// A certificate and its key are two files, which Kubernetes replaces one right after the other.
constexpr Duration kSettle = 100ms;

constexpr const char* kCertificateName = "gpulet-scheduler";
// Of the cluster page. A response may wait for two reviews by the API server.
constexpr http::ServerLimits kPageLimits{.exchange = 25s, .idle = 60s, .head_bytes = 24u << 10};

Result<http::AccessRules> read_tls_access(const ExtenderOptions& options) {
  http::AccessRules access;
  if (options.certificate_file.empty() && options.key_file.empty()) {
    if (options.client_authorities_file.empty()) return access;
    return fail(Code::kInvalidArgument,
                "client certificates need a server certificate: set --tls-cert-file and --tls-key-file");
  }
  http::TlsServerConfig& tls = access.tls.emplace();
  tls.certificate_source = options.certificate_file;
  tls.key_source = options.key_file;
  tls.client_authorities_source = options.client_authorities_file;
  GPULET_TRY_ASSIGN(tls.certificate, read_file(options.certificate_file, kMaxPemBytes));
  GPULET_TRY_ASSIGN(tls.key, read_file(options.key_file, kMaxPemBytes));
  if (!options.client_authorities_file.empty()) {
    GPULET_TRY_ASSIGN(tls.client_authorities, read_file(options.client_authorities_file, kMaxPemBytes));
    tls.clients = http::ClientAuthType::kRequireAndVerify;
  }
  GPULET_TRY(http::check_access_rules(access));
  return access;
}

class ExtenderProcess {
 public:
  ExtenderProcess(ExtenderOptions options, k8s::ClientConfig access)
      : options_(std::move(options)), access_(std::move(access)) {}

  Status run_process() {
    GPULET_TRY_ASSIGN(const auto signals, SignalWatcher::watch_signals(loop_, {SIGTERM, SIGINT, SIGQUIT},
                                                                       [this](int) { begin_shutdown(); }));
    GPULET_TRY(apply_certificates());
    watch_certificates();
    GPULET_TRY_ASSIGN(listener_, http::listen_tcp(options_.listen));
    events_ = k8s::EventRecorder::start_recorder(loop_, access_);
    if (!options_.record.empty()) record_ = AskRecordStore::start_store(loop_, access_, options_.record);
    notifier_.emplace(loop_, access_, cluster_);
    watcher_.emplace(
        loop_, access_, cluster_, k8s::CollectionTiming{},
        [this] {
          log::info("cluster state synced",
                    {{"nodes", cluster_.node_count()}, {"pods", cluster_.pod_count()}});
        },
        [this](const auto& pod) {
          service_->on_pod_bound(pod);
          notifier_->on_bound(pod);
        },
        [this] { service_->on_pod_left(); },
        [this](const auto& node) {
          if (mig_demand_) mig_demand_->set_recorded(node.name, node.mig_demand);
        });
    start_mig_demand();
    std::set<std::string> schedulers(options_.scheduler_names.begin(), options_.scheduler_names.end());
    if (schedulers.empty()) schedulers = {kDefaultScheduler};
    service_.emplace(
        ServiceDependencies{
            .loop = loop_,
            .cluster = cluster_,
            .watcher = *watcher_,
            .send_event = [this](k8s::Event event) { events_->record_event(std::move(event)); },
            .record = record_.get(),
            .schedulers = std::move(schedulers)},
        options_.policy, options_.nodes_to_score);
    server_.emplace(loop_, listener_.get(), *service_, access_gate_,
                    http::ServerLimits{.exchange = 30s,
                                       .idle = 5min,
                                       .head_bytes = 16u << 10,
                                       .body_bytes = kMaxBodyBytes,
                                       .body_budget = kBodyBudget});
    GPULET_TRY(serve_page());
    log::info("serving kube-scheduler", {{"listen", options_.listen},
                                         {"port", http::socket_port(listener_.get())},
                                         {"tls", access_gate_.is_encrypted()},
                                         {"policy", options_.policy}});
    loop_.run_loop();
    return {};
  }

 private:
  // The Service stops sending requests to this replica before it exits.
  void begin_shutdown() {
    if (shutdown_timer_ || options_.shutdown_seconds == 0) return loop_.stop_loop();
    service_->begin_shutdown();
    shutdown_timer_ =
        loop_.after(std::chrono::seconds(options_.shutdown_seconds), [this] { loop_.stop_loop(); });
  }

  void start_mig_demand() {
    if (options_.mig_demand_after_seconds == 0) return;
    status_writer_.emplace(loop_, access_);
    mig_demand_.emplace(
        MigDemandPorts{
            .loop = loop_,
            .cluster = cluster_,
            .is_synced = [this] { return watcher_->is_synced(); },
            .send_event = [this](k8s::Event event) { events_->record_event(std::move(event)); },
            .write = [this](const std::string& node,
                            std::string status) { status_writer_->write_status(node, std::move(status)); }},
        std::chrono::seconds(options_.mig_demand_after_seconds));
    pending_pods_ = watch_pending_pods(loop_, access_, *mig_demand_);
  }

  // Everything that only the cluster page needs.
  Status serve_page() {
    if (options_.page_address.empty()) return {};
    GPULET_TRY_ASSIGN(page_listener_, http::listen_tcp(options_.page_address));
    page_watcher_.emplace(loop_, access_, k8s::CollectionTiming{}, options_.agent_selector);
    if (options_.page_access == PageAccess::kToken) {
      token_requests_.emplace(loop_, access_, metrics_api::kTokenLimits);
      access_requests_.emplace(loop_, access_, metrics_api::RequestPoolLimits{});
      reviewer_.emplace(loop_, *token_requests_, *access_requests_);
    }
    page_.emplace(ClusterPageDependencies{
        .loop = loop_,
        .document = {.cluster = cluster_, .facts = page_watcher_->facts(), .node_page = options_.node_page},
        .problems = [this] { return page_problems(); },
        .reviewer = reviewer_ ? &*reviewer_ : nullptr,
        .extender = *service_});
    page_server_.emplace(loop_, page_listener_.get(), *page_, page_gate_, kPageLimits);
    log::info("serving the cluster page", {{"listen", options_.page_address},
                                           {"port", http::socket_port(page_listener_.get())},
                                           {"tls", page_gate_.is_encrypted()},
                                           {"token", reviewer_.has_value()}});
    return {};
  }

  std::vector<std::string> page_problems() const {
    if (watcher_->is_synced() && page_watcher_->is_synced()) return {};
    std::vector<std::string> lines = {"initial lists are incomplete"};
    for (const auto& line : watcher_->current_problems()) lines.push_back(line);
    for (const auto& line : page_watcher_->current_problems()) lines.push_back(line);
    return lines;
  }

  // Both listeners have the same certificate.
  Status apply_certificates() {
    GPULET_TRY_ASSIGN(auto rules, read_tls_access(options_));
    if (!options_.page_address.empty()) GPULET_TRY(apply_page_rules(rules));
    return access_gate_.set_rules(std::move(rules));
  }

  // Readers of the page are known by their tokens, not by certificates.
  Status apply_page_rules(http::AccessRules rules) {
    if (rules.tls) {
      rules.tls->client_authorities = rules.tls->client_authorities_source = {};
      rules.tls->clients = http::ClientAuthType::kNone;
    } else if (options_.page_access == PageAccess::kToken) {
      if (!own_certificate_) {
        GPULET_TRY_ASSIGN(own_certificate_,
                          http::make_self_signed_certificate(kCertificateName, loop_.wall_now(),
                                                             http::kSelfSignedLifetime));
      }
      rules.tls =
          http::TlsServerConfig{.certificate = own_certificate_->certificate, .key = own_certificate_->key};
    }
    return page_gate_.set_rules(std::move(rules));
  }

  void watch_certificates() {
    for (const auto* const file :
         {&options_.certificate_file, &options_.key_file, &options_.client_authorities_file}) {
      if (file->empty()) continue;
      auto watch = FileWatcher::watch_path(
          loop_, *file, [this] { reload_timer_ = loop_.after(kSettle, [this] { reload_certificates(); }); });
      if (watch) {
        watches_.push_back(std::move(*watch));
      } else {
        log::warning("cannot watch the certificate for changes", watch.error());
      }
    }
  }

  void reload_certificates() {
    if (const auto applied = apply_certificates(); !applied)
      return log::warning("cannot reload the certificate, keeping the previous one", applied.error());
    log::info("certificate reloaded");
  }

  const ExtenderOptions options_;
  const k8s::ClientConfig access_;
  EpollLoop loop_;
  scheduler::ClusterState cluster_;
  http::AccessGate access_gate_;
  FileDescriptor listener_;
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  Subscription reload_timer_, shutdown_timer_;
  std::unique_ptr<k8s::EventRecorder> events_;
  std::unique_ptr<AskRecordStore> record_;
  std::optional<ControllerNotifier> notifier_;
  std::optional<ClusterWatcher> watcher_;
  std::optional<ExtenderService> service_;
  std::optional<http::Server> server_;
  std::optional<GpuNodeStatusWriter> status_writer_;
  std::optional<MigDemandController> mig_demand_;
  std::unique_ptr<k8s::CollectionWatcher> pending_pods_;

  // ---- the cluster page ----
  http::AccessGate page_gate_;
  std::optional<http::KeyPair> own_certificate_;
  FileDescriptor page_listener_;
  std::optional<PageWatcher> page_watcher_;
  std::optional<metrics_api::RequestPool> token_requests_, access_requests_;
  std::optional<metrics_api::AccessReviewer> reviewer_;
  std::optional<ClusterPage> page_;
  std::optional<http::Server> page_server_;
};

// The reporter name in Events: the Pod's, or else the host's.
std::string reporter_name(const std::map<std::string, std::string, std::less<>>& environment) {
  std::string name = "gpulet-scheduler";
  if (const auto pod = environment.find("HOSTNAME"); pod != environment.end() && !pod->second.empty()) {
    name = pod->second;
  } else {
    name = host_name();
  }
  return is_dns_subdomain(name) ? name : "gpulet-scheduler";
}

}  // namespace

Status run_extender(const ExtenderOptions& options,
                    std::map<std::string, std::string, std::less<>> environment) {
  if (const auto policy = scheduler::parse_policy(options.policy); !policy) {
    return fail(Code::kInvalidArgument, policy.error().message(), "--policy " + options.policy);
  }
  if (!options.record.empty() && !is_dns_subdomain(options.record))
    return fail(Code::kInvalidArgument, "expected the name of a ConfigMap", "--record " + options.record);
  for (const auto& name : options.scheduler_names) {
    if (!is_dns_subdomain(name))
      return fail(Code::kInvalidArgument, "expected the name of a scheduler", "--scheduler-name " + name);
  }
  // The extender belongs to no node: its own name identifies its Events.
  environment["NODE_NAME"] = reporter_name(environment);
  GPULET_TRY_ASSIGN(auto access, k8s::find_client_config(environment));
  if (!access) {
    return fail(Code::kFailedPrecondition, "no API server found: run in a cluster, or set KUBECONFIG");
  }
  ::signal(SIGPIPE, SIG_IGN);
  // Bodies get pages of their own, which return to the kernel with them. Source: mallopt(3).
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  return ExtenderProcess(options, std::move(*access)).run_process();
}

}  // namespace gpulet::extender
