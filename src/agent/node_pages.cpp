#include "agent/node_pages.h"

#include <limits.h>
#include <unistd.h>

#include <array>

#include "agent/status_pages.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

// Well inside web::kStale, and no oftener than a page may change without an event.
constexpr Duration kHeartbeat = std::chrono::seconds(2);

std::string node_name(const std::map<std::string, std::string, std::less<>>& environment) {
  if (const auto node = environment.find("NODE_NAME"); node != environment.end() && !node->second.empty())
    return node->second;
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

// Beside what the page of metrics shows.
std::set<metrics::Field> sampled_fields() {
  auto fields = now_fields();
  fields.merge(load_fields());
  return fields;
}

}  // namespace

NodePages::NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
                     std::function<NodeMetrics::Counts()> counts,
                     const std::map<std::string, std::string, std::less<>>& environment, std::string version)
    : loop_(loop),
      reporter_(reporter),
      agent_(std::move(agent)),
      counts_(std::move(counts)),
      version_(std::move(version)),
      metrics_(loop, reporter, node_name(environment), sampled_fields(), [this] { on_sampled(); }),
      page_(node_name(environment), version_) {
  reporter_.set_heard([this](Reporter::Severity severity, std::string_view reason,
                             const std::string& message) {
    page_.on_event(severity == Reporter::Severity::kWarning, std::string(reason), message, loop_.wall_now());
  });
}

void NodePages::attach(NvmlDriver& driver, kubelet::PodResources& pod_resources,
                       const config::Config& config) {
  metrics_.attach(driver, pod_resources, config);
}

void NodePages::apply(const config::Config& config) {
  metrics_.apply(config);
  if (places_ && *places_ != places_of(config)) listen(config);
}

NodePages::Places NodePages::places_of(const config::Config& config) {
  const auto& own = config.gpulet;
  return {own.listen, own.web_config_file, own.socket, own.socket_mode};
}

void NodePages::listen(const config::Config& config) {
  places_ = places_of(config);
  open();
}

std::optional<std::unique_ptr<WebAccess>> NodePages::read_access(bool& served) {
  const auto& file = places_->web_config;
  served = !places_->address.empty();
  if (!served || file.empty()) return nullptr;
  auto started = WebAccess::start(loop_, file, [this](const web::Access& now) {
    return listener_ ? listener_->set_access(now) : Status{};
  });
  if (started) return std::move(*started);
  served = false;
  const bool stays = listener_ && listener_->port() != 0;
  reporter_.event(Reporter::Severity::kWarning, "WebConfig",
                  started.error().text() + " (gpulet.webConfigFile); " +
                      (stays ? "what was in force stays" : "nothing is served at " + places_->address));
  auto retry = FileWatch::start(loop_, file, [this] { loop_.post([this] { open(); }); });
  if (retry) retry_ = std::move(*retry);
  if (stays) return std::nullopt;
  return nullptr;
}

void NodePages::open_socket() {
  if (socket_ && socket_->path() == places_->socket && socket_->mode() == places_->socket_mode) return;
  socket_.reset();
  if (places_->socket.empty()) return;
  auto made = web::LocalSocket::listen(places_->socket, places_->socket_mode);
  if (made) {
    socket_ = std::move(*made);
    return;
  }
  reporter_.event(Reporter::Severity::kWarning, "ListenFailed",
                  made.error().text() + " (gpulet.socket); `gpulet top` finds no agent there");
}

void NodePages::open() {
  retry_.reset();
  bool network = false;
  auto access = read_access(network);
  if (!access) return;
  listener_.reset();
  metrics_.watch(false);  // who watched comes again
  access_ = std::move(*access);
  open_socket();
  const auto start = [this](const std::string& address) {
    return web::Listener::start(loop_, address,
                                {.access = access_ ? access_->access() : web::Access{},
                                 .local = socket_,
                                 .watched = [this](unsigned watchers) { metrics_.watch(watchers > 0); }});
  };
  if (network) {
    auto listener = start(places_->address);
    if (listener) {
      listener_ = std::move(*listener);
      log::info("listening", {{"address", places_->address}, {"port", listener_->port()}});
      return;
    }
    // The GPUs are worth more than the page about them.
    reporter_.event(
        Reporter::Severity::kWarning, "ListenFailed",
        listener.error().text() + " (gpulet.listen); no /healthz, /readyz and /metrics are served");
  }
  if (!socket_) return;
  auto listener = start({});
  if (listener) {
    listener_ = std::move(*listener);
    return;
  }
  reporter_.event(Reporter::Severity::kWarning, "ListenFailed", listener.error().text() + " (gpulet.socket)");
}

void NodePages::on_sampled() {
  const auto* care = metrics_.care();
  if (care == nullptr) return;
  const auto& meter = care->meter();
  page_.on_sample(meter, loop_.wall_now());
  loads_.add(meter.sample(), meter.uses(), loop_.wall_now());
  if (const auto* containers = care->containers()) page_.on_containers(*containers);
  publish();
}

void NodePages::publish() {
  heartbeat_ = loop_.after(kHeartbeat, [this] { publish(); });
  const auto* agent = agent_();
  if (!agent) return;
  const auto state = agent->state();
  metrics_.on_snapshot(state.driver_answers ? state.snapshot : nullptr);
  if (!listener_) return;
  page_.on_snapshot(state.snapshot);
  page_.on_problems(state.problems());
  page_.on_offered(agent->offered());
  auto pages = status_pages(state, reporter_.counts(), version_, [&](metrics::Exposition& page) {
    metrics_.add_to(page, state, agent->health(), counts_());
  });
  page_.put_into(pages);
  listener_->publish(pages);
}

}  // namespace gpulet::agent
