// Fuzzes the documents of a listener child, which `gpulet top` does not trust: each input is read as each of
// them, alone and one after the other.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "cli/top/documents.h"
#include "cli/top/model.h"

namespace {

using namespace gpulet::cli;

constexpr std::size_t kMaxShownText = 512;
constexpr double kLargestNumber = 1e18;

// A text reaches a terminal: it must not control it.
void check_text(const std::string& text) {
  if (text.size() > kMaxShownText) std::abort();
  if (std::ranges::any_of(text, [](char byte) { return byte < ' ' || byte > '~'; })) std::abort();
}
void check_number(const std::optional<double>& number) {
  if (number && (!std::isfinite(*number) || std::abs(*number) > kLargestNumber)) std::abort();
}

void check_metrics(const TopMetrics& now) {
  for (const auto& number : {now.util, now.sm, now.memory_util, now.memory, now.temperature, now.power,
                             now.power_limit, now.sm_clock, now.memory_clock})
    check_number(number);
  for (const auto& amount : {now.pcie_rx, now.pcie_tx, now.nvlink_rx, now.nvlink_tx, now.nvlink,
                             now.ecc_corrected, now.ecc_uncorrected}) {
    check_number(amount);
    if (amount && *amount < 0) std::abort();
  }
}

void check_device(const TopDevice& device) {
  for (const auto* text : {&device.index, &device.uuid, &device.state, &device.reason, &device.excluded})
    check_text(*text);
  if (device.name.size() > kMaxShownText + 32) std::abort();  // of a MIG device with its placement
  check_text(device.name.substr(0, kMaxShownText));
  check_number(device.memory_total);
}

void check_node(const TopNode& node) {
  for (const auto* text : {&node.name, &node.driver, &node.cuda}) check_text(*text);
  for (const auto& problem : node.problems) check_text(problem);
  for (const auto& claim : node.claims) {
    if (claim.size() > 4 * kMaxShownText) std::abort();  // of up to three texts
    check_text(claim.substr(0, kMaxShownText));
  }
  for (const auto& limit : node.limits) check_text(limit.substr(0, kMaxShownText));
  for (const auto& gpu : node.gpus) {
    check_device(gpu);
    if (!gpu.mig && !gpu.slices.empty()) std::abort();
    for (const auto& slice : gpu.slices) {
      check_device(slice);
      if (!slice.index.starts_with(gpu.index + ":")) std::abort();
    }
  }
  for (const auto& holder : node.holders) {
    for (const auto* text : {&holder.uuid, &holder.pod.first, &holder.pod.second, &holder.container})
      check_text(*text);
  }
}

void check_sample(const TopSample& sample) {
  for (const auto* devices : {&sample.gpus, &sample.mig}) {
    for (const auto& [uuid, now] : *devices) {
      check_text(uuid);
      check_metrics(now);
    }
  }
}

void check_usage(const TopUsage& usage) {
  for (const auto& [key, used] : usage.pods) {
    for (const auto* text : {&key.first, &key.second.first, &key.second.second}) check_text(*text);
    check_number(used.memory);
    check_number(used.busy);
  }
  for (const auto& process : usage.processes) {
    check_text(process.name);
    check_number(process.used.memory);
    check_number(process.used.busy);
  }
}

// Sorting and filtering neither loses nor invents rows.
void check_rows(const TopModel& model) {
  const std::size_t gpus = model.node_document() == nullptr ? 0 : model.node_document()->gpus.size();
  for (const auto tab : kTopTabs) {
    for (const auto column : sort_columns(tab)) {
      for (const bool descending : {false, true}) {
        const TopQuery query{.sort = column, .descending = descending, .filter = {}};
        if (model.gpu_rows(query).size() != gpus) std::abort();
        const std::size_t pods = model.pod_rows(query).size(), processes = model.process_rows(query).size();
        TopQuery filtered = query;
        filtered.filter = "a";
        if (model.gpu_rows(filtered).size() > gpus || model.pod_rows(filtered).size() > pods ||
            model.process_rows(filtered).size() > processes)
          std::abort();
      }
    }
  }
  for (const auto& gpu : model.gpu_rows(default_query(TopTab::kGpus))) {
    const auto& points = model.gpu_history(gpu.uuid);
    if (!std::ranges::is_sorted(points, {}, &TopPoint::at)) std::abort();
    if (!points.empty() && points.back().at - points.front().at > kTopHistoryMs) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  TopModel model;
  const auto node = parse_top_node(text);
  const auto sample = parse_top_sample(text);
  const auto usage = parse_top_usage(text);
  const auto history = parse_top_history(text);
  if (node) check_node(*node);
  if (sample) check_sample(*sample);
  if (usage) check_usage(*usage);
  if (history) std::ranges::for_each(*history, check_sample);
  // A document that is refused changes nothing.
  if (model.apply_node_document(text).has_value() != node.has_value()) std::abort();
  if ((model.node_document() != nullptr) != node.has_value()) std::abort();
  if (model.apply_sample_document(text).has_value() != sample.has_value()) std::abort();
  if (model.sampled_at().has_value() != sample.has_value()) std::abort();
  if (model.apply_usage_document(text).has_value() != usage.has_value()) std::abort();
  if (model.apply_history_document(text).has_value() != history.has_value()) std::abort();
  check_rows(model);
  return 0;
}
