#include "agent/observe/node_pages.h"

#include <unistd.h>

#include <algorithm>

#include "agent/observe/sample_json.h"
#include "agent/observe/usage_json.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "mig/device_holders.h"

namespace gpulet::agent {
namespace {

using Type = metrics::Exposition::Type;

std::string join_lines(const std::vector<std::string>& texts) {
  std::string joined;
  for (const auto& text : texts) joined += text + "\n";
  return joined;
}

}  // namespace

web::Pages build_status_pages(const AgentStatus& state) {
  const auto problems = state.problems();
  web::Pages pages;
  pages.healthy = !state.stuck;
  const std::string text = mig::without_process_names(join_lines(problems));
  if (state.stuck) pages.health_text = text;
  pages.ready = problems.empty();
  pages.ready_text = text;
  pages.has_metrics = false;
  return pages;
}

void write_metrics(web::Pages& pages, const AgentStatus& state,
                   const std::map<std::string, std::uint64_t>& events, const std::string& version,
                   const std::function<void(metrics::Exposition&)>& add) {
  metrics::Exposition page;
  page.add_sample("gpulet_build_info", Type::kGauge, "Version of the running agent.", {{"version", version}},
                  1);
  if (!state.without_gpu) {
    page.add_sample("gpulet_driver_up", Type::kGauge, "Whether the NVIDIA driver responds.", {},
                    state.driver_answers ? 1 : 0);
  }
  page.add_sample("gpulet_config_last_reload_successful", Type::kGauge,
                  "0 while the config file is invalid and the previous config is in force.", {},
                  state.config_error ? 0 : 1);
  page.add_sample("gpulet_config_reloads_total", Type::kCounter, "Configurations applied since start.", {},
                  state.config_reloads);
  page.add_sample("gpulet_config_reload_failures_total", Type::kCounter,
                  "Configurations rejected since start.", {}, state.config_reload_failures);
  page.add_sample("gpulet_registrations_total", Type::kCounter,
                  "Registrations accepted by the kubelet since start.", {}, state.registrations);
  for (const auto& resource : state.resources) {
    const auto& name = resource.name.str();
    page.add_sample("gpulet_devices", Type::kGauge, "Devices offered to the kubelet, by health.",
                    {{"resource", name}, {"health", "Healthy"}}, resource.healthy);
    page.add_sample("gpulet_devices", Type::kGauge, "Devices offered to the kubelet, by health.",
                    {{"resource", name}, {"health", "Unhealthy"}}, resource.devices - resource.healthy);
    page.add_sample("gpulet_resource_registered", Type::kGauge,
                    "Whether the kubelet accepted the resource and watches it.", {{"resource", name}},
                    resource.registered && resource.watched ? 1 : 0);
  }
  for (const auto& [reason, count] : events) {
    page.add_sample("gpulet_events_total", Type::kCounter, "Events reported by the agent, by reason.",
                    {{"reason", reason}}, count);
  }
  if (add) add(page);
  pages.metrics = page.text_format();
  pages.open_metrics = page.open_metrics_format();
  pages.has_metrics = true;
}

namespace {

// A certificate and its key are two files that Kubernetes changes one after the other: read both after the
// last.
constexpr Duration kWebFilesSettle = std::chrono::milliseconds(100);

http::ClientAuthType client_certificates(config::ClientAuth auth) {
  switch (auth) {
    case config::ClientAuth::kNoClientCert:
      break;
    case config::ClientAuth::kRequestClientCert:
      return http::ClientAuthType::kRequest;
    case config::ClientAuth::kRequireAnyClientCert:
      return http::ClientAuthType::kRequireAny;
    case config::ClientAuth::kVerifyClientCertIfGiven:
      return http::ClientAuthType::kVerifyIfGiven;
    case config::ClientAuth::kRequireAndVerifyClientCert:
      return http::ClientAuthType::kRequireAndVerify;
  }
  return http::ClientAuthType::kNone;
}

}  // namespace

http::AccessRules access_from_config(const config::WebConfig& config) {
  http::AccessRules access{.users = config.users, .headers = config.headers};
  if (!config.tls) return access;
  http::TlsServerConfig& tls = access.tls.emplace();
  tls.certificate = config.tls->certificate.text;
  tls.certificate_source = config.tls->certificate.source;
  tls.key = config.tls->key.text;
  tls.key_source = config.tls->key.source;
  tls.client_authorities = config.tls->client_authorities.text;
  tls.client_authorities_source = config.tls->client_authorities.source;
  tls.clients = client_certificates(config.tls->client_auth);
  tls.client_names = config.tls->client_allowed_sans;
  tls.min_version = config.tls->min_version;
  tls.max_version = config.tls->max_version;
  tls.ciphers = text::join(config.tls->ciphers, ":");
  tls.curves = text::join(config.tls->curves, ":");
  tls.prefer_server_ciphers = config.tls->prefer_server_ciphers;
  return access;
}

WebConfigWatcher::WebConfigWatcher(Loop& loop, std::string file,
                                   std::function<Status(const http::AccessRules&)> apply)
    : loop_(loop), file_(std::move(file)), apply_(std::move(apply)) {}

Result<std::unique_ptr<WebConfigWatcher>> WebConfigWatcher::start_watching(
    Loop& loop, std::string file, std::function<Status(const http::AccessRules&)> apply) {
  std::unique_ptr<WebConfigWatcher> started(new WebConfigWatcher(loop, std::move(file), std::move(apply)));
  GPULET_TRY_ASSIGN(started->access_, started->load_access());
  GPULET_TRY(started->watch_files());
  return started;
}

Result<http::AccessRules> WebConfigWatcher::load_access() {
  auto reading = config::read_web_config(file_);
  files_ = std::move(reading.files);
  if (!reading.config) return fail(std::move(reading.config.error()));
  http::AccessRules access = access_from_config(*reading.config);
  const auto checked = http::check_access_rules(access);
  if (checked) return access;
  // The error is about one of the files, or about a field of the first of them.
  const Error& error = checked.error();
  if (std::ranges::find(files_, error.subject()) != files_.end()) return fail(error);
  return fail(error.code(), error.full_message(), file_);
}

Status WebConfigWatcher::watch_files() {
  if (files_ == watched_files_) return {};
  std::vector<std::unique_ptr<FileWatcher>> watches;
  for (const auto& file : files_) {
    GPULET_TRY_ASSIGN(auto watch, FileWatcher::watch_path(loop_, file, [this] {
                        if (!read_timer_)
                          read_timer_ = loop_.after(kWebFilesSettle, [this] { on_changed(); });
                      }));
    watches.push_back(std::move(watch));
  }
  watches_ = std::move(watches);
  watched_files_ = files_;
  return {};
}

void WebConfigWatcher::on_changed() {
  read_timer_.reset();
  auto access = load_access();
  if (const auto followed = watch_files(); !followed)
    log::warning("cannot watch the web config", followed.error());
  Status result;
  if (!access) {
    result = fail(access.error());
  } else if (*access != access_) {
    result = apply_(*access);
    if (result) {
      access_ = std::move(*access);
      log::info("web config reloaded", {{"file", file_}});
    }
  }
  const bool is_logged = !result && error_ && error_->full_message() == result.error().full_message();
  if (!result && !is_logged)
    log::error("the web config is invalid; the previous one stays in force", result.error());
  error_ = result ? std::nullopt : std::optional<Error>(result.error());
}

namespace {

// Between confirmations of the pages: well inside web::kPagesMaxAge.
constexpr Duration kHeartbeat = std::chrono::seconds(5);
// From a change of a number to its publication.
constexpr Duration kSoon = std::chrono::seconds(1);
// Between publications without an event. Longer than the default interval of samples, each of which
// publishes.
constexpr Duration kRefresh = std::chrono::seconds(20);

std::string node_name_of(const std::map<std::string, std::string, std::less<>>& environment) {
  if (const auto node = environment.find("NODE_NAME"); node != environment.end() && !node->second.empty())
    return node->second;
  return host_name();
}

// Sampled in addition to the fields of the metrics page.
std::set<metrics::Field> sampled_fields() {
  auto fields = now_json_fields();
  fields.merge(load_sample_fields());
  return fields;
}

}  // namespace

NodePages::NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
                     std::function<NodeCounts()> counts,
                     const std::map<std::string, std::string, std::less<>>& environment, std::string version,
                     std::shared_ptr<placement::LoadBoard> loads)
    : loop_(loop),
      reporter_(reporter),
      agent_(std::move(agent)),
      counts_(std::move(counts)),
      version_(std::move(version)),
      metrics_(
          loop, reporter, node_name_of(environment), sampled_fields(), [this] { on_sampled(); },
          [this] {
            const auto* agent = agent_();
            return agent == nullptr ? device_plugin::DevicesByResource{} : agent->devices_by_resource();
          }),
      loads_(std::move(loads)),
      page_(node_name_of(environment), version_) {
  reporter_.set_listener(
      [this](Reporter::Severity severity, std::string_view reason, const std::string& message) {
        page_.record_event(severity == Reporter::Severity::kWarning, std::string(reason), message,
                           loop_.wall_now());
        publish_soon();
      });
}

