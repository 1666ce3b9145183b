#include "cli/top_documents.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace gpulet::cli {
namespace {

using Document = nlohmann::json;

constexpr std::size_t kMaxText = 512;  // more of one is not shown anyway
constexpr double kLargest = 1e18;      // what is beyond is nothing that was measured

std::string printable(const std::string& text) {
  std::string shown = text.substr(0, kMaxText);
  for (char& byte : shown) {
    if (byte < ' ' || byte > '~') byte = '?';
  }
  return shown;
}

const Document& at(const Document& object, const char* key) {
  static const Document kNone;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

std::string text_at(const Document& object, const char* key) {
  const auto* text = at(object, key).get_ptr<const std::string*>();
  return text != nullptr ? printable(*text) : std::string();
}

std::optional<double> number_of(const Document& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  if (!std::isfinite(number) || std::abs(number) > kLargest) return std::nullopt;
  return number;
}
std::optional<double> number_at(const Document& object, const char* key) {
  return number_of(at(object, key));
}

unsigned count_at(const Document& object, const char* key) {
  const auto number = number_at(object, key);
  return number && *number >= 0 && *number < 1e9 ? static_cast<unsigned>(*number) : 0;
}

std::vector<std::string> texts_at(const Document& object, const char* key) {
  std::vector<std::string> texts;
  const Document& list = at(object, key);
  if (!list.is_array()) return texts;
  for (const auto& one : list) {
    if (const auto* text = one.get_ptr<const std::string*>()) texts.push_back(printable(*text));
  }
  return texts;
}

// Calls `each(entry)` for the objects in the list of that name.
template <class Each>
void each_of(const Document& object, const char* key, Each each) {
  const Document& list = at(object, key);
  if (!list.is_array()) return;
  for (const auto& one : list) {
    if (one.is_object()) each(one);
  }
}

// Calls `each(name, entry)` for the objects in the object of that name.
template <class Each>
void each_named(const Document& object, const char* key, Each each) {
  const Document& named = at(object, key);
  if (!named.is_object()) return;
  for (const auto& [name, one] : named.items()) {
    if (one.is_object()) each(printable(name), one);
  }
}

// Its `member` must be a list or an object, by which the document is known for what it is.
Result<Document> parsed(std::string_view text, const char* about, const char* member) {
  auto document = Document::parse(text, nullptr, false);
  if (!document.is_object() || !at(document, member).is_structured())
    return fail(Code::kInvalidArgument, "not the document that a gpulet agent serves", about);
  return document;
}

TopDevice device_of(const Document& object, std::string index) {
  TopDevice device;
  device.index = std::move(index);
  device.uuid = text_at(object, "uuid");
  device.state = text_at(object, "state");
  device.reason = text_at(object, "reason");
  device.memory_total = number_at(object, "memory");
  return device;
}

TopGpu gpu_of(const Document& object) {
  TopGpu gpu;
  const std::string index = std::to_string(count_at(object, "index"));
  static_cast<TopDevice&>(gpu) = device_of(object, index);
  gpu.name = text_at(object, "model");
  gpu.mig = at(object, "mig").is_object();
  each_of(at(object, "mig"), "devices", [&](const Document& slice) {
    auto device = device_of(slice, index + ":" + std::to_string(count_at(slice, "index")));
    device.name = text_at(slice, "profile") + " @" + std::to_string(count_at(slice, "start")) + "+" +
                  std::to_string(count_at(slice, "size"));
    gpu.slices.push_back(std::move(device));
  });
  return gpu;
}

TopNumbers numbers_of(const Document& object) {
  return {.util = number_at(object, "util"),
          .sm = number_at(object, "sm"),
          .memory_util = number_at(object, "memory_util"),
          .memory = number_at(object, "memory"),
          .temperature = number_at(object, "temperature"),
          .power = number_at(object, "power"),
          .power_limit = number_at(object, "power_limit"),
          .sm_clock = number_at(object, "sm_clock"),
          .memory_clock = number_at(object, "memory_clock")};
}

std::optional<TopNow> now_of(const Document& document) {
  const auto when = number_at(document, "at");
  if (!when || !at(document, "gpus").is_object()) return std::nullopt;
  TopNow now{.at = static_cast<std::int64_t>(*when), .gpus = {}, .mig = {}};
  each_named(document, "gpus",
             [&](auto uuid, const Document& gpu) { now.gpus[std::move(uuid)] = numbers_of(gpu); });
  each_named(document, "mig",
             [&](auto uuid, const Document& slice) { now.mig[std::move(uuid)] = numbers_of(slice); });
  return now;
}

TopPodName pod_of(const Document& object) { return {text_at(object, "namespace"), text_at(object, "pod")}; }

}  // namespace

Result<TopNode> parse_top_node(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parsed(text, "/api/node", "gpus"));
  TopNode node;
  node.name = text_at(document, "name");
  node.driver = text_at(at(document, "driver"), "version");
  node.cuda = text_at(at(document, "driver"), "cuda");
  node.problems = texts_at(document, "problems");
  each_of(document, "gpus", [&](const Document& object) {
    node.gpus.push_back(gpu_of(object));
    each_of(object, "holders", [&](const Document& holder) {
      const std::string uuid = text_at(holder, "uuid");
      node.holders.push_back(
          {uuid, pod_of(holder), text_at(holder, "container"), text_at(holder, "device") != uuid});
    });
  });
  return node;
}

Result<TopNow> parse_top_now(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parsed(text, "/api/now", "gpus"));
  auto now = now_of(document);
  if (!now) return fail(Code::kInvalidArgument, "says no time", "/api/now");
  return std::move(*now);
}

Result<TopUse> parse_top_use(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parsed(text, "/api/use", "devices"));
  TopUse use;
  each_named(document, "devices", [&](const std::string& uuid, const Document& device) {
    each_of(device, "pods", [&](const Document& pod) {
      use.pods[{uuid, pod_of(pod)}] = {number_at(pod, "memory"), number_at(pod, "busy")};
    });
    each_of(device, "processes", [&](const Document& one) {
      TopUser process{.pid = count_at(one, "pid"),
                      .uuid = uuid,
                      .name = text_at(one, "name"),
                      .pod = std::nullopt,
                      .used = {number_at(one, "memory"), number_at(one, "sm")}};
      if (at(one, "pod").is_string()) process.pod = pod_of(one);
      use.processes.push_back(std::move(process));
    });
  });
  return use;
}

Result<std::vector<TopNow>> parse_top_history(std::string_view text) {
  GPULET_TRY_ASSIGN(const Document document, parsed(text, "/api/history", "samples"));
  std::vector<TopNow> samples;
  each_of(document, "samples", [&](const Document& sample) {
    if (auto now = now_of(sample)) samples.push_back(std::move(*now));
  });
  return samples;
}

}  // namespace gpulet::cli
