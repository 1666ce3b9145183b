#include "extender/server.h"

#include <charconv>

#include "metrics/exposition.h"

namespace gpulet::extender {

namespace {

using Type = metrics::Exposition::Type;

std::string number_text(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace

void Histogram::record_duration(Duration took) {
  const auto micros = static_cast<std::uint64_t>(took / std::chrono::microseconds(1));
  for (std::size_t i = 0; i < kBucketBoundsMicros.size(); ++i) {
    if (micros > kBucketBoundsMicros[i]) continue;
    ++counts_[i];
    break;
  }
  ++count_;
  sum_ += took;
}

std::string Histogram::histogram_text(const std::string& family, const std::string& labels) const {
  std::string text;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < kBucketBoundsMicros.size(); ++i) {
    below += counts_[i];
    const std::string bound = number_text(static_cast<double>(kBucketBoundsMicros[i]) / 1e6);
    text += family + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(below) + "\n";
  }
  text += family + "_bucket{" + labels + ",le=\"+Inf\"} " + std::to_string(count_) + "\n";
  text += family + "_sum{" + labels + "} " + number_text(sum_.count()) + "\n";
  return text + family + "_count{" + labels + "} " + std::to_string(count_) + "\n";
}

std::string metrics_text(const ExtenderMetrics& numbers, const ClusterSizes& sizes) {
  metrics::Exposition page;
  const auto count = [&](const char* name, const char* help, std::uint64_t value,
                         const metrics::Exposition::Labels& labels = {}) {
    page.add_sample(name, Type::kCounter, help, labels, value);
  };
  const auto gauge = [&](const char* name, const char* help, std::uint64_t value) {
    page.add_sample(name, Type::kGauge, help, {}, value);
  };
  for (const auto reason : scheduler::kRejectReasons) {
    const auto found = numbers.rejected.find(reason);
    count("gpulet_scheduler_nodes_refused_total", "Nodes rejected by the filter, by reason.",
          found == numbers.rejected.end() ? 0 : found->second,
          {{"reason", scheduler::reject_reason_name(reason)}});
  }
  count("gpulet_scheduler_nodes_passed_total", "Nodes passed by the filter.", numbers.passed);
  count("gpulet_scheduler_nodes_unpublished_total", "Nodes that passed because they have no GpuNode.",
        numbers.unpublished);
  count("gpulet_scheduler_nodes_left_out_total", "Nodes that fit but are not among the best.",
        numbers.not_scored);
  for (const auto& [result, value] :
       {std::pair("kept", numbers.kept), {"corrected", numbers.corrected}, {"dropped", numbers.dropped}}) {
    count("gpulet_scheduler_preemption_nodes_total",
          "Nodes proposed for preemption: with the proposed victims, with others, or not at all.", value,
          {{"result", result}});
  }
  count("gpulet_scheduler_victim_news_waits_total",
        "Filter requests of nominated Pods that waited for the news that Pods have left.", numbers.waiting);
  count("gpulet_scheduler_unschedulable_total", "Filter requests for which no node passed.",
        numbers.unschedulable);
  count("gpulet_scheduler_bad_requests_total", "Requests rejected as malformed.", numbers.bad_requests);
  count("gpulet_scheduler_malformed_total", "Filter requests for a Pod with a malformed annotation.",
        numbers.malformed);
  count("gpulet_scheduler_pods_not_asked_total",
        "Pods that a scheduler bound without asking any replica about them.", numbers.not_asked);
  count("gpulet_scheduler_events_total", "Events created for Pods.", numbers.events);
  count("gpulet_scheduler_lists_total", "Complete lists received from the API server.", sizes.lists);
  count("gpulet_scheduler_objects_refused_total", "Objects of the API server that could not be decoded.",
        sizes.objects_rejected);
  gauge("gpulet_scheduler_nodes", "Nodes with a GpuNode.", sizes.nodes);
  gauge("gpulet_scheduler_pods", "Bound Pods that request a device.", sizes.pods);
  gauge("gpulet_scheduler_builds", "Distinct placement tables, by machine topology and resource.",
        sizes.pools);
  gauge("gpulet_scheduler_kinds", "Distinct node states by free capacity.", sizes.kinds);
  gauge("gpulet_scheduler_ready", "Whether every list is complete.", sizes.ready ? 1 : 0);
  constexpr const char* kFamily = "gpulet_scheduler_decision_seconds";
  return page.text_format() + "# HELP " + kFamily +
         " Time from the last byte of a request to its response.\n# TYPE " + kFamily + " histogram\n" +
         numbers.filter.histogram_text(kFamily, "verb=\"filter\"") +
         numbers.prioritize.histogram_text(kFamily, "verb=\"prioritize\"") +
         numbers.preempt.histogram_text(kFamily, "verb=\"preempt\"");
}

}  // namespace gpulet::extender