void NodePages::attach_driver(NvmlDriver& driver, device_plugin::PodResources& pod_resources,
                              const config::Config& config) {
  metrics_.attach_driver(driver, pod_resources, config);
}

void NodePages::detach_driver() {
  metrics_.detach_driver();
  loads_->set_loads({});
}

void NodePages::apply_pages_config(const config::Config& config) {
  metrics_.apply_metrics_config(config);
  const auto& metrics = config.gpulet.metrics;
  if (!metrics.enabled || metrics.interval <= Duration::zero()) loads_->set_loads({});
  if (endpoints_ && *endpoints_ != endpoints_of(config)) start_listening(config);
}

NodePages::Endpoints NodePages::endpoints_of(const config::Config& config) {
  const auto& own = config.gpulet;
  return {own.listen, own.web_config_file, own.socket, own.socket_mode};
}

void NodePages::start_listening(const config::Config& config) {
  endpoints_ = endpoints_of(config);
  open_listener();
}

std::optional<std::unique_ptr<WebConfigWatcher>> NodePages::read_access(bool& served) {
  const auto& file = endpoints_->web_config;
  served = !endpoints_->address.empty();
  if (!served || file.empty()) return nullptr;
  auto started = WebConfigWatcher::start_watching(loop_, file, [this](const http::AccessRules& now) {
    return listener_ ? listener_->set_access_rules(now) : Status{};
  });
  if (started) return std::move(*started);
  served = false;
  const bool stays = listener_ && listener_->listening_port() != 0;
  reporter_.report_event(
      Reporter::Severity::kWarning, "WebConfig",
      started.error().full_message() + " (gpulet.webConfigFile); " +
          (stays ? "the previous one stays in force" : "nothing is served at " + endpoints_->address));
  auto retry = FileWatcher::watch_path(loop_, file, [this] { loop_.post([this] { open_listener(); }); });
  if (retry) retry_ = std::move(*retry);
  if (stays) return std::nullopt;
  return nullptr;
}

