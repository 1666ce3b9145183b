#include "runtimes/containerd.h"

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "runtimes/imports.h"

namespace gpulet::runtimes::containerd {
namespace {

using toml::Kind;

constexpr std::string_view kCri2 = "io.containerd.grpc.v1.cri";
constexpr std::string_view kCri3 = "io.containerd.cri.v1.runtime";
// More files than this indicate a loop of patterns.
constexpr std::size_t kMaxFiles = 256;

struct ConfigFile {
  std::string path, text;
  toml::Document document;
};

// The files that containerd reads, in order, and the resulting settings.
struct EffectiveConfig {
  std::vector<ConfigFile> files;
  long long version = 0;  // the main file's; without one, kNewestNames for containerd 2, else 0
  bool cri_disabled = false;
  std::optional<bool> cdi;  // the last value read
  std::optional<std::vector<std::string>> dirs;
  std::string cdi_source, dirs_source;       // FILE:LINE
  std::optional<std::size_t> last_cri_file;  // index of the last file with keys of the plugin
};

toml::Path plugin_path(std::string_view name) { return {"plugins", std::string(name)}; }
toml::Path key_path(toml::Path table, const char* key) {
  table.emplace_back(key);
  return table;
}
std::string file_and_line(const ConfigFile& file, std::size_t line) {
  return file.path + ":" + std::to_string(line);
}

bool is_containerd_1(const Target& target, const EffectiveConfig& config) {
  return target.version ? target.version->major < 2 : config.version < 3;
}

Result<std::vector<std::string>> read_string_list(const ConfigFile& file, const toml::Entry& entry) {
  std::vector<std::string> result;
  bool right = entry.value.kind == Kind::kArray;
  for (const auto& item : entry.value.items) {
    right = right && item.kind == Kind::kString;
    result.push_back(item.text);
  }
  if (right) return result;
  return fail(Code::kInvalidArgument, text::join(entry.path, ".") + " is not a list of strings",
              file_and_line(file, entry.line));
}

// Returns the files in reading order. `own` replaces gpulet's drop-in on disk.
Result<std::vector<ConfigFile>> read_files(const Target& target, const Reader& reader,
                                           const std::optional<std::string>& main,
                                           const std::optional<std::string>& own) {
  std::vector<ConfigFile> files;
  std::set<std::string> seen;
  std::deque<std::string> pending;
  if (main) pending.push_back(target.config);
  while (!pending.empty()) {
    const std::string path = pending.front();
    pending.pop_front();
    if (!seen.insert(path).second) continue;
    if (seen.size() > kMaxFiles) {
      return fail(Code::kInvalidArgument, "imports more than " + std::to_string(kMaxFiles) + " files",
                  target.config);
    }
    std::optional<std::string> content;
    if (path == target.config) {
      content = main;
    } else if (path == target.drop_in) {
      content = own;
    } else {
      GPULET_TRY_ASSIGN(content, reader.read(path));
    }
    if (!content) {
      // containerd does not start with a missing path.
      if (path == target.drop_in) continue;
      return fail(Code::kInvalidArgument, "imports " + path + ", which does not exist", target.config);
    }
    GPULET_TRY_ASSIGN(auto document, toml::parse_toml(*content, path));
    GPULET_TRY_ASSIGN(const auto imports, read_imports(document, path));
    for (const auto& import : imports) {
      if (import.find('*') == std::string::npos) {
        pending.push_back(import);
        continue;
      }
      auto matches = reader.glob(import);
      std::erase(matches, target.drop_in);
      if (own && import_matches(import, target.drop_in)) matches.push_back(target.drop_in);
      std::ranges::sort(matches);
      pending.insert(pending.end(), matches.begin(), matches.end());
    }
    files.push_back({path, std::move(*content), std::move(document)});
  }
  return files;
}

Status read_disabled_plugins(EffectiveConfig& config, const ConfigFile& file) {
  const auto* entry = file.document.find({"disabled_plugins"});
  if (entry == nullptr) return {};
  GPULET_TRY_ASSIGN(const auto names, read_string_list(file, *entry));
  for (const auto& name : names) {
    if (name == "cri" || name == kCri2 || name == kCri3) config.cri_disabled = true;
  }
  return {};
}

// Of a config without `version`, containerd 2 reads the newest names of plugins, those of versions 3 and 4;
// containerd 1 takes it for version 1. Source: containerd.h.
constexpr long long kNewestNames = 3;

// Merges the settings of `file` as containerd does.
Status merge_file(EffectiveConfig& config, std::size_t index, bool whole_plugins) {
  const ConfigFile& file = config.files[index];
  const auto* version = file.document.find({"version"});
  const bool named_2 = version == nullptr ? config.version < 3 : version->value.number < 3;
  const toml::Path cri = plugin_path(named_2 ? kCri2 : kCri3);
  GPULET_TRY(read_disabled_plugins(config, file));
  const bool says =
      std::ranges::any_of(file.document.entries,
                          [&](const auto& e) { return toml::has_prefix(e.path, cri); }) ||
      std::ranges::any_of(file.document.tables, [&](const auto& t) { return toml::has_prefix(t.path, cri); });
  if (!says) return {};
  config.last_cri_file = index;
  if (whole_plugins) config.cdi.reset(), config.dirs.reset();
  const auto cdi = key_path(cri, "enable_cdi"), dirs = key_path(cri, "cdi_spec_dirs");
  if (const auto* entry = file.document.find(cdi)) {
    if (entry->value.kind != Kind::kBool) {
      return fail(Code::kInvalidArgument, "enable_cdi is not a boolean", file_and_line(file, entry->line));
    }
    config.cdi = entry->value.flag;
    config.cdi_source = file_and_line(file, entry->line);
  }
  if (const auto* entry = file.document.find(dirs)) {
    GPULET_TRY_ASSIGN(config.dirs, read_string_list(file, *entry));
    config.dirs_source = file_and_line(file, entry->line);
  }
  return {};
}

Result<EffectiveConfig> read_config(const Target& target, const Reader& reader,
                                    const std::optional<std::string>& main,
                                    const std::optional<std::string>& own) {
  EffectiveConfig config;
  GPULET_TRY_ASSIGN(config.files, read_files(target, reader, main, own));
  if (!config.files.empty()) {
    const auto* version = config.files[0].document.find({"version"});
    if (version != nullptr) {
      config.version = version->value.number;
      if (version->value.kind != Kind::kInteger || config.version < 1 || config.version > 4) {
        return fail(Code::kInvalidArgument, "unknown config version: expected 2, 3 or 4",
                    file_and_line(config.files[0], version->line));
      }
    } else if (target.version && target.version->major >= 2) {
      config.version = kNewestNames;
    }
  }
  for (std::size_t i = 0; i < config.files.size(); ++i) {
    if (config.files[i].document.has_byte_order_mark && target.version && target.version->major >= 2) {
      return fail(Code::kInvalidArgument, "containerd 2 reads no file with a byte order mark: remove it",
                  file_and_line(config.files[i], 1));
    }
    GPULET_TRY(merge_file(config, i, is_containerd_1(target, config)));
  }
  return config;
}

bool is_cdi_enabled(const Target& target, const EffectiveConfig& config) {
  return config.cdi.value_or(!is_containerd_1(target, config));
}
bool has_spec_dirs(const EffectiveConfig& config) {
  return !config.dirs || has_required_spec_dirs(*config.dirs);
}

// Returns the version of a drop-in for this main file.
Result<long long> drop_in_version(const Target& target, const EffectiveConfig& config) {
  if (config.version == 0 || config.version == 1) {
    const auto* main = config.files.empty() ? nullptr : &config.files[0].document;
    for (const std::string_view key : {"plugins", "disabled_plugins", "required_plugins"}) {
      const toml::Path path{std::string(key)};
      if (main == nullptr) break;
      const auto has = [&](const auto& e) { return toml::has_prefix(e.path, path); };
      if (std::ranges::none_of(main->entries, has) && std::ranges::none_of(main->tables, has)) continue;
      return fail(Code::kInvalidArgument,
                  "config version 1 is not supported: convert it to version 2 (`containerd "
                  "config migrate` prints it)",
                  target.config);
    }
    return 2;
  }
  if (target.version && target.version->major < 2 && config.version > 2) {
    return fail(Code::kInvalidArgument,
                "config version " + std::to_string(config.version) + " is not supported: containerd " +
                    target.version->str() + " reads none newer than 2",
                target.config);
  }
  return config.version;
}

// The plugin's settings in `file` that other tables have, by dotted keys or in inline tables: as dotted keys
// of the plugin's own table.
std::string dotted_settings(const ConfigFile& file, const toml::Path& cri,
                            const std::vector<toml::Path>& ours) {
  const auto& entries = file.document.entries;
  std::string lines;
  for (const auto& entry : entries) {
    if (entry.path == cri || !toml::has_prefix(entry.path, cri) || std::ranges::count(ours, entry.path) != 0)
      continue;
    if (toml::has_prefix(file.document.tables[entry.table].path, cri)) continue;
    const bool has_members = std::ranges::any_of(entries, [&](const toml::Entry& other) {
      return other.path.size() > entry.path.size() && toml::has_prefix(other.path, entry.path);
    });
    if (has_members) continue;  // they follow
    std::vector<std::string> keys;
    for (std::size_t i = cri.size(); i < entry.path.size(); ++i)
      keys.push_back(toml::quote_toml(entry.path[i]));
    lines += text::join(keys, ".") + " = " +
             file.text.substr(entry.value.begin, entry.value.end - entry.value.begin) + "\n";
  }
  return lines;
}

// Returns the plugin's tables in `file` without the two keys that gpulet sets, for 1.x.
std::string repeated_tables(const ConfigFile& file, const std::string& ours) {
  const toml::Path cri = plugin_path(kCri2);
  const auto cdi = key_path(cri, "enable_cdi"), dirs = key_path(cri, "cdi_spec_dirs");
  std::string own_table = dotted_settings(file, cri, {cdi, dirs}), others;
  for (std::size_t i = 0; i < file.document.tables.size(); ++i) {
    const auto& table = file.document.tables[i];
    if (!toml::has_prefix(table.path, cri)) continue;
    std::string text = file.text.substr(table.begin, table.end - table.begin);
    if (table.path == cri) {
      // Backwards, so that offsets stay valid.
      for (auto entry = file.document.entries.rbegin(); entry != file.document.entries.rend(); ++entry) {
        if (entry->table != i || entry->is_inline || (entry->path != cdi && entry->path != dirs)) continue;
        const std::size_t begin = toml::line_begin(file.text, entry->begin);
        text.erase(begin - table.begin, toml::line_end(file.text, entry->value.end) - begin);
      }
      text.erase(0, std::min(toml::line_end(text, 0), text.size()));
    }
    if (!text.empty() && text.back() != '\n') text += '\n';
    (table.path == cri ? own_table : others) += text;
  }
  return ours + own_table + others;
}

Result<std::string> drop_in_text(const Target& target, const EffectiveConfig& config) {
  GPULET_TRY_ASSIGN(const long long version, drop_in_version(target, config));
  const std::string_view name = version < 3 ? kCri2 : kCri3;
  const bool repeat = is_containerd_1(target, config) && config.last_cri_file;
  std::string text = std::string(kFileHeader);
  if (repeat) {
    text +=
        "# containerd 1.x drops a plugin's earlier settings when an import names it. So this file repeats\n"
        "# " +
        config.files[*config.last_cri_file].path + " with CDI on: if that changes, configure again.\n";
  }
  text += "version = " + std::to_string(version) + "\n\n";
  const std::string table =
      "[plugins." + toml::quote_toml(name) + "]\n  enable_cdi = true\n  cdi_spec_dirs = " +
      toml::string_array(with_required_spec_dirs(config.dirs.value_or(std::vector<std::string>{}))) + "\n";
  if (!repeat) return text + table;
  return text + repeated_tables(config.files[*config.last_cri_file], table);
}

// Returns the main file if there was none.
std::string new_main_file(long long version, const std::string& pattern) {
  return std::string(kFileHeader) + "version = " + std::to_string(version) + "\nimports = [" +
         toml::quote_toml(pattern) + "]\n";
}

struct ExistingFiles {
  std::optional<std::string> main, own;
};

Result<ExistingFiles> read_existing(const Target& target, const Reader& reader) {
  ExistingFiles disk;
  GPULET_TRY_ASSIGN(disk.main, reader.read(target.config));
  GPULET_TRY_ASSIGN(disk.own, reader.read(target.drop_in));
  GPULET_TRY(check_file_owner(target.drop_in, disk.own));
  return disk;
}

Result<std::string> main_with_import(const Target& target, const ExistingFiles& disk, long long version) {
  const std::string pattern = import_pattern(target.drop_in);
  if (!disk.main) return new_main_file(version, pattern);
  GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(*disk.main, target.config));
  GPULET_TRY_ASSIGN(const auto imports, read_imports(document, target.config));
  if (std::ranges::any_of(imports, [&](const auto& i) { return import_matches(i, target.drop_in); }))
    return *disk.main;
  return with_import(*disk.main, document, pattern);
}

}  // namespace

