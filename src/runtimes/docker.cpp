#include "runtimes/docker.h"

#include <algorithm>

#include "base/text.h"
#include "runtimes/json_text.h"

namespace gpulet::runtimes::docker {
namespace {

using json::Kind;
using json::Value;

constexpr std::string_view kDirs = "cdi-spec-dirs";
constexpr Version kOnByDefault{28, 2, 0};

// What we changed in the file: the record's content.
struct Record {
  bool created_file = false;
  bool created_features = false;
  std::string cdi;                // "absent", "false" before; empty when not ours
  std::vector<std::string> dirs;  // added to cdi-spec-dirs
};

std::string place(const std::string& path, const Value& value) {
  return path + ":" + std::to_string(value.line);
}

struct Settings {
  std::optional<bool> cdi;
  std::optional<std::vector<std::string>> dirs;
  std::string cdi_said, dirs_said;
};

Result<Value> parse_object(const std::string& text, const std::string& path) {
  GPULET_TRY_ASSIGN(Value root, json::parse(text, path));
  if (root.kind != Kind::kObject) return fail(Code::kInvalidArgument, "no JSON object", path + ":1");
  return root;
}

Result<std::vector<std::string>> texts_of(const Value& list, const std::string& path) {
  std::vector<std::string> result;
  bool right = list.kind == Kind::kArray;
  for (const auto& item : list.children) {
    right = right && item.kind == Kind::kString;
    result.push_back(item.text);
  }
  if (!right) return fail(Code::kInvalidArgument, list.key + " is no list of texts", place(path, list));
  return result;
}

Result<Settings> read_settings(const Value& root, const std::string& path) {
  Settings settings;
  if (const auto* features = root.find("features")) {
    if (features->kind != Kind::kObject) {
      return fail(Code::kInvalidArgument, "features is no object", place(path, *features));
    }
    if (const auto* cdi = features->find("cdi")) {
      if (cdi->kind != Kind::kBool) {
        return fail(Code::kInvalidArgument, "features.cdi is neither true nor false", place(path, *cdi));
      }
      settings.cdi = cdi->flag;
      settings.cdi_said = place(path, *cdi);
    }
  }
  if (const auto* dirs = root.find(kDirs)) {
    GPULET_TRY_ASSIGN(settings.dirs, texts_of(*dirs, path));
    settings.dirs_said = place(path, *dirs);
  }
  return settings;
}

// An empty list stands for the default; [""] for none.
bool dirs_right(const Settings& settings) {
  return !settings.dirs || settings.dirs->empty() || has_wanted_spec_dirs(*settings.dirs);
}

bool cdi_on(const Target& target, const Settings& settings) {
  return settings.cdi.value_or(target.version && *target.version >= kOnByDefault);
}

std::string text_of(const Record& record) {
  std::vector<std::string> dirs;
  for (const auto& dir : record.dirs) dirs.push_back(json::quoted(dir));
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return "{\n  \"about\": \"what gpulet runtime configure changed beside this file, for --remove\",\n"
         "  \"created-file\": " +
         flag(record.created_file) + ",\n  \"created-features\": " + flag(record.created_features) +
         ",\n  \"cdi-before\": " + json::quoted(record.cdi) + ",\n  \"added-dirs\": [" +
         text::join(dirs, ", ") + "]\n}\n";
}

Result<Record> record_of(const std::string& text, const std::string& path) {
  GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
  const auto* file = root.find("created-file");
  const auto* features = root.find("created-features");
  const auto* cdi = root.find("cdi-before");
  const auto* dirs = root.find("added-dirs");
  if (file == nullptr || features == nullptr || cdi == nullptr || dirs == nullptr) {
    return fail(Code::kInvalidArgument, "not a record of our changes", path);
  }
  Record record{.created_file = file->flag, .created_features = features->flag, .cdi = cdi->text, .dirs = {}};
  GPULET_TRY_ASSIGN(record.dirs, texts_of(*dirs, path));
  return record;
}

Result<std::optional<Record>> read_record(const Target& target, const Reader& reader) {
  const std::string path = record_path(target.config);
  GPULET_TRY_ASSIGN(const auto text, reader.read(path));
  if (!text) return std::nullopt;
  GPULET_TRY_ASSIGN(Record record, record_of(*text, path));
  return record;
}

// Turns CDI on in `text`; `record` learns what that changed.
Result<std::string> with_cdi(const std::string& text, const std::string& path, Record& record) {
  GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
  const auto* features = root.find("features");
  if (features == nullptr) {
    record.created_features = true;
    record.cdi = "absent";
    return json::with_child(text, root, "\"features\": {\"cdi\": true}");
  }
  const auto* cdi = features->find("cdi");
  if (cdi == nullptr) {
    if (record.cdi.empty()) record.cdi = "absent";
    return json::with_child(text, *features, "\"cdi\": true");
  }
  if (record.cdi.empty()) record.cdi = "false";
  std::string result = text;
  return result.replace(cdi->begin, cdi->end - cdi->begin, "true");
}

Result<std::string> with_dirs(std::string text, const std::string& path, Record& record) {
  GPULET_TRY_ASSIGN(const Value before, parse_object(text, path));
  GPULET_TRY_ASSIGN(const auto old_dirs, texts_of(*before.find(kDirs), path));
  const auto dirs = with_wanted_spec_dirs(old_dirs);
  for (std::size_t i = old_dirs.size(); i < dirs.size(); ++i) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
    text = json::with_child(text, *root.find(kDirs), json::quoted(dirs[i]));
    if (std::ranges::count(record.dirs, dirs[i]) == 0) record.dirs.push_back(dirs[i]);
  }
  return text;
}

Result<std::string> without_dirs(std::string text, const std::string& path, const Record& record) {
  for (auto dir = record.dirs.rbegin(); dir != record.dirs.rend(); ++dir) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
    const auto* dirs = root.find(kDirs);
    if (dirs == nullptr || dirs->kind != Kind::kArray) return text;
    const auto found = std::ranges::find(dirs->children, *dir, &Value::text);
    // The last would leave an empty list, which stands for the default: that is no loss.
    if (found == dirs->children.end()) continue;
    text = json::without_child(text, *dirs, static_cast<std::size_t>(found - dirs->children.begin()));
  }
  return text;
}

