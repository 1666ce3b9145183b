#include "runtimes/containerd.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include "base/text.h"
#include "runtimes/imports.h"
#include "runtimes/ours.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes::containerd {
namespace {

using toml::Kind;

constexpr std::string_view kCri2 = "io.containerd.grpc.v1.cri";
constexpr std::string_view kCri3 = "io.containerd.cri.v1.runtime";
// More files than this are a loop of patterns, not a config.
constexpr std::size_t kMaxFiles = 256;

struct File {
  std::string path, text;
  toml::Document document;
};

// All that containerd reads, in its order, and what it comes to.
struct Config {
  std::vector<File> files;
  long long version = 0;  // the main file's; 0 without
  bool cri_disabled = false;
  std::optional<bool> cdi;  // as said by the file read last that does
  std::optional<std::vector<std::string>> dirs;
  std::string cdi_said, dirs_said;      // FILE:LINE
  std::optional<std::size_t> cri_said;  // the index of the last file that says anything of the plugin
};

toml::Path plugin(std::string_view name) { return {"plugins", std::string(name)}; }
std::string place(const File& file, std::size_t line) { return file.path + ":" + std::to_string(line); }

bool is_1(const Target& target, const Config& config) {
  return target.version ? target.version->major < 2 : config.version < 3;
}

Result<std::vector<std::string>> strings_of(const File& file, const toml::Entry& entry) {
  std::vector<std::string> result;
  bool right = entry.value.kind == Kind::kArray;
  for (const auto& item : entry.value.items) {
    right = right && item.kind == Kind::kString;
    result.push_back(item.text);
  }
  if (right) return result;
  return fail(Code::kInvalidArgument, text::join(entry.path, ".") + " is no list of texts",
              place(file, entry.line));
}

// The files in the order of their reading. `own` stands for our drop-in, whatever is on disk.
Result<std::vector<File>> read_files(const Target& target, const Reader& reader,
                                     const std::optional<std::string>& main,
                                     const std::optional<std::string>& own) {
  std::vector<File> files;
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
      // A path that was named outright: containerd itself does not start then.
      if (path == target.drop_in) continue;
      return fail(Code::kInvalidArgument, "imports " + path + ", which is not there", target.config);
    }
    GPULET_TRY_ASSIGN(auto document, toml::parse(*content, path));
    GPULET_TRY_ASSIGN(const auto imports, imports_of(document, path));
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

Status note_disabled(Config& config, const File& file) {
  const auto* entry = file.document.find({"disabled_plugins"});
  if (entry == nullptr) return {};
  GPULET_TRY_ASSIGN(const auto names, strings_of(file, *entry));
  for (const auto& name : names) {
    if (name == "cri" || name == kCri2 || name == kCri3) config.cri_disabled = true;
  }
  return {};
}

// Takes in what `file` says, as containerd merges it.
Status merge(Config& config, std::size_t index, bool whole_plugins) {
  const File& file = config.files[index];
  const auto* version = file.document.find({"version"});
  const bool named_2 = version == nullptr ? config.version < 3 : version->value.number < 3;
  const toml::Path cri = plugin(named_2 ? kCri2 : kCri3);
  GPULET_TRY(note_disabled(config, file));
  const bool says =
      std::ranges::any_of(file.document.entries, [&](const auto& e) { return toml::under(e.path, cri); }) ||
      std::ranges::any_of(file.document.tables, [&](const auto& t) { return toml::under(t.path, cri); });
  if (!says) return {};
  config.cri_said = index;
  if (whole_plugins) config.cdi.reset(), config.dirs.reset();
  auto cdi = cri, dirs = cri;
  cdi.push_back("enable_cdi");
  dirs.push_back("cdi_spec_dirs");
  if (const auto* entry = file.document.find(cdi)) {
    if (entry->value.kind != Kind::kBool) {
      return fail(Code::kInvalidArgument, "enable_cdi is neither true nor false", place(file, entry->line));
    }
    config.cdi = entry->value.flag;
    config.cdi_said = place(file, entry->line);
  }
  if (const auto* entry = file.document.find(dirs)) {
    GPULET_TRY_ASSIGN(config.dirs, strings_of(file, *entry));
    config.dirs_said = place(file, entry->line);
  }
  return {};
}

Result<Config> read_config(const Target& target, const Reader& reader, const std::optional<std::string>& main,
                           const std::optional<std::string>& own) {
  Config config;
  GPULET_TRY_ASSIGN(config.files, read_files(target, reader, main, own));
  if (!config.files.empty()) {
    const auto* version = config.files[0].document.find({"version"});
    if (version != nullptr) {
      config.version = version->value.number;
      if (version->value.kind != Kind::kInteger || config.version < 1 || config.version > 4) {
        return fail(Code::kInvalidArgument, "this config version is not known: 2, 3 or 4 would do",
                    place(config.files[0], version->line));
      }
    }
  }
  for (std::size_t i = 0; i < config.files.size(); ++i) {
    GPULET_TRY(merge(config, i, is_1(target, config)));
  }
  return config;
}

bool cdi_on(const Target& target, const Config& config) { return config.cdi.value_or(!is_1(target, config)); }
bool dirs_right(const Config& config) { return !config.dirs || has_wanted_spec_dirs(*config.dirs); }

// A version that our drop-in can have beside this main file.
Result<long long> drop_in_version(const Target& target, const Config& config) {
  if (config.version == 0 || config.version == 1) {
    const auto* main = config.files.empty() ? nullptr : &config.files[0].document;
    for (const std::string_view key : {"plugins", "disabled_plugins", "required_plugins"}) {
      const toml::Path path{std::string(key)};
      if (main == nullptr) break;
      const auto has = [&](const auto& e) { return toml::under(e.path, path); };
      if (std::ranges::none_of(main->entries, has) && std::ranges::none_of(main->tables, has)) continue;
      return fail(
          Code::kInvalidArgument,
          "a config of version 1, whose plugins have other names: one of version 2 would do (`containerd "
          "config migrate` prints it)",
          target.config);
    }
    if (config.version == 0) return target.version && target.version->major >= 2 ? 3 : 2;
    return 2;
  }
  if (target.version && target.version->major < 2 && config.version > 2) {
    return fail(Code::kInvalidArgument,
                "a config of version " + std::to_string(config.version) + ", and containerd " +
                    target.version->str() + " reads none above 2",
                target.config);
  }
  return config.version;
}

// The tables of the plugin as `file` has them, without the two values that are ours: for 1.x.
Result<std::string> repeated_tables(const File& file, const std::string& ours) {
  const toml::Path cri = plugin(kCri2);
  auto cdi = cri, dirs = cri;
  cdi.push_back("enable_cdi");
  dirs.push_back("cdi_spec_dirs");
  std::string own_table, others;
  for (const auto& entry : file.document.entries) {
    if (!toml::under(entry.path, cri)) continue;
    if (toml::under(file.document.tables[entry.table].path, cri)) continue;
    return fail(
        Code::kFailedPrecondition,
        "containerd 1.x forgets this when a drop-in names the plugin, and it cannot be repeated there unless "
        "it is a table [plugins.\"io.containerd.grpc.v1.cri\"]; or set enable_cdi = true in it by hand",
        place(file, entry.line));
  }
  for (std::size_t i = 0; i < file.document.tables.size(); ++i) {
    const auto& table = file.document.tables[i];
    if (!toml::under(table.path, cri)) continue;
    std::string text = file.text.substr(table.begin, table.end - table.begin);
    if (table.path == cri) {
      // From the back, so that offsets stay right.
      for (auto entry = file.document.entries.rbegin(); entry != file.document.entries.rend(); ++entry) {
        if (entry->table != i || entry->in_line || (entry->path != cdi && entry->path != dirs)) continue;
        const std::size_t begin = toml::line_begin(file.text, entry->begin);
        text.erase(begin - table.begin, toml::line_end(file.text, entry->value.end) - begin);
      }
      const std::size_t header = std::min(toml::line_end(text, 0), text.size());
      text.erase(0, header);
    }
    if (!text.empty() && text.back() != '\n') text += '\n';
    (table.path == cri ? own_table : others) += text;
  }
  return ours + own_table + others;
}

Result<std::string> drop_in_text(const Target& target, const Config& config) {
  GPULET_TRY_ASSIGN(const long long version, drop_in_version(target, config));
  const std::string_view name = version < 3 ? kCri2 : kCri3;
  const bool repeat = is_1(target, config) && config.cri_said;
  std::string text = std::string(kOurHeader);
  if (repeat) {
    text +=
        "# containerd 1.x forgets what it read of a plugin when an import names it. So this repeats\n"
        "# " +
        config.files[*config.cri_said].path + ", with CDI on: when that changes, configure again.\n";
  }
  text += "version = " + std::to_string(version) + "\n\n";
  const std::string table =
      "[plugins." + toml::quoted(name) + "]\n  enable_cdi = true\n  cdi_spec_dirs = " +
      toml::string_array(with_wanted_spec_dirs(config.dirs.value_or(std::vector<std::string>{}))) + "\n";
  if (!repeat) return text + table;
  GPULET_TRY_ASSIGN(const std::string tables, repeated_tables(config.files[*config.cri_said], table));
  return text + tables;
}

// The main file where there was none.
std::string created_main(long long version, const std::string& pattern) {
  return std::string(kOurHeader) + "version = " + std::to_string(version) + "\nimports = [" +
         toml::quoted(pattern) + "]\n";
}

struct OnDisk {
  std::optional<std::string> main, own;
};

Result<OnDisk> on_disk(const Target& target, const Reader& reader) {
  OnDisk disk;
  GPULET_TRY_ASSIGN(disk.main, reader.read(target.config));
  GPULET_TRY_ASSIGN(disk.own, reader.read(target.drop_in));
  GPULET_TRY(check_ours(target.drop_in, disk.own));
  return disk;
}

Result<std::string> main_with_import(const Target& target, const OnDisk& disk, long long version) {
  const std::string pattern = import_pattern(target.drop_in);
  if (!disk.main) return created_main(version, pattern);
  GPULET_TRY_ASSIGN(const auto document, toml::parse(*disk.main, target.config));
  GPULET_TRY_ASSIGN(const auto imports, imports_of(document, target.config));
  if (std::ranges::any_of(imports, [&](const auto& i) { return import_matches(i, target.drop_in); }))
    return *disk.main;
  return with_import(*disk.main, document, pattern);
}

}  // namespace