Result<Plan> plan_setup(const Target& target, const Reader& reader) {
  GPULET_TRY(check_engine_version(Engine::kContainerd, target.version));
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const ExistingFiles disk, read_existing(target, reader));
  GPULET_TRY_ASSIGN(const EffectiveConfig before, read_config(target, reader, disk.main, std::nullopt));
  if (before.cri_disabled) {
    return fail(
        Code::kFailedPrecondition,
        "the CRI plugin is disabled (disabled_plugins), so the kubelet cannot use this containerd: enable it "
        "first, or configure Docker if that is what runs containers here",
        target.config);
  }
  if (!disk.own && is_cdi_enabled(target, before) && has_spec_dirs(before)) {
    return Plan{.message = "CDI is on and reads both spec directories"};
  }
  GPULET_TRY_ASSIGN(const long long version, drop_in_version(target, before));
  GPULET_TRY_ASSIGN(const std::string own, drop_in_text(target, before));
  GPULET_TRY_ASSIGN(const std::string main, main_with_import(target, disk, version));
  GPULET_TRY_ASSIGN(const EffectiveConfig after, read_config(target, reader, main, own));
  if (!is_cdi_enabled(target, after)) {
    return fail(Code::kFailedPrecondition,
                "read after gpulet's drop-in and turns CDI off: remove enable_cdi from it", after.cdi_source);
  }
  if (!has_spec_dirs(after)) {
    return fail(Code::kFailedPrecondition,
                "read after gpulet's drop-in and omits a spec directory: add /etc/cdi and /var/run/cdi",
                after.dirs_source);
  }
  Plan plan;
  if (disk.own != own) plan.changes.push_back({target.drop_in, own});
  if (disk.main != main) plan.changes.push_back({target.config, main});
  return plan;
}

