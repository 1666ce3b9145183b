#include "metrics_api/agent_page.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace gpulet::metrics_api {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kPercent = 100;

enum class Series { kUtilization, kEngine, kUsed, kFree, kPower, kMemory, kSampleAge };
constexpr std::array<std::pair<std::string_view, Series>, 7> kSeries = {{
    {"DCGM_FI_DEV_GPU_UTIL", Series::kUtilization},
    {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", Series::kEngine},
    {"DCGM_FI_DEV_FB_USED", Series::kUsed},
    {"DCGM_FI_DEV_FB_FREE", Series::kFree},
    {"DCGM_FI_DEV_POWER_USAGE", Series::kPower},
    {"gpulet_pod_gpu_memory_bytes", Series::kMemory},
    {"gpulet_sample_age_seconds", Series::kSampleAge},
}};

// Those of a series that matter here; the first of a name counts. Old names as dcgm-exporter had them.
struct Labels {
  std::string uuid, instance, name_space, pod;

  std::string* find(std::string_view name) {
    if (name == "UUID" || name == "uuid") return &uuid;
    if (name == "GPU_I_ID") return &instance;
    if (name == "namespace" || name == "pod_namespace") return &name_space;
    if (name == "pod" || name == "pod_name") return &pod;
    return nullptr;
  }
};

// `text` is after a label's opening quote; what follows its closing one is left in it.
std::optional<std::string> quoted(std::string_view& text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return value;
    }
    if (text[i] != '\\') {
      value += text[i];
    } else if (++i < text.size()) {
      value += text[i] == 'n' ? '\n' : text[i];
    }
  }
  return std::nullopt;
}

void skip_blanks(std::string_view& text) {
  const auto first = text.find_first_not_of(" \t");
  text.remove_prefix(first == std::string_view::npos ? text.size() : first);
}

// `text` is after the opening brace; what follows the closing one is left in it.
std::optional<Labels> labels_of(std::string_view& text) {
  Labels labels;
  for (;;) {
    skip_blanks(text);
    if (text.empty()) return std::nullopt;
    if (text[0] == '}') {
      text.remove_prefix(1);
      return labels;
    }
    const auto equals = text.find("=\"");
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view name = text.substr(0, equals);
    text.remove_prefix(equals + 2);
    auto value = quoted(text);
    if (!value) return std::nullopt;
    if (std::string* kept = labels.find(name); kept != nullptr && kept->empty()) *kept = std::move(*value);
    skip_blanks(text);
    if (!text.empty() && text[0] == ',') text.remove_prefix(1);
  }
}

// The value; a timestamp may follow it.
std::optional<double> number_of(std::string_view text) {
  skip_blanks(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || *end == ' ' || *end == '\t';
  if (error != std::errc() || !whole || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

template <class Map>
double sum(const Map& values) {
  double total = 0;
  for (const auto& [device, value] : values) total += value;
  return total;
}

}  // namespace

std::set<AgentPageReader::Device> AgentPageReader::Pod::devices() const {
  std::set<Device> all;
  for (const auto* values : {&utilization, &engine, &memory, &framebuffer}) {
    for (const auto& [device, value] : *values) all.insert(device);
  }
  return all;
}

Status AgentPageReader::take(std::string_view bytes) {
  bytes_ += bytes.size();
  if (bytes_ > kMaxPageBytes) return fail(Code::kIo, "its page is larger than 16 MiB");
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > kMaxLineBytes) {
      return fail(Code::kIo, "its page has a line of more than 64 KiB");
    }
    if (end == std::string_view::npos) {
      line_ += piece;
      return {};
    }
    if (line_.empty()) {
      on_line(piece);
    } else {
      line_ += piece;
      on_line(line_);
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
    if (too_many_) return fail(Code::kIo, "its page has more than 4096 Pods or devices");
  }
  return {};
}

void AgentPageReader::on_line(std::string_view line) {
  if (line.empty() || line[0] == '#') return;
  const std::string_view name = line.substr(0, line.find_first_of("{ \t"));
  const Series* series = nullptr;
  for (const auto& [known, kind] : kSeries) {
    if (name == known) series = &kind;
  }
  if (series == nullptr) return;
  line.remove_prefix(name.size());
  Labels labels;
  if (!line.empty() && line[0] == '{') {
    line.remove_prefix(1);
    auto read = labels_of(line);
    if (!read) return;
    labels = std::move(*read);
  }
  const auto value = number_of(line);
  if (!value) return;
  if (*series == Series::kSampleAge) {
    sample_age_s_ = *value;
    return;
  }
  if (labels.uuid.empty()) return;
  const bool part = !labels.instance.empty();
  const Device device = part ? labels.uuid + "/" + labels.instance : labels.uuid;
  if (*series == Series::kUsed || *series == Series::kFree) {
    DeviceMemory& memory = memory_[device];
    // Used memory may be divided among Pods; what is free is told once, or to each the same.
    (*series == Series::kUsed ? memory.used : memory.free) =
        *series == Series::kUsed ? memory.used + *value : std::max(memory.free, *value);
    memory.told_free |= *series == Series::kFree;
  }
  const bool nobody = labels.pod.empty() || labels.name_space.empty();
  if (!nobody) {
    Pod& pod = pods_[{std::move(labels.name_space), std::move(labels.pod)}];
    switch (*series) {
      case Series::kUtilization:
        pod.utilization[device] = *value;
        break;
      case Series::kEngine:
        pod.engine[device] = *value * kPercent;
        break;
      case Series::kUsed:
        pod.framebuffer[device] = *value * kMebibyte;
        break;
      case Series::kMemory:
        pod.memory[device] += *value;  // of several compute instances each its own
        break;
      case Series::kPower:
        if (!part) pod.power[device] = *value;
        break;
      case Series::kFree:
      case Series::kSampleAge:
        break;
    }
  }
  too_many_ = pods_.size() > kMaxPodsOfPage || memory_.size() > kMaxDevicesOfPage;
}

PodValues AgentPageReader::values_of(const Pod& pod) const {
  PodValues values;
  auto utilization = pod.engine;
  for (const auto& [device, value] : pod.utilization) utilization[device] = value;
  if (!utilization.empty()) {
    values[Metric::kUtilization] = sum(utilization) / static_cast<double>(utilization.size());
  }
  if (!pod.power.empty()) values[Metric::kPower] = sum(pod.power);
  const auto& memory = pod.memory.empty() ? pod.framebuffer : pod.memory;
  if (memory.empty()) return values;
  values[Metric::kMemoryUsed] = sum(memory);
  double usable = 0;
  for (const auto& device : pod.devices()) {
    const auto found = memory_.find(device);
    if (found == memory_.end() || !found->second.told_free) return values;
    usable += (found->second.used + found->second.free) * kMebibyte;
  }
  if (usable > 0) values[Metric::kMemoryUtilization] = sum(memory) / usable * kPercent;
  return values;
}

AgentPage AgentPageReader::finish() {
  if (!line_.empty()) on_line(std::exchange(line_, {}));
  AgentPage page;
  page.sample_age_s = sample_age_s_;
  for (const auto& [name, pod] : pods_) {
    if (auto values = values_of(pod); !values.empty()) page.pods[name] = std::move(values);
  }
  return page;
}

}  // namespace gpulet::metrics_api
