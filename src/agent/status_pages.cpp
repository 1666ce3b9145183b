#include "agent/status_pages.h"

namespace gpulet::agent {
namespace {

using Type = metrics::Exposition::Type;

std::string lines(const std::vector<std::string>& texts) {
  std::string joined;
  for (const auto& text : texts) joined += text + "\n";
  return joined;
}

}  // namespace

web::Pages status_pages(const State& state, const std::map<std::string, std::uint64_t>& events,
                        const std::string& version, const std::function<void(metrics::Exposition&)>& add) {
  const auto problems = state.problems();
  web::Pages pages;
  pages.healthy = !state.stuck;
  if (state.stuck) pages.health_text = lines(problems);
  pages.ready = problems.empty();
  pages.ready_text = lines(problems);

  metrics::Exposition page;
  page.add("gpulet_build_info", Type::kGauge, "The version that runs.", {{"version", version}}, 1);
  page.add("gpulet_driver_up", Type::kGauge, "Whether the NVIDIA driver answers.", {},
           state.driver_answers ? 1 : 0);
  page.add("gpulet_config_last_reload_successful", Type::kGauge,
           "0 while the config file on disk is bad and the one before it is in force.", {},
           state.config_error ? 0 : 1);
  page.add("gpulet_config_reloads_total", Type::kCounter, "Configurations put in force since the start.", {},
           state.config_reloads);
  page.add("gpulet_config_reload_failures_total", Type::kCounter, "Configurations refused since the start.",
           {}, state.config_reload_failures);
  page.add("gpulet_registrations_total", Type::kCounter,
           "Registrations that the kubelet accepted since the start.", {}, state.registrations);
  for (const auto& resource : state.resources) {
    const auto& name = resource.name.str();
    page.add("gpulet_devices", Type::kGauge, "Devices offered to the kubelet, by health.",
             {{"resource", name}, {"health", "Healthy"}}, resource.healthy);
    page.add("gpulet_devices", Type::kGauge, "Devices offered to the kubelet, by health.",
             {{"resource", name}, {"health", "Unhealthy"}}, resource.devices - resource.healthy);
    page.add("gpulet_resource_registered", Type::kGauge,
             "Whether the kubelet accepted the resource and watches it.", {{"resource", name}},
             resource.registered && resource.watched ? 1 : 0);
  }
  for (const auto& [reason, count] : events) {
    page.add("gpulet_events_total", Type::kCounter, "What the agent reported, by the events' reason.",
             {{"reason", reason}}, count);
  }
  if (add) add(page);
  pages.metrics = page.text();
  pages.open_metrics = page.open_metrics();
  return pages;
}

}  // namespace gpulet::agent