Result<Plan> plan_removal(const Target& target, const Reader& reader) {
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const ExistingFiles disk, read_existing(target, reader));
  Plan plan;
  if (disk.main) {
    const std::string pattern = import_pattern(target.drop_in);
    GPULET_TRY_ASSIGN(const auto document, toml::parse_toml(*disk.main, target.config));
    const std::string main = without_import(*disk.main, document, pattern);
    const bool created = std::ranges::any_of(
        std::array{2, 3}, [&](int version) { return *disk.main == new_main_file(version, pattern); });
    if (created) {
      plan.changes.push_back({target.config, std::nullopt});
    } else if (main != *disk.main) {
      plan.changes.push_back({target.config, main});
    }
  }
  if (disk.own) plan.changes.push_back({target.drop_in, std::nullopt});
  return plan;
}

Result<std::vector<Finding>> collect_findings(const Target& target, const Reader& reader) {
  std::vector<Finding> findings{version_finding(Engine::kContainerd, target.version)};
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY_ASSIGN(const EffectiveConfig config, read_config(target, reader, main, own));
  const auto add = [&](const char* subject, bool is_met, std::string detail) {
    const std::string advice = is_met ? "" : configure_command(Engine::kContainerd);
    findings.push_back({.subject = subject, .is_met = is_met, .detail = std::move(detail), .advice = advice});
  };
  if (config.cri_disabled) {
    add("CRI", true, "disabled: the kubelet does not use this containerd, so nothing is required");
    return findings;
  }
  const auto source = [](bool is_set, const std::string& place) {
    return is_set ? " (" + place + ")" : " (default)";
  };
  const bool on = is_cdi_enabled(target, config);
  add("CDI", on, (on ? "on" : "off") + source(config.cdi.has_value(), config.cdi_source));
  add("spec dirs", has_spec_dirs(config),
      text::join(config.dirs.value_or(required_spec_dirs()), ", ") +
          source(config.dirs.has_value(), config.dirs_source));
  if (own && own->starts_with(kFileHeader)) {
    GPULET_TRY_ASSIGN(const EffectiveConfig before, read_config(target, reader, main, std::nullopt));
    GPULET_TRY_ASSIGN(const std::string expected, drop_in_text(target, before));
    const bool current = *own == expected;
    add("drop-in", current,
        target.drop_in + (current ? " is up to date" : " is outdated: other settings changed since"));
  }
  return findings;
}

}  // namespace gpulet::runtimes::containerd
