#include "cli/top/documents.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace gpulet::cli {
namespace {

using Document = nlohmann::json;

constexpr std::size_t kMaxText = 512;  // longer texts are not shown
constexpr double kLargest = 1e18;      // larger numbers are not measurements
constexpr double kLargestRate = 1e15;  // bytes per second; a thousand times what a GPU's links carry

const Document& json_field(const Document& object, const char* key) {
  static const Document kNone;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

std::string text_field(const Document& object, const char* key) {
  const auto* text = json_field(object, key).get_ptr<const std::string*>();
  return text != nullptr ? text::printable(*text, kMaxText) : std::string();
}

std::optional<double> as_number(const Document& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  if (!std::isfinite(number) || std::abs(number) > kLargest) return std::nullopt;
  return number;
}
std::optional<double> number_field(const Document& object, const char* key) {
  return as_number(json_field(object, key));
}

// Leaves out numbers that are negative or larger than `largest`.
std::optional<double> amount_field(const Document& object, const char* key, double largest) {
  const auto number = number_field(object, key);
  return number && *number >= 0 && *number <= largest ? number : std::nullopt;
}

unsigned count_field(const Document& object, const char* key) {
  const auto number = number_field(object, key);
  return number && *number >= 0 && *number < 1e9 ? static_cast<unsigned>(*number) : 0;
}

std::vector<std::string> text_fields(const Document& object, const char* key) {
  std::vector<std::string> texts;
  const Document& list = json_field(object, key);
  if (!list.is_array()) return texts;
  for (const auto& one : list) {
    if (const auto* text = one.get_ptr<const std::string*>())
      texts.push_back(text::printable(*text, kMaxText));
  }
  return texts;
}

// Calls `each(entry)` for the objects in the list `key`.
template <class Each>
void for_each_object(const Document& object, const char* key, Each each) {
  const Document& list = json_field(object, key);
  if (!list.is_array()) return;
  for (const auto& one : list) {
    if (one.is_object()) each(one);
  }
}

// Calls `each(name, entry)` for the objects in the object `key`.
template <class Each>
void for_each_named(const Document& object, const char* key, Each each) {
  const Document& named = json_field(object, key);
  if (!named.is_object()) return;
  for (const auto& [name, one] : named.items()) {
    if (one.is_object()) each(text::printable(name, kMaxText), one);
  }
}

// `member` must be a list or an object: it identifies the document.
Result<Document> parse_agent_document(std::string_view text, const char* about, const char* member) {
  auto document = parse_json(text);
  if (!document.is_object() || !json_field(document, member).is_structured())
    return fail(Code::kInvalidArgument, "not a document of a gpulet agent", about);
  return document;
}

TopDevice parse_device(const Document& object, std::string index) {
  TopDevice device;
  device.index = std::move(index);
  device.uuid = text_field(object, "uuid");
  device.state = text_field(object, "state");
  device.reason = text_field(object, "reason");
  device.memory_total = number_field(object, "memory");
  return device;
}

TopGpu parse_gpu(const Document& object) {
  TopGpu gpu;
  const std::string index = std::to_string(count_field(object, "index"));
  static_cast<TopDevice&>(gpu) = parse_device(object, index);
  gpu.name = text_field(object, "model");
  gpu.excluded = text_field(object, "excluded");
  gpu.mig = json_field(object, "mig").is_object();
  for_each_object(json_field(object, "mig"), "devices", [&](const Document& slice) {
    auto device = parse_device(slice, index + ":" + std::to_string(count_field(slice, "index")));
    device.name = text_field(slice, "profile") + " @" + std::to_string(count_field(slice, "start")) + "+" +
                  std::to_string(count_field(slice, "size"));
    gpu.slices.push_back(std::move(device));
  });
  return gpu;
}

TopMetrics parse_metrics(const Document& object) {
  return {.util = number_field(object, "util"),
          .sm = number_field(object, "sm"),
          .memory_util = number_field(object, "memory_util"),
          .memory = number_field(object, "memory"),
          .temperature = number_field(object, "temperature"),
          .power = number_field(object, "power"),
          .power_limit = number_field(object, "power_limit"),
          .sm_clock = number_field(object, "sm_clock"),
          .memory_clock = number_field(object, "memory_clock"),
          .pcie_rx = amount_field(object, "pcie_rx", kLargestRate),
          .pcie_tx = amount_field(object, "pcie_tx", kLargestRate),
          .nvlink_rx = amount_field(object, "nvlink_rx", kLargestRate),
          .nvlink_tx = amount_field(object, "nvlink_tx", kLargestRate),
          .nvlink = amount_field(object, "nvlink", kLargestRate),
          .ecc_corrected = amount_field(object, "ecc_corrected", kLargest),
          .ecc_uncorrected = amount_field(object, "ecc_uncorrected", kLargest)};
}

std::optional<TopSample> parse_sample(const Document& document) {
  const auto when = number_field(document, "at");
  if (!when || !json_field(document, "gpus").is_object()) return std::nullopt;
  TopSample now{.at = static_cast<std::int64_t>(*when), .gpus = {}, .mig = {}};
  for_each_named(document, "gpus",
                 [&](auto uuid, const Document& gpu) { now.gpus[std::move(uuid)] = parse_metrics(gpu); });
  for_each_named(document, "mig",
                 [&](auto uuid, const Document& slice) { now.mig[std::move(uuid)] = parse_metrics(slice); });
  return now;
}

TopPodName parse_pod_name(const Document& object) {
  return {text_field(object, "namespace"), text_field(object, "pod")};
}

// Of the member "claims" (agent/observe/claim_status.h).
std::vector<std::string> parse_claim_lines(const Document& claims, const std::vector<TopGpu>& gpus) {
  std::vector<std::string> lines;
  for_each_object(claims, "waiting", [&](const Document& claim) {
    lines.push_back("claim " + text_field(claim, "namespace") + "/" + text_field(claim, "name") +
                    " is not prepared: " + text_field(claim, "reason"));
  });
  for_each_object(claims, "moves", [&](const Document& move) {
    const std::string uuid = text_field(move, "gpu");
    const auto gpu = std::ranges::find(gpus, uuid, &TopGpu::uuid);
    lines.push_back("GPU " + (gpu != gpus.end() ? gpu->index : uuid) + " " + text_field(move, "reason"));
  });
  return lines;
}

// Of the member "memory_limit" (agent/observe/limit_status.h).
std::vector<std::string> parse_limit_lines(const Document& limit) {
  const std::string grade = text_field(limit, "grade");
  std::vector<std::string> lines;
  if (!grade.empty()) lines.push_back("memory limits of shared GPUs: " + grade);
  for_each_object(limit, "containers", [&](const Document& one) {
    if (text_field(one, "grade") == grade) return;
    const auto reasons = text_fields(one, "reasons");
    lines.push_back("memory limit of container " + text_field(one, "container") + " of Pod " +
                    text_field(one, "namespace") + "/" + text_field(one, "pod") + ": " +
                    text_field(one, "grade") + (reasons.empty() ? "" : " (" + reasons.front() + ")"));
  });
  return lines;
}

std::optional<double> sum_of_known(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

}  // namespace

std::optional<double> pcie_total(const TopMetrics& now) { return sum_of_known(now.pcie_rx, now.pcie_tx); }

std::optional<double> nvlink_total(const TopMetrics& now) {
  const auto sum = sum_of_known(now.nvlink_rx, now.nvlink_tx);
  return sum ? sum : now.nvlink;
}

Result<TopNode> parse_top_node(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parse_agent_document(text, "/api/node", "gpus"));
  TopNode node;
  node.name = text_field(document, "name");
  node.driver = text_field(json_field(document, "driver"), "version");
  node.cuda = text_field(json_field(document, "driver"), "cuda");
  node.problems = text_fields(document, "problems");
  for_each_object(document, "gpus", [&](const Document& object) {
    node.gpus.push_back(parse_gpu(object));
    for_each_object(object, "holders", [&](const Document& holder) {
      const std::string uuid = text_field(holder, "uuid");
      node.holders.push_back({uuid, parse_pod_name(holder), text_field(holder, "container"),
                              text_field(holder, "device") != uuid});
    });
  });
  node.claims = parse_claim_lines(json_field(document, "claims"), node.gpus);
  node.limits = parse_limit_lines(json_field(document, "memory_limit"));
  return node;
}

Result<TopSample> parse_top_sample(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parse_agent_document(text, "/api/now", "gpus"));
  auto now = parse_sample(document);
  if (!now) return fail(Code::kInvalidArgument, "has no timestamp", "/api/now");
  return std::move(*now);
}

Result<TopUsage> parse_top_usage(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parse_agent_document(text, "/api/use", "devices"));
  TopUsage use;
  for_each_named(document, "devices", [&](const std::string& uuid, const Document& device) {
    for_each_object(device, "pods", [&](const Document& pod) {
      use.pods[{uuid, parse_pod_name(pod)}] = {number_field(pod, "memory"), number_field(pod, "busy")};
    });
    for_each_object(device, "processes", [&](const Document& one) {
      TopProcess process{.pid = count_field(one, "pid"),
                         .uuid = uuid,
                         .name = text_field(one, "name"),
                         .pod = std::nullopt,
                         .used = {number_field(one, "memory"), number_field(one, "sm")}};
      if (json_field(one, "pod").is_string()) process.pod = parse_pod_name(one);
      use.processes.push_back(std::move(process));
    });
  });
  return use;
}

Result<std::vector<TopSample>> parse_top_history(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parse_agent_document(text, "/api/history", "samples"));
  std::vector<TopSample> samples;
  for_each_object(document, "samples", [&](const Document& sample) {
    if (auto now = parse_sample(sample)) samples.push_back(std::move(*now));
  });
  return samples;
}

}  // namespace gpulet::cli