void NodePages::open_socket() {
  if (socket_ && socket_->socket_path() == endpoints_->socket && socket_->mode() == endpoints_->socket_mode)
    return;
  socket_.reset();
  if (endpoints_->socket.empty()) return;
  auto socket = http::LocalSocket::listen_unix(endpoints_->socket, endpoints_->socket_mode);
  if (socket) {
    socket_ = std::move(*socket);
    return;
  }
  reporter_.report_event(Reporter::Severity::kWarning, "ListenFailed",
                         socket.error().full_message() + " (gpulet.socket); `gpulet top` cannot connect");
}

void NodePages::open_listener() {
  retry_.reset();
  bool network = false;
  auto access = read_access(network);
  if (!access) return;
  listener_.reset();
  metrics_.set_watched(false);  // clients reconnect
  access_ = std::move(*access);
  open_socket();
  const auto start = [this](const std::string& address) {
    return web::Listener::start_listener(
        loop_, address,
        {.access_rules = access_ ? access_->access() : http::AccessRules{},
         .local = socket_,
         .on_subscribers = [this](unsigned watchers) { metrics_.set_watched(watchers > 0); },
         .on_metrics_wanted = [this] { publish_metrics(); }});
  };
  if (network) {
    auto listener = start(endpoints_->address);
    if (listener) {
      listener_ = std::move(*listener);
      log::info("listening", {{"address", endpoints_->address}, {"port", listener_->listening_port()}});
      return;
    }
    // The GPUs are served without the pages about them.
    reporter_.report_event(
        Reporter::Severity::kWarning, "ListenFailed",
        listener.error().full_message() + " (gpulet.listen); no /healthz, /readyz and /metrics are served");
  }
  if (!socket_) return;
  auto listener = start({});
  if (listener) {
    listener_ = std::move(*listener);
    return;
  }
  reporter_.report_event(Reporter::Severity::kWarning, "ListenFailed",
                         listener.error().full_message() + " (gpulet.socket)");
}