Result<Plan> configure(const Target& target, const Reader& reader) {
  GPULET_TRY(check_version(Engine::kContainerd, target.version));
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const OnDisk disk, on_disk(target, reader));
  GPULET_TRY_ASSIGN(const Config before, read_config(target, reader, disk.main, std::nullopt));
  if (before.cri_disabled) {
    return fail(
        Code::kFailedPrecondition,
        "the CRI plugin is disabled (disabled_plugins), so the kubelet cannot use this containerd: enable it "
        "first, or configure Docker if that is what runs containers here",
        target.config);
  }
  if (!disk.own && cdi_on(target, before) && dirs_right(before)) {
    return Plan{.say = "CDI is on and reads both folders of specs"};
  }
  GPULET_TRY_ASSIGN(const long long version, drop_in_version(target, before));
  GPULET_TRY_ASSIGN(const std::string own, drop_in_text(target, before));
  GPULET_TRY_ASSIGN(const std::string main, main_with_import(target, disk, version));
  GPULET_TRY_ASSIGN(const Config after, read_config(target, reader, main, own));
  if (!cdi_on(target, after)) {
    return fail(Code::kFailedPrecondition,
                "read after our drop-in, and turns CDI off: take enable_cdi out of it", after.cdi_said);
  }
  if (!dirs_right(after)) {
    return fail(Code::kFailedPrecondition,
                "read after our drop-in, and leaves a folder of specs out: add /etc/cdi and /var/run/cdi",
                after.dirs_said);
  }
  Plan plan;
  if (disk.own != own) plan.changes.push_back({target.drop_in, own});
  if (disk.main != main) plan.changes.push_back({target.config, main});
  return plan;
}

