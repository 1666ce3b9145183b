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
                     const std::map<std::string, std::string, std::less<>>& environment, std::string version)
    : loop_(loop),
      reporter_(reporter),
      agent_(std::move(agent)),
      version_(std::move(version)),
      metrics_(loop, reporter, node_name(environment), [this] { publish(); }) {}

void NodePages::attach(NvmlDriver& driver, kubelet::PodResources& pod_resources,
                       const config::Config& config) {
  metrics_.attach(driver, pod_resources, config);
}

void NodePages::apply(const config::Config& config) {
  metrics_.apply(config);
  if (address_ && *address_ != config.gpulet.listen) listen(config);
}

void NodePages::listen(const config::Config& config) {
  const auto& address = config.gpulet.listen;
  address_ = address;
  listener_.reset();
  if (address.empty()) return;
  auto listener = web::Listener::start(loop_, address);
  if (!listener) {
    // The GPUs are worth more than the page about them.
    reporter_.event(
        Reporter::Severity::kWarning, "ListenFailed",
        listener.error().text() + " (gpulet.listen); no /healthz, /readyz and /metrics are served");
    return;
  }
  listener_ = std::move(*listener);
  log::info("listening", {{"address", address}, {"port", listener_->port()}});
}

void NodePages::publish() {
  heartbeat_ = loop_.after(kHeartbeat, [this] { publish(); });
  const auto* agent = agent_();
  if (!agent) return;
  const auto state = agent->state();
  metrics_.on_snapshot(state.driver_answers ? state.snapshot : nullptr);
  if (!listener_) return;
  listener_->publish(status_pages(state, reporter_.counts(), version_, [&](metrics::Exposition& page) {
    metrics_.add_to(page, state, agent->health());
  }));
}

}  // namespace gpulet::agent
