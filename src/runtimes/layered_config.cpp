#include "runtimes/layered_config.h"

#include <algorithm>

#include "base/text.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes {
namespace {

struct SpecDirs {
  std::vector<std::string> dirs;
  std::string place;  // FILE:LINE; empty for the default
};

// A Podman list that ends in {append=true} extends the previous value.
Result<bool> merge_spec_dirs(SpecDirs& dirs, const toml::Entry& entry, const std::string& place) {
  std::vector<std::string> listed;
  bool right = entry.value.kind == toml::Kind::kArray;
  bool append = false;
  for (const auto& item : entry.value.items) {
    if (item.kind == toml::Kind::kTable) {
      append = true;
    } else {
      right = right && item.kind == toml::Kind::kString;
      listed.push_back(item.text);
    }
  }
  if (!right) return fail(Code::kInvalidArgument, "cdi_spec_dirs is not a list of directories", place);
  if (!append) dirs.dirs.clear();
  dirs.dirs.insert(dirs.dirs.end(), listed.begin(), listed.end());
  dirs.place = place;
  return true;
}

// `own` replaces gpulet's drop-in on disk.
Result<SpecDirs> read_dirs(const LayeredConfig& setting, const Target& target, const Reader& reader,
                           const std::optional<std::string>& own) {
  SpecDirs result{setting.default_dirs, {}};
  auto drop_ins = reader.glob(setting.pattern);
  std::erase(drop_ins, target.drop_in);
  if (own) drop_ins.push_back(target.drop_in);
  std::ranges::sort(drop_ins);
  std::vector<std::string> paths = setting.base_files;
  paths.insert(paths.end(), drop_ins.begin(), drop_ins.end());
  auto wanted = setting.table;
  wanted.push_back("cdi_spec_dirs");
  for (const auto& path : paths) {
    std::optional<std::string> content = own;
    if (path != target.drop_in) {
      GPULET_TRY_ASSIGN(content, reader.read(path));
    }
    if (!content) continue;
    GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(*content, path));
    if (const auto* entry = document.find(wanted)) {
      GPULET_TRY(merge_spec_dirs(result, *entry, path + ":" + std::to_string(entry->line)));
    }
  }
  return result;
}

std::string drop_in_text(const LayeredConfig& setting, const std::vector<std::string>& dirs) {
  return std::string(kFileHeader) + "[" + text::join(setting.table, ".") +
         "]\ncdi_spec_dirs = " + toml::string_array(with_required_spec_dirs(dirs)) + "\n";
}

}  // namespace

Result<Plan> plan_layered_setup(const LayeredConfig& setting, const Target& target, const Reader& reader) {
  GPULET_TRY(check_engine_version(setting.engine, target.version));
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY(check_file_owner(target.drop_in, own));
  GPULET_TRY_ASSIGN(const SpecDirs before, read_dirs(setting, target, reader, std::nullopt));
  const std::string title(engine_facts(setting.engine).title);
  if (!own && (!setting.is_setting_read || has_required_spec_dirs(before.dirs)) && target.version) {
    return Plan{.message =
                    title + " " + target.version->str() + " has CDI on and reads both spec directories"};
  }
  const std::string text = drop_in_text(setting, before.dirs);
  GPULET_TRY_ASSIGN(const SpecDirs after, read_dirs(setting, target, reader, text));
  if (!has_required_spec_dirs(after.dirs)) {
    return fail(Code::kFailedPrecondition,
                "read after gpulet's drop-in and omits a spec directory: add /etc/cdi and /var/run/cdi",
                after.place);
  }
  Plan plan;
  if (own != text) plan.changes.push_back({target.drop_in, text});
  return plan;
}

Result<Plan> plan_layered_removal(const Target& target, const Reader& reader) {
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY(check_file_owner(target.drop_in, own));
  Plan plan;
  if (own) plan.changes.push_back({target.drop_in, std::nullopt});
  return plan;
}

Result<std::vector<Finding>> layered_findings(const LayeredConfig& setting, const Target& target,
                                              const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY_ASSIGN(const SpecDirs dirs, read_dirs(setting, target, reader, own));
  const Finding version = version_finding(setting.engine, target.version);
  const bool right = !setting.is_setting_read || has_required_spec_dirs(dirs.dirs);
  return std::vector<Finding>{
      version,
      {.subject = "CDI",
       .is_met = version.is_met,
       .detail = version.is_met ? "on: this engine has no switch for it" : "not supported",
       .advice = version.advice},
      {.subject = "spec dirs",
       .is_met = right,
       .detail = setting.is_setting_read ? text::join(dirs.dirs, ", ") +
                                               (dirs.place.empty() ? " (default)" : " (" + dirs.place + ")")
                                         : text::join(required_spec_dirs(), ", ") + " (built in)",
       .advice = right ? "" : configure_command(setting.engine)}};
}

}  // namespace gpulet::runtimes

namespace gpulet::runtimes::crio {

LayeredConfig crio_config(const Target& target) {
  return {.engine = Engine::kCrio,
          .table = {"crio", "runtime"},
          .base_files = {target.config},
          .pattern = target.drop_in.substr(0, target.drop_in.rfind('/')) + "/*",
          .default_dirs = required_spec_dirs()};
}

}  // namespace gpulet::runtimes::crio

namespace gpulet::runtimes::podman {

LayeredConfig podman_config(const Target& target) {
  const EngineVersion setting_read{5, 5, 0}, both_by_default{5, 6, 0};
  const bool heeded = !target.version || *target.version >= setting_read;
  const bool one_by_default = heeded && (!target.version || *target.version < both_by_default);
  return {.engine = Engine::kPodman,
          .table = {"engine"},
          .base_files = {"/usr/share/containers/containers.conf", target.config},
          .pattern = target.drop_in.substr(0, target.drop_in.rfind('/')) + "/*.conf",
          .is_setting_read = heeded,
          .default_dirs = one_by_default ? std::vector<std::string>{"/etc/cdi"} : required_spec_dirs()};
}

}  // namespace gpulet::runtimes::podman
