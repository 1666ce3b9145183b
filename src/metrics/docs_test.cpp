// Checks the lists of docs/metrics.md against the code.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/test_page.h"
#include "base/text.h"
#include "metrics/counters.h"
#include "metrics/fields.h"
#include "metrics/gpulet_metrics.h"

namespace gpulet::metrics {
namespace {

constexpr const char* kPage = "docs/metrics.md";

// "(MHz)" of "SM clock frequency (in MHz)."
std::string unit_of(std::string_view help) {
  const auto begin = help.find("(in ");
  if (begin == std::string_view::npos) return "";
  return " (" + std::string(help.substr(begin + 4, help.find(')', begin) - begin - 3));
}

// The page itself has the help of a served field.
std::string fields_list() {
  std::map<std::string, std::vector<std::string>> served, named;  // by their notes
  for (const auto& field : fields()) {
    std::vector<std::string> notes;
    if (field.type != Type::kGauge) notes.emplace_back(type_name(field.type));
    if (field.of_instance) notes.emplace_back("MIG");
    const std::string joined = notes.empty() ? "gauge" : text::join(notes, ", ");
    const std::string metric = "`" + std::string(field.name) + "`";
    if (field.by_default) {
      served[joined].push_back(metric + unit_of(field.help));
    } else {
      named[joined].push_back(metric);
    }
  }
  std::string list = "\n";
  for (const auto& [notes, metrics] : served) list += "- " + notes + ": " + text::join(metrics, ", ") + "\n";
  list += "\nIf the counters file names them:\n\n";
  for (const auto& [notes, metrics] : named) list += "- " + notes + ": " + text::join(metrics, ", ") + "\n";
  std::vector<std::string> links;
  for (const auto& link : link_fields()) {
    if (!link.source.empty())
      links.push_back("`" + std::string(link.before) + "0" + std::string(link.after) + "`");
  }
  list += "- of each NVLink up to " + std::to_string(kDcgmLinks - 1) + ": " + text::join(links, ", ") + "\n";
  return list + "\n";
}

std::string absent_list() {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;  // in the order of the first
  for (const auto& one : unserved_fields()) {
    auto found = std::ranges::find(by_reason, one.reason, &decltype(by_reason)::value_type::first);
    if (found == by_reason.end()) found = by_reason.insert(found, {std::string(one.reason), {}});
    found->second.push_back("`" + std::string(one.prefix) + "`");
  }
  std::string list = "\n";
  for (const auto& [reason, prefixes] : by_reason)
    list += "- " + text::join(prefixes, ", ") + ": " + reason + "\n";
  return list + "\n";
}

std::string gpulet_list() {
  std::string list = "\n";
  for (const auto& metric : gpulet_metrics()) {
    std::string labels;
    for (const auto& label : text::split(metric.labels, ','))
      labels += (labels.empty() ? "`" : ", `") + std::string(text::trim(label)) + "`";
    // Of the node: by result, as a group of GPUs is reset at once, and by reason.
    const bool counts_changes =
        metric.name == "gpulet_gpu_resets_total" || metric.name == "gpulet_mig_reconfigurations_total";
    const bool device =
        !counts_changes &&
        (metric.name.starts_with("gpulet_device") || metric.name.starts_with("gpulet_nvlink") ||
         (metric.name.find("_gpu_") != std::string::npos && !metric.name.starts_with("gpulet_namespace_")) ||
         metric.name.find("_mig_") != std::string::npos);
    if (device) labels = "device" + (labels.empty() ? std::string() : ", " + labels);
    list += "- `" + std::string(metric.name) + "`: " + std::string(metric.help) + " [" +
            std::string(Exposition::type_name(metric.type)) + (labels.empty() ? "" : "; " + labels) + "]\n";
  }
  return list + "\n";
}

TEST(Docs, FieldsMatch) { expect_in_document(kPage, "fields", fields_list()); }

TEST(Docs, GpuletMetricsMatch) { expect_in_document(kPage, "gpulet", gpulet_list()); }

TEST(Docs, UnsupportedFieldsMatch) { expect_in_document(kPage, "absent", absent_list()); }

}  // namespace
}  // namespace gpulet::metrics
