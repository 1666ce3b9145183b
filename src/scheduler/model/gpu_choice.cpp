#include "scheduler/model/gpu_choice.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "fraction/fraction_request.h"

namespace gpulet::scheduler {
namespace {

using Fact = GpuCondition::Fact;

constexpr std::size_t kMaxFoundChoiceBytes = 100;  // of the value, in messages
constexpr std::uint64_t kMaxIndexOrNode = 4095;

struct ChoiceAnnotation {
  std::string_view key;
  Fact fact{};
  bool excludes = false;
  char separator = ',';
  bool may_be_empty = false;  // HAMi's
  std::string_view expected;
};

constexpr std::string_view kHamiUuids = "UUIDs of GPUs, separated by commas";
constexpr std::string_view kHamiTypes = "parts of models' names, separated by commas, as A100,V100";

constexpr ChoiceAnnotation kAnnotations[] = {
    {"gpulet.io/gpu-uuid", Fact::kUuid, false, '|', false,
     "UUIDs of GPUs, separated by |, each GPU- and its number"},
    {"gpulet.io/gpu-index", Fact::kIndex, false, '|', false, "indices of GPUs, separated by |, as 0|1"},
    {"gpulet.io/gpu-numa", Fact::kNuma, false, '|', false, "NUMA nodes, separated by |, as 0|1"},
    {"nvidia.com/use-gpuuuid", Fact::kUuid, false, ',', true, kHamiUuids},
    {"nvidia.com/nouse-gpuuuid", Fact::kUuid, true, ',', true, kHamiUuids},
    {"nvidia.com/use-gputype", Fact::kModel, false, ',', true, kHamiTypes},
    {"nvidia.com/nouse-gputype", Fact::kModel, true, ',', true, kHamiTypes},
};

const ChoiceAnnotation* find_annotation(std::string_view key) {
  const auto* const found = std::ranges::find(kAnnotations, key, &ChoiceAnnotation::key);
  return found == std::end(kAnnotations) ? nullptr : found;
}

// A value as it is compared; nullopt if it is none of the annotation's form.
std::optional<std::string> normalized_value(const ChoiceAnnotation& annotation, std::string_view text) {
  if (annotation.fact == Fact::kIndex || annotation.fact == Fact::kNuma) {
    const auto number = text::parse_unsigned(text);
    if (!number || *number > kMaxIndexOrNode) return std::nullopt;
    return std::to_string(*number);
  }
  if (text.empty() || std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }))
    return std::nullopt;
  const bool is_uuid = text::lower(text.substr(0, 4)) == "gpu-" && text.size() > 4;
  if (annotation.fact == Fact::kUuid && !annotation.may_be_empty && !is_uuid) return std::nullopt;
  return std::string(text);
}

std::optional<std::vector<std::string>> parse_values(const ChoiceAnnotation& annotation,
                                                     std::string_view text) {
  if (text.size() > kMaxChoiceBytes) return std::nullopt;
  std::vector<std::string> values;
  for (const auto& part : text::split(text, annotation.separator)) {
    const auto trimmed = text::trim(part);
    if (trimmed.empty() && annotation.may_be_empty) continue;
    auto value = normalized_value(annotation, trimmed);
    if (!value || values.size() == kMaxChoiceValues) return std::nullopt;
    values.push_back(std::move(*value));
  }
  if (values.empty() && !annotation.may_be_empty) return std::nullopt;
  return values;
}

tl::unexpected<Error> choice_error(std::string_view key, std::string_view found, std::string_view expected) {
  return fail(Code::kInvalidArgument, "annotation " + std::string(key) + " is \"" +
                                          fraction::printable_field(found, kMaxFoundChoiceBytes) +
                                          "\": expected " + std::string(expected));
}

Status add_numa_bind(std::string_view value, GpuChoice& choice) {
  // Source: Go's strconv.ParseBool.
  constexpr std::string_view kTrue[] = {"1", "t", "true"}, kFalse[] = {"", "0", "f", "false"};
  const auto text = text::lower(value);
  if (std::ranges::find(kTrue, text) != std::end(kTrue)) {
    choice.one_numa_node = true;
  } else if (std::ranges::find(kFalse, text) == std::end(kFalse)) {
    return choice_error(kNumaBindAnnotation, value, "true or false");
  }
  return {};
}

// As HAMi registers it.
std::string registered_model(std::string_view model) {
  auto name = text::lower(model);
  return name.starts_with("nvidia") ? name : "nvidia-" + name;
}

// In lower case; empty: unknown.
std::string fact_text(Fact fact, const GpuFacts& gpu) {
  switch (fact) {
    case Fact::kUuid:
      return text::lower(gpu.uuid);
    case Fact::kIndex:
      return std::to_string(gpu.index);
    case Fact::kModel:
      return gpu.model.empty() ? std::string() : registered_model(gpu.model);
    case Fact::kNuma:
      return gpu.numa ? std::to_string(*gpu.numa) : std::string();
  }
  return {};
}

}  // namespace

bool GpuCondition::is_known_of(const GpuFacts& gpu) const { return !fact_text(fact, gpu).empty(); }

bool GpuCondition::matches(const GpuFacts& gpu) const {
  const auto found = fact_text(fact, gpu);
  if (found.empty()) return false;
  const bool is_one = std::ranges::any_of(values, [&](const std::string& value) {
    const auto wanted = text::lower(value);
    return fact == Fact::kModel ? found.find(wanted) != std::string::npos : found == wanted;
  });
  return is_one != excludes;
}

std::string GpuCondition::condition_text() const {
  constexpr std::string_view kNames[] = {"UUID", "index", "a model with", "NUMA node"};
  constexpr std::string_view kExcluding[] = {"another UUID than", "another index than", "a model without",
                                             "another NUMA node than"};
  const auto name = static_cast<std::size_t>(fact);
  return std::string((excludes ? kExcluding : kNames)[name]) + " " + text::join_limited(values, 3);
}

bool is_choice_annotation(std::string_view key) {
  return key == kNumaBindAnnotation || key == kSharesOnAnnotation || find_annotation(key) != nullptr;
}

Status add_choice_annotation(std::string_view key, std::string_view value, GpuChoice& choice) {
  if (key == kNumaBindAnnotation) return add_numa_bind(value, choice);
  if (key == kSharesOnAnnotation) {
    const auto where = placement::parse_shares_on(text::trim(value));
    if (!where) return choice_error(key, value, "oneGPU or differentGPUs");
    choice.shares_on = *where;
    return {};
  }
  const auto* const annotation = find_annotation(key);
  if (annotation == nullptr) return {};
  auto values = parse_values(*annotation, value);
  if (!values) {
    const auto limits = " (at most " + std::to_string(kMaxChoiceValues) + ")";
    return choice_error(key, value, std::string(annotation->expected) + limits);
  }
  if (!values->empty())
    choice.conditions.push_back(
        {std::string(key), annotation->fact, annotation->excludes, std::move(*values)});
  return {};
}

const GpuCondition* find_unmet_condition(const GpuChoice& choice, const GpuFacts& gpu) {
  const auto unmet =
      std::ranges::find_if(choice.conditions, [&](const GpuCondition& one) { return !one.matches(gpu); });
  return unmet == choice.conditions.end() ? nullptr : &*unmet;
}

}  // namespace gpulet::scheduler