Result<Plan> remove(const Target& target, const Reader& reader) {
  GPULET_TRY(check_drop_in_path(target.drop_in));
  GPULET_TRY_ASSIGN(const OnDisk disk, on_disk(target, reader));
  Plan plan;
  if (disk.main) {
    const std::string pattern = import_pattern(target.drop_in);
    GPULET_TRY_ASSIGN(const auto document, toml::parse(*disk.main, target.config));
    const std::string main = without_import(*disk.main, document, pattern);
    const bool created = std::ranges::any_of(
        std::array{2, 3}, [&](int version) { return *disk.main == created_main(version, pattern); });
    if (created) {
      plan.changes.push_back({target.config, std::nullopt});
    } else if (main != *disk.main) {
      plan.changes.push_back({target.config, main});
    }
  }
  if (disk.own) plan.changes.push_back({target.drop_in, std::nullopt});
  return plan;
}

Result<std::vector<Finding>> judge(const Target& target, const Reader& reader) {
  std::vector<Finding> findings{judge_version(Engine::kContainerd, target.version)};
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  GPULET_TRY_ASSIGN(const auto own, reader.read(target.drop_in));
  GPULET_TRY_ASSIGN(const Config config, read_config(target, reader, main, own));
  if (config.cri_disabled) {
    findings.push_back(
        {.what = "CRI",
         .fit = true,
         .say = "disabled: the kubelet does not use this containerd, so nothing is asked of it"});
    return findings;
  }
  const std::string remedy = configure_command(Engine::kContainerd);
  const bool on = cdi_on(target, config);
  findings.push_back({.what = "CDI",
                      .fit = on,
                      .say = std::string(on ? "on" : "off") +
                             (config.cdi ? " (" + config.cdi_said + ")" : ", as by default"),
                      .remedy = on ? "" : remedy});
  const bool right = dirs_right(config);
  findings.push_back({.what = "spec dirs",
                      .fit = right,
                      .say = text::join(config.dirs.value_or(wanted_spec_dirs()), ", ") +
                             (config.dirs ? " (" + config.dirs_said + ")" : ", as by default"),
                      .remedy = right ? "" : remedy});
  if (own && own->starts_with(kOurHeader)) {
    GPULET_TRY_ASSIGN(const Config before, read_config(target, reader, main, std::nullopt));
    GPULET_TRY_ASSIGN(const std::string wanted, drop_in_text(target, before));
    const bool current = *own == wanted;
    findings.push_back({.what = "drop-in",
                        .fit = current,
                        .say = current
                                   ? target.drop_in + " is as it should be"
                                   : target.drop_in + " was written for other settings than there are now",
                        .remedy = current ? "" : remedy});
  }
  return findings;
}

}  // namespace gpulet::runtimes::containerd
