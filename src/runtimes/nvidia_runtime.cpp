#include "runtimes/nvidia_runtime.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes::nvidia {
namespace {

using toml::Kind;

// Behind a value of gpulet.
constexpr std::string_view kAdded = " # gpulet: added";
constexpr std::string_view kChanged = " # gpulet: changed";

struct Setting {
  std::string_view key;
  bool denial;  // the default is the opposite
};
constexpr std::array<Setting, 2> kSettings{{
    {"accept-nvidia-visible-devices-envvar-when-unprivileged", false},
    {"accept-nvidia-visible-devices-as-volume-mounts", true},
}};

std::string_view flag_text(bool flag) { return flag ? "true" : "false"; }

// nullptr without the key. Errors: kInvalidArgument if it is no boolean.
Result<const toml::Entry*> find_setting(const toml::Document& document, const Setting& setting,
                                        const std::string& path) {
  const auto* entry = document.find({std::string(setting.key)});
  if (entry != nullptr && entry->value.kind != Kind::kBool) {
    return fail(Code::kInvalidArgument, std::string(setting.key) + " is not true or false",
                path + ":" + std::to_string(entry->line));
  }
  return entry;
}

// Where a line with the key belongs: behind the comment that has its default, else behind the last key
// outside tables.
std::size_t insertion_point(std::string_view text, const toml::Document& document, std::string_view key) {
  const auto& root = document.tables.front();
  std::size_t behind = text.starts_with(kFileHeader) ? kFileHeader.size() : root.begin;
  const auto in_a_value = [&](std::size_t at) {
    return std::ranges::any_of(document.entries, [&](const toml::Entry& entry) {
      return entry.begin <= at && at < entry.value.end;
    });
  };
  for (const auto& entry : document.entries) {
    if (entry.table == 0) behind = std::max(behind, toml::line_end(text, entry.value.end));
  }
  for (std::size_t at = root.begin; at < root.end; at = toml::line_end(text, at)) {
    auto line = text::trim(text.substr(at, toml::line_end(text, at) - at));
    if (!line.starts_with('#') || in_a_value(at)) continue;
    line = text::trim(line.substr(1));
    if (line.starts_with(key) && text::trim(line.substr(key.size())).starts_with('='))
      return toml::line_end(text, at);
  }
  return behind;
}

std::string_view line_break(std::string_view text) {
  return text.find("\r\n") == std::string_view::npos ? "\n" : "\r\n";
}

void insert_setting(std::string& text, const toml::Document& document, const Setting& setting) {
  const auto at = insertion_point(text, document, setting.key);
  const std::string line =
      std::string(setting.key) + " = " + std::string(flag_text(setting.denial)) + std::string(kAdded);
  const std::string end(line_break(text));
  const bool continues = at == 0 || text[at - 1] == '\n' || at == document.tables.front().begin;
  text.insert(at, continues ? line + end : end + line);
}

void replace_value(std::string& text, const toml::Value& value, bool flag) {
  text.replace(value.begin, value.end - value.begin, flag_text(flag));
}

Result<std::string> with_denial(std::string text, const std::string& path) {
  for (const auto& setting : kSettings) {
    GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(text, path));
    GPULET_TRY_ASSIGN(const auto* entry, find_setting(document, setting, path));
    if (entry == nullptr) {
      insert_setting(text, document, setting);
    } else if (entry->value.flag != setting.denial) {
      const auto rest = std::string_view(text).substr(entry->value.end);
      if (!rest.starts_with(kAdded) && !rest.starts_with(kChanged)) text.insert(entry->value.end, kChanged);
      replace_value(text, entry->value, setting.denial);
    }
  }
  return text;
}

// Without the line at `begin`, and the break before it where the text ends with the line.
void erase_line(std::string& text, std::size_t begin) {
  const auto end = toml::line_end(text, begin);
  const auto next = line_break(text);
  const bool is_last = end == text.size() && !text.ends_with('\n');
  if (is_last && std::string_view(text).substr(0, begin).ends_with(next)) begin -= next.size();
  text.erase(begin, end - begin);
}

Result<std::string> without_denial(std::string text, const std::string& path) {
  for (const auto& setting : kSettings) {
    GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(text, path));
    GPULET_TRY_ASSIGN(const auto* entry, find_setting(document, setting, path));
    if (entry == nullptr || entry->value.flag != setting.denial) continue;
    const auto rest = std::string_view(text).substr(entry->value.end);
    if (rest.starts_with(kAdded)) {
      erase_line(text, std::max(document.tables.front().begin, toml::line_begin(text, entry->begin)));
    } else if (rest.starts_with(kChanged)) {
      text.erase(entry->value.end, kChanged.size());
      replace_value(text, entry->value, !setting.denial);
    }
  }
  return text;
}

// The files that exist, with their texts.
Result<std::vector<Change>> read_configs(const std::string& config, const Reader& reader) {
  std::vector<Change> files;
  for (const std::string& path : config.empty() ? std::vector<std::string>{kPackageConfig, kOperatorConfig}
                                                : std::vector<std::string>{config}) {
    GPULET_TRY_ASSIGN(auto text, reader.read(path));
    if (text) files.push_back({path, std::move(*text)});
  }
  return files;
}

}  // namespace

Result<RuntimeConfig> read_runtime_config(const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto files, read_configs({}, reader));
  RuntimeConfig config;
  for (const auto& file : files) {
    GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(*file.text, file.path));
    const auto flag_of = [&](const Setting& setting) {
      const auto* entry = document.find({std::string(setting.key)});
      return entry != nullptr && entry->value.kind == Kind::kBool ? entry->value.flag : !setting.denial;
    };
    config = {.path = file.path,
              .accepts_images_variable = flag_of(kSettings[0]),
              .accepts_volume_mounts = flag_of(kSettings[1])};
    if (config.accepts_images_variable) break;
  }
  return config;
}

Result<Plan> plan_denial(const std::string& config, const Reader& reader) {
  GPULET_TRY_ASSIGN(auto files, read_configs(config, reader));
  if (files.empty()) files.push_back({config.empty() ? kPackageConfig : config, std::string(kFileHeader)});
  Plan plan{.message = "NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored already"};
  for (const auto& file : files) {
    GPULET_TRY_ASSIGN(auto text, with_denial(*file.text, file.path));
    if (text != *file.text) plan.changes.push_back({file.path, std::move(text)});
  }
  if (plan.changes.empty()) return plan;
  plan.message =
      "with this, NVIDIA's runtime gives an unprivileged Pod its GPUs by volume mounts or CDI only: "
      "`deviceListStrategy` must be cdi-cri or volume-mounts, with envvar alone Pods get none; an agent in "
      "NVIDIA's runtime class needs `privileged: true`";
  if (std::ranges::any_of(plan.changes, [](const auto& change) { return change.path == kOperatorConfig; })) {
    plan.message +=
        "; the GPU operator's toolkit writes its file again when it starts: set "
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED to \"false\" and "
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS to \"true\" in toolkit.env too";
  }
  return plan;
}

Result<Plan> plan_acceptance(const std::string& config, const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto files, read_configs(config, reader));
  Plan plan;
  for (const auto& file : files) {
    GPULET_TRY_ASSIGN(auto text, without_denial(*file.text, file.path));
    if (text == kFileHeader) {
      plan.changes.push_back({file.path, std::nullopt});
    } else if (text != *file.text) {
      plan.changes.push_back({file.path, std::move(text)});
    }
  }
  return plan;
}

}  // namespace gpulet::runtimes::nvidia