void NodePages::on_sampled() {
  const auto* collector = metrics_.collector();
  if (collector == nullptr) return;
  const auto& aggregator = collector->aggregator();
  page_.set_sample(aggregator, loop_.wall_now());
  page_.set_usage(usage_json(aggregator.usage_accounting(), metrics_.usage_since().value_or(WallTime{})));
  load_forecasts_.add_load_sample(aggregator.last_sample(), aggregator.attribution(), loop_.wall_now());
  loads_->set_loads(load_forecasts_.gpu_loads(loop_.wall_now()));
  if (const auto* containers = collector->containers()) page_.set_containers(*containers);
  if (sampled_) sampled_();
  publish_pages();
}

void NodePages::publish_soon() {
  if (!soon_) soon_ = loop_.after(kSoon, [this] { publish_pages(); });
}

// Whether the agent is stuck is the one thing that time alone changes.
void NodePages::confirm_pages() {
  heartbeat_ = loop_.after(kHeartbeat, [this] { confirm_pages(); });
  const auto* agent = agent_();
  if (agent != nullptr && agent->status().stuck != published_stuck_) return publish_pages();
  if (listener_) listener_->confirm_pages();
}

std::optional<NodePages::PublishedState> NodePages::current_state() {
  const auto* agent = agent_();
  if (agent == nullptr) return std::nullopt;
  PublishedState now{.status = agent->status(), .counts = counts_()};
  auto& problems = now.status.other_problems;
  problems.insert(problems.end(), now.counts.problems.begin(), now.counts.problems.end());
  published_stuck_ = now.status.stuck;
  metrics_.set_snapshot(now.status.driver_answers ? now.status.snapshot : nullptr);
  if (!listener_) return std::nullopt;
  page_.set_snapshot(now.status.snapshot);
  page_.set_problems(now.status.problems());
  page_.set_devices(agent->devices_by_resource());
  page_.set_claims(now.counts.claim_status);
  page_.set_memory_limit(now.counts.memory_limit);
  page_.set_power(now.counts.power);
  page_.set_cut_off(now.counts.containers_cut_off.value_or(std::vector<std::string>()));
  return now;
}

void NodePages::publish_pages() {
  soon_.reset();
  heartbeat_ = loop_.after(kHeartbeat, [this] { confirm_pages(); });
  refresh_ = loop_.after(kRefresh, [this] { publish_pages(); });
  const auto now = current_state();
  if (!now) return;
  auto pages = build_status_pages(now->status);
  page_.write_pages(pages);
  listener_->publish_pages(std::move(pages));
}

void NodePages::publish_metrics() {
  const auto now = current_state();
  if (!now) return;
  auto pages = build_status_pages(now->status);
  page_.write_pages(pages);
  write_metrics(pages, now->status, reporter_.event_counts(), version_, [&](metrics::Exposition& page) {
    metrics_.add_to(page, now->status, agent_()->health_view(), now->counts);
    if (metrics_.collector() != nullptr && now->status.snapshot)
      metrics::add_forecast_metrics(page, *now->status.snapshot,
                                    load_forecasts_.horizon_forecasts(loop_.wall_now()));
  });
  listener_->publish_pages(std::move(pages));
}

}  // namespace gpulet::agent
