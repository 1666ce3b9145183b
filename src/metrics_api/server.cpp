#include "metrics_api/server.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "cluster/object_watch.h"
#include "metrics_api/agents.h"
#include "metrics_api/asker.h"
#include "metrics_api/reviews.h"
#include "metrics_api/service.h"
#include "web/door.h"
#include "web/listening.h"
#include "web/self_signed.h"
#include "web/server.h"

namespace gpulet::metrics_api {
namespace {

constexpr const char* kName = "gpulet-metrics-api";
// Longer than any process of it runs: one that has expired would only be refused where nobody checks
// anything.
constexpr std::chrono::hours kSelfSignedFor{10 * 365 * 24};
constexpr std::size_t kMaxPemBytes = 1u << 20;
// The API server keeps its connections to us for 90 s, and should be the one that closes them. An answer may
// wait for a right, a list of Pods, a list of agents and the agents' patience.
constexpr web::ServerLimits kLimits{
    .exchange = std::chrono::seconds(25), .idle = std::chrono::seconds(100), .head_bytes = 64u << 10};
// Strangers' tokens.
constexpr AskerLimits kTokenLimits{.at_once = 2, .waiting = 32};

class Joined final : public Server {
 public:
  Joined(Loop& loop, const cluster::Access& access, const ServerOptions& options)
      : loop_(loop),
        options_(options),
        tokens_(loop, access, kTokenLimits),
        asker_(loop, access, {}),
        reviews_(loop, tokens_, asker_),
        agents_(loop, asker_, options.agents),
        scraper_(loop, options.scrape),
        pages_(loop, agents_, scraper_, options.pages),
        service_(reviews_, asker_, pages_) {}

  Status begin(const cluster::Access& access) {
    if (options_.certificate_file.empty() != options_.key_file.empty()) {
      return fail(Code::kInvalidArgument, "one is of no use without the other",
                  "--tls-cert-file, --tls-private-key-file");
    }
    GPULET_TRY_ASSIGN(own_, read_own());
    GPULET_TRY(apply(own_, proxy_));
    GPULET_TRY_ASSIGN(listening_, web::listen_on(options_.listen));
    for (const auto* file : {&options_.certificate_file, &options_.key_file}) {
      if (file->empty()) continue;
      GPULET_TRY_ASSIGN(auto watch, FileWatch::start(loop_, *file, [this] { on_files(); }));
      watches_.push_back(std::move(watch));
    }
    server_ = std::make_unique<web::Server>(loop_, listening_.get(), service_, door_, kLimits);
    trust_ =
        cluster::ObjectWatch::start(loop_, access,
                                    {.collection = "/api/v1/namespaces/kube-system/configmaps",
                                     .name = "extension-apiserver-authentication",
                                     .about = "whom its front proxy is to be known by",
                                     .right = "configmaps extension-apiserver-authentication in kube-system"},
                                    {}, [this](const nlohmann::json& map) { on_trust(map); });
    return {};
  }

  std::uint16_t port() const override { return web::port_of(listening_.get()); }

 private:
  Result<web::KeyPair> read_own() {
    if (options_.certificate_file.empty()) return web::self_signed(kName, loop_.wall_now(), kSelfSignedFor);
    GPULET_TRY_ASSIGN(auto certificate, read_file(options_.certificate_file, kMaxPemBytes));
    GPULET_TRY_ASSIGN(auto key, read_file(options_.key_file, kMaxPemBytes));
    return web::KeyPair{std::move(certificate), std::move(key)};
  }

  // Connections from before get one more answer, and are trusted as they were.
  Status apply(const web::KeyPair& own, const FrontProxy& proxy) {
    const bool asks = !proxy.authorities.empty();
    return door_.set({.tls = web::Tls{.certificate = own.certificate,
                                      .key = own.key,
                                      .client_authorities = proxy.authorities,
                                      .certificate_about = options_.certificate_file,
                                      .key_about = options_.key_file,
                                      .client_authorities_about = "requestheader-client-ca-file",
                                      .clients = asks ? web::ClientCertificates::kVerifyIfGiven
                                                      : web::ClientCertificates::kNone}});
  }

  void on_files() {
    auto own = read_own();
    const Status applied = own ? apply(*own, proxy_) : Status(fail(own.error()));
    if (!applied) return log::warning("the certificate from before stays in force", applied.error());
    if (own->certificate != own_.certificate) log::info("a new certificate is in force");
    own_ = std::move(*own);
  }

  void on_trust(const nlohmann::json& map) {
    auto proxy = front_proxy_of(map);
    if (proxy && known_ && *proxy == proxy_) return;
    const Status applied = proxy ? apply(own_, *proxy) : Status(fail(proxy.error()));
    if (!applied) {
      return log::warning("the front proxy is known as before", applied.error(),
                          {{"configmap", "kube-system/extension-apiserver-authentication"}});
    }
    if (proxy->authorities.empty()) {
      log::warning("the API server names no front proxy: only bearer tokens are taken",
                   {{"configmap", "kube-system/extension-apiserver-authentication"}});
    }
    known_ = true;
    proxy_ = *proxy;
    service_.trust(std::move(*proxy));
  }

  Loop& loop_;
  const ServerOptions options_;
  Asker tokens_, asker_;
  Reviews reviews_;
  Agents agents_;
  Scraper scraper_;
  Pages pages_;
  MetricsService service_;
  web::Door door_;
  web::KeyPair own_;
  FrontProxy proxy_;
  bool known_ = false;
  FileDescriptor listening_;
  std::vector<std::unique_ptr<FileWatch>> watches_;
  std::unique_ptr<web::Server> server_;
  std::unique_ptr<cluster::ObjectWatch> trust_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start(Loop& loop, const cluster::Access& access,
                                              const ServerOptions& options) {
  auto joined = std::make_unique<Joined>(loop, access, options);
  GPULET_TRY(joined->begin(access));
  return std::unique_ptr<Server>(std::move(joined));
}

}  // namespace gpulet::metrics_api
