#include "runtimes/layered.h"

#include <algorithm>

#include "base/text.h"
#include "runtimes/ours.h"

namespace gpulet::runtimes {
namespace {

struct Dirs {
  std::vector<std::string> dirs;
  std::string said;  // FILE:LINE, empty for the default
};

// Podman's lists may end in {append=true}: then they add to what was read before.
Result<bool> take_in(Dirs& dirs, const toml::Entry& entry, const std::string& place) {
  std::vector<std::string> said;
  bool right = entry.value.kind == toml::Kind::kArray;
  bool append = false;
  for (const auto& item : entry.value.items) {
    if (item.kind == toml::Kind::kTable) {
      append = true;
    } else {
      right = right && item.kind == toml::Kind::kString;
      said.push_back(item.text);
    }
  }
  if (!right) return fail(Code::kInvalidArgument, "cdi_spec_dirs is no list of folders", place);
  if (!append) dirs.dirs.clear();
  dirs.dirs.insert(dirs.dirs.end(), said.begin(), said.end());
  dirs.said = place;
  return true;
}

// `own` stands for our drop-in, whatever is on disk.
Result<Dirs> read_dirs(const LayeredSetting& setting, const Target& target, const Reader& reader,
                       const std::optional<std::string>& own) {
  Dirs result{setting.default_dirs, {}};
  auto drop_ins = reader.glob(setting.pattern);
  std::erase(drop_ins, target.drop_in);
  if (own) drop_ins.push_back(target.drop_in);
  std::ranges::sort(drop_ins);
  std::vector<std::string> paths = setting.first;
  paths.insert(paths.end(), drop_ins.begin(), drop_ins.end());
  auto wanted = setting.table;
  wanted.push_back("cdi_spec_dirs");
  for (const auto& path : paths) {
    std::optional<std::string> content = own;
    if (path != target.drop_in) {
      GPULET_TRY_ASSIGN(content, reader.read(path));
    }
    if (!content) continue;
    GPULET_TRY_ASSIGN(const auto document, toml::parse(*content, path));
    if (const auto* entry = document.find(wanted)) {
      GPULET_TRY(take_in(result, *entry, path + ":" + std::to_string(entry->line)));
    }
  }
  return result;
}

std::string drop_in_text(const LayeredSetting& setting, const std::vector<std::string>& dirs) {
  return std::string(kOurHeader) + "[" + text::join(setting.table, ".") +
         "]\ncdi_spec_dirs = " + toml::string_array(with_wanted_spec_dirs(dirs)) + "\n";
}

}  // namespace

Result<Plan> configure_layered(const LayeredSetting& setting, const Target& target, const Reader& reader) {
  GPULET_TRY(check_version(setting.engine, target.version));
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY(check_ours(target.drop_in, own));
  GPULET_TRY_ASSIGN(const Dirs before, read_dirs(setting, target, reader, std::nullopt));
  const std::string title(facts(setting.engine).title);
  if (!own && (!setting.heeded || has_wanted_spec_dirs(before.dirs)) && target.version) {
    return Plan{.say = title + " " + target.version->str() + " has CDI on and reads both folders of specs"};
  }
  const std::string text = drop_in_text(setting, before.dirs);
  GPULET_TRY_ASSIGN(const Dirs after, read_dirs(setting, target, reader, text));
  if (!has_wanted_spec_dirs(after.dirs)) {
    return fail(Code::kFailedPrecondition,
                "read after our drop-in, and leaves a folder of specs out: add /etc/cdi and /var/run/cdi",
                after.said);
  }
  Plan plan;
  if (own != text) plan.changes.push_back({target.drop_in, text});
  return plan;
}

Result<Plan> remove_layered(const Target& target, const Reader& reader) {
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY(check_ours(target.drop_in, own));
  Plan plan;
  if (own) plan.changes.push_back({target.drop_in, std::nullopt});
  return plan;
}

Result<std::vector<Finding>> judge_layered(const LayeredSetting& setting, const Target& target,
                                           const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY_ASSIGN(const Dirs dirs, read_dirs(setting, target, reader, own));
  const Finding version = judge_version(setting.engine, target.version);
  const bool right = !setting.heeded || has_wanted_spec_dirs(dirs.dirs);
  return std::vector<Finding>{
      version,
      {.what = "CDI",
       .fit = version.fit,
       .say = version.fit ? "on: this engine has no switch for it" : "not there",
       .remedy = version.remedy},
      {.what = "spec dirs",
       .fit = right,
       .say = setting.heeded ? text::join(dirs.dirs, ", ") +
                                   (dirs.said.empty() ? ", as by default" : " (" + dirs.said + ")")
                             : text::join(wanted_spec_dirs(), ", ") + ", built in",
       .remedy = right ? "" : configure_command(setting.engine)}};
}

}  // namespace gpulet::runtimes