Result<std::string> without_cdi(const std::string& text, const std::string& path, const Record& record) {
  GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
  const auto* features = root.find("features");
  const auto* cdi = features == nullptr ? nullptr : features->find("cdi");
  // Changed or taken away since: then it is not ours any more.
  if (record.cdi.empty() || cdi == nullptr || !cdi->flag) return text;
  std::string result = text;
  if (record.cdi == "false") return result.replace(cdi->begin, cdi->end - cdi->begin, "false");
  if (record.created_features && features->children.size() == 1) {
    return json::without_child(text, root, static_cast<std::size_t>(features - root.children.data()));
  }
  return json::without_child(text, *features, static_cast<std::size_t>(cdi - features->children.data()));
}

bool empty_object(const std::string& text) {
  std::string plain = text;
  std::erase_if(plain, [](char c) { return std::string_view(" \t\r\n").find(c) != std::string_view::npos; });
  return plain == "{}";
}

// What dockerd takes for no settings at all.
bool blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

}  // namespace

std::string record_path(const std::string& config) { return config + ".gpulet"; }

Result<Plan> configure(const Target& target, const Reader& reader) {
  GPULET_TRY(check_version(Engine::kDocker, target.version));
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  GPULET_TRY_ASSIGN(const auto known, read_record(target, reader));
  if (main && blank(*main)) {
    return fail(Code::kFailedPrecondition, "an empty file, which is no JSON: remove it, or write {} into it",
                target.config);
  }
  const std::string before = main.value_or("{}");
  GPULET_TRY_ASSIGN(const Value root, parse_object(before, target.config));
  GPULET_TRY_ASSIGN(const Settings settings, read_settings(root, target.config));
  if (settings.dirs && std::ranges::count(*settings.dirs, "") != 0) {
    return fail(Code::kFailedPrecondition,
                "cdi-spec-dirs has an empty path, which turns CDI's folders off: take it out",
                settings.dirs_said);
  }
  const bool on = cdi_on(target, settings), right = dirs_right(settings);
  if (on && right) return Plan{.say = known ? "" : "CDI is on and reads both folders of specs"};
  Record record = known.value_or(Record{});
  if (!known) record.created_file = !main;
  std::string text = before;
  if (!on) {
    GPULET_TRY_ASSIGN(text, with_cdi(text, target.config, record));
  }
  if (!right) {
    GPULET_TRY_ASSIGN(text, with_dirs(text, target.config, record));
  }
  if (!main) text = "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n";
  return Plan{.changes = {{record_path(target.config), text_of(record)}, {target.config, text}}};
}

Result<Plan> remove(const Target& target, const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  GPULET_TRY_ASSIGN(const auto record, read_record(target, reader));
  Plan plan;
  if (!record) return plan;
  if (main) {
    GPULET_TRY_ASSIGN(std::string text, without_dirs(*main, target.config, *record));
    GPULET_TRY_ASSIGN(text, without_cdi(text, target.config, *record));
    if (record->created_file && empty_object(text)) {
      plan.changes.push_back({target.config, std::nullopt});
    } else if (text != *main) {
      plan.changes.push_back({target.config, text});
    }
  }
  plan.changes.push_back({record_path(target.config), std::nullopt});
  return plan;
}

Result<std::vector<Finding>> judge(const Target& target, const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  Settings settings;
  if (main && !blank(*main)) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(*main, target.config));
    GPULET_TRY_ASSIGN(settings, read_settings(root, target.config));
  }
  const std::string remedy = configure_command(Engine::kDocker);
  const bool on = cdi_on(target, settings), right = dirs_right(settings);
  const bool by_default = !settings.dirs || settings.dirs->empty();
  const bool cleared = settings.dirs && std::ranges::count(*settings.dirs, "") != 0;
  return std::vector<Finding>{
      judge_version(Engine::kDocker, target.version),
      {.what = "CDI",
       .fit = on,
       .say = std::string(on ? "on" : "off") +
              (settings.cdi ? " (" + settings.cdi_said + ")" : ", as by default"),
       .remedy = on ? "" : remedy},
      {.what = "spec dirs",
       .fit = right && !cleared,
       .say = by_default ? text::join(wanted_spec_dirs(), ", ") + ", as by default"
                         : text::join(*settings.dirs, ", ") + " (" + settings.dirs_said + ")",
       .remedy = cleared ? "take \"\" out of cdi-spec-dirs"
                 : right ? ""
                         : remedy}};
}

}  // namespace gpulet::runtimes::docker
