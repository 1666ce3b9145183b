#include "extender/run.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "base/signals.h"
#include "cluster/events.h"
#include "extender/feed.h"
#include "extender/service.h"
#include "scheduler/request.h"
#include "web/door.h"
#include "web/listening.h"
#include "web/server.h"

namespace gpulet::extender {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPemBytes = 1u << 20;
// A certificate and its key are two files, and Kubernetes changes a Secret's one after the other in no time.
constexpr Duration kSettle = 100ms;

Result<web::Access> read_access(const Options& options) {
  web::Access access;
  if (options.certificate_file.empty() && options.key_file.empty()) {
    if (options.client_authorities_file.empty()) return access;
    return fail(Code::kInvalidArgument,
                "clients' certificates need ours too: --tls-cert-file and --tls-key-file");
  }
  web::Tls& tls = access.tls.emplace();
  tls.certificate_about = options.certificate_file;
  tls.key_about = options.key_file;
  tls.client_authorities_about = options.client_authorities_file;
  GPULET_TRY_ASSIGN(tls.certificate, read_file(options.certificate_file, kMaxPemBytes));
  GPULET_TRY_ASSIGN(tls.key, read_file(options.key_file, kMaxPemBytes));
  if (!options.client_authorities_file.empty()) {
    GPULET_TRY_ASSIGN(tls.client_authorities, read_file(options.client_authorities_file, kMaxPemBytes));
    tls.clients = web::ClientCertificates::kRequireAndVerify;
  }
  GPULET_TRY(web::check(access));
  return access;
}

class Process {
 public:
  Process(Options options, cluster::Access access)
      : options_(std::move(options)), access_(std::move(access)) {}

  Status run() {
    GPULET_TRY_ASSIGN(const auto signals,
                      SignalWatch::start(loop_, {SIGTERM, SIGINT, SIGQUIT}, [this](int) { leave(); }));
    GPULET_TRY_ASSIGN(auto access, read_access(options_));
    GPULET_TRY(door_.set(std::move(access)));
    follow_files();
    GPULET_TRY_ASSIGN(listening_, web::listen_on(options_.listen));
    events_ = cluster::EventSender::start(loop_, access_);
    feed_.emplace(loop_, access_, view_, cluster::CollectionTiming{}, [this] {
      log::info("every list is in", {{"nodes", view_.nodes()}, {"pods", view_.pods()}});
    });
    service_.emplace(ServicePorts{.loop = loop_,
                                  .view = view_,
                                  .feed = *feed_,
                                  .event = [this](cluster::Event event) { events_->send(std::move(event)); }},
                     options_.policy, options_.nodes_to_score);
    server_.emplace(loop_, listening_.get(), *service_, door_,
                    web::ServerLimits{
                        .exchange = 30s, .idle = 5min, .head_bytes = 16u << 10, .body_bytes = kMaxBodyBytes});
    log::info("serving kube-scheduler", {{"listen", options_.listen},
                                         {"port", web::port_of(listening_.get())},
                                         {"tls", door_.encrypted()},
                                         {"policy", options_.policy}});
    loop_.run();
    return {};
  }

 private:
  // Whoever chooses among the replicas sees that this one is not ready before it is gone.
  void leave() {
    if (leaving_ || options_.leave_seconds == 0) return loop_.stop();
    service_->leave();
    leaving_ = loop_.after(std::chrono::seconds(options_.leave_seconds), [this] { loop_.stop(); });
  }

  void follow_files() {
    for (const auto* const file :
         {&options_.certificate_file, &options_.key_file, &options_.client_authorities_file}) {
      if (file->empty()) continue;
      auto watch =
          FileWatch::start(loop_, *file, [this] { settling_ = loop_.after(kSettle, [this] { reload(); }); });
      if (watch) {
        watches_.push_back(std::move(*watch));
      } else {
        log::warning("changes of a certificate are not seen", watch.error());
      }
    }
  }

  void reload() {
    auto access = read_access(options_);
    if (access) {
      if (const auto set = door_.set(std::move(*access)); set)
        return log::info("the certificate is read anew");
    }
    log::warning(
        "the new certificate is not taken; the one before stays",
        access ? Error(Code::kInvalidArgument, "it is refused", options_.certificate_file) : access.error());
  }

  const Options options_;
  const cluster::Access access_;
  EpollLoop loop_;
  scheduler::ClusterView view_;
  web::Door door_;
  FileDescriptor listening_;
  std::vector<std::unique_ptr<FileWatch>> watches_;
  Subscription settling_, leaving_;
  std::unique_ptr<cluster::EventSender> events_;
  std::optional<Feed> feed_;
  std::optional<ExtenderService> service_;
  std::optional<web::Server> server_;
};

// Who it is in events: the Pod, or else the host.
std::string own_name(const std::map<std::string, std::string, std::less<>>& environment) {
  const auto name = environment.find("HOSTNAME");
  if (name != environment.end() && !name->second.empty()) return name->second;
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? std::string(host.data()) : "gpulet-scheduler";
}

}  // namespace

Status run(const Options& options, std::map<std::string, std::string, std::less<>> environment) {
  if (const auto policy = scheduler::parse_policy(options.policy); !policy) {
    return fail(Code::kInvalidArgument, policy.error().message(), "--policy " + options.policy);
  }
  // It is of no node; what tells its events apart is its own name.
  environment["NODE_NAME"] = own_name(environment);
  GPULET_TRY_ASSIGN(auto access, cluster::find_access(environment));
  if (!access) {
    return fail(Code::kFailedPrecondition,
                "there is no API server: run it in a cluster, or set KUBECONFIG to a kubeconfig file");
  }
  ::signal(SIGPIPE, SIG_IGN);
  return Process(options, std::move(*access)).run();
}

}  // namespace gpulet::extender
