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

}  // namespace

NodePages::NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
                     std::function<NodeMetrics::Counts()> counts,
                     const std::map<std::string, std::string, std::less<>>& environment, std::string version)
    : loop_(loop),
      reporter_(reporter),
      agent_(std::move(agent)),
      counts_(std::move(counts)),
      version_(std::move(version)),
      metrics_(loop, reporter, node_name(environment), now_fields(), [this] { on_sampled(); }),
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
  const auto& own = config.gpulet;
  if (address_ && (*address_ != own.listen || web_config_ != own.web_config_file)) listen(config);
}

void NodePages::listen(const config::Config& config) {
  address_ = config.gpulet.listen;
  web_config_ = config.gpulet.web_config_file;
  open();
}

void NodePages::open() {
  std::unique_ptr<WebAccess> access;
  retry_.reset();
  if (!address_->empty() && !web_config_.empty()) {
    auto started = WebAccess::start(loop_, web_config_, [this](const web::Access& now) {
      return listener_ ? listener_->set_access(now) : Status{};
    });
    if (!started) {
      reporter_.event(Reporter::Severity::kWarning, "WebConfig",
                      started.error().text() + " (gpulet.webConfigFile); " +
                          (listener_ ? "what was in force stays" : "nothing is served"));
      auto retry = FileWatch::start(loop_, web_config_, [this] { loop_.post([this] { open(); }); });
      if (retry) retry_ = std::move(*retry);
      return;
    }
    access = std::move(*started);
  }
  listener_.reset();
  metrics_.watch(false);  // who watched comes again
  access_ = std::move(access);
  if (address_->empty()) return;
  auto listener =
      web::Listener::start(loop_, *address_,
                           {.access = access_ ? access_->access() : web::Access{},
                            .watched = [this](unsigned watchers) { metrics_.watch(watchers > 0); }});
  if (!listener) {
    // The GPUs are worth more than the page about them.
    reporter_.event(
        Reporter::Severity::kWarning, "ListenFailed",
        listener.error().text() + " (gpulet.listen); no /healthz, /readyz and /metrics are served");
    return;
  }
  listener_ = std::move(*listener);
  log::info("listening", {{"address", *address_}, {"port", listener_->port()}});
}

void NodePages::on_sampled() {
  const auto* care = metrics_.care();
  if (care == nullptr) return;
  page_.on_sample(care->meter().sample(), loop_.wall_now());
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
