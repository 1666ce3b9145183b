#include "extender/numbers.h"

#include <charconv>

#include "metrics/exposition.h"

namespace gpulet::extender {

namespace {

using Type = metrics::Exposition::Type;

std::string number(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace

void Histogram::add(Duration took) {
  const auto micros = static_cast<std::uint64_t>(took / std::chrono::microseconds(1));
  for (std::size_t i = 0; i < kBuckets.size(); ++i) {
    if (micros > kBuckets[i]) continue;
    ++counts_[i];
    break;
  }
  ++count_;
  sum_ += took;
}

std::string Histogram::text(const std::string& family, const std::string& labels) const {
  std::string text;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < kBuckets.size(); ++i) {
    below += counts_[i];
    const std::string bound = number(static_cast<double>(kBuckets[i]) / 1e6);
    text += family + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(below) + "\n";
  }
  text += family + "_bucket{" + labels + ",le=\"+Inf\"} " + std::to_string(count_) + "\n";
  text += family + "_sum{" + labels + "} " + number(sum_.count()) + "\n";
  return text + family + "_count{" + labels + "} " + std::to_string(count_) + "\n";
}

std::string page_of(const Numbers& numbers, const Sizes& sizes) {
  metrics::Exposition page;
  const auto count = [&](const char* name, const char* help, std::uint64_t value,
                         const metrics::Exposition::Labels& labels = {}) {
    page.add(name, Type::kCounter, help, labels, value);
  };
  const auto gauge = [&](const char* name, const char* help, std::uint64_t value) {
    page.add(name, Type::kGauge, help, {}, value);
  };
  for (const auto refusal : scheduler::kRefusals) {
    const auto found = numbers.refused.find(refusal);
    count("gpulet_scheduler_nodes_refused_total", "Nodes that the filter refused, by what they lack.",
          found == numbers.refused.end() ? 0 : found->second, {{"reason", scheduler::name(refusal)}});
  }
  count("gpulet_scheduler_nodes_passed_total", "Nodes that the filter let pass.", numbers.passed);
  count("gpulet_scheduler_nodes_unpublished_total", "Nodes that passed as nothing is published of them.",
        numbers.unpublished);
  count("gpulet_scheduler_nodes_left_out_total", "Nodes that would do and are not among the best.",
        numbers.left_out);
  count("gpulet_scheduler_unschedulable_total", "Questions of which no node passed.", numbers.nowhere);
  count("gpulet_scheduler_bad_requests_total", "Requests that were refused as they are no question.",
        numbers.bad_requests);
  count("gpulet_scheduler_malformed_total", "Questions about a Pod with a malformed annotation.",
        numbers.malformed);
  count("gpulet_scheduler_events_total", "Events that were made for Pods.", numbers.events);
  count("gpulet_scheduler_lists_total", "Lists of the API server that were whole.", sizes.lists);
  count("gpulet_scheduler_objects_refused_total", "Objects of the API server that could not be read.",
        sizes.objects_refused);
  gauge("gpulet_scheduler_nodes", "Nodes that publish what they have.", sizes.nodes);
  gauge("gpulet_scheduler_pods", "Pods that are bound and want a device.", sizes.pods);
  gauge("gpulet_scheduler_builds", "Kinds of machine and resource, each with tables of placement.",
        sizes.pools);
  gauge("gpulet_scheduler_kinds", "Kinds of node by what is free.", sizes.kinds);
  gauge("gpulet_scheduler_ready", "Whether every list has been whole.", sizes.ready ? 1 : 0);
  constexpr const char* kFamily = "gpulet_scheduler_decision_seconds";
  return page.text() + "# HELP " + kFamily + " Time from a question's last byte to its answer.\n# TYPE " +
         kFamily + " histogram\n" + numbers.filter.text(kFamily, "verb=\"filter\"") +
         numbers.prioritize.text(kFamily, "verb=\"prioritize\"");
}

}  // namespace gpulet::extender
