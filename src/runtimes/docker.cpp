#include "runtimes/docker.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/text.h"

namespace gpulet::runtimes::json {
namespace {

class JsonTextParser {
 public:
  JsonTextParser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<Value> parse_document() {
    skip_blanks();
    GPULET_TRY_ASSIGN(Value root, parse_value(0));
    skip_blanks();
    if (at_ != text_.size()) return syntax_error("unexpected text after the document");
    return root;
  }

 private:
  char peek_char() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  std::size_t line_number() {
    line_ += static_cast<std::size_t>(std::ranges::count(text_.substr(counted_, at_ - counted_), '\n'));
    counted_ = at_;
    return line_;
  }
  tl::unexpected<Error> syntax_error(std::string message) {
    return fail(Code::kInvalidArgument, std::move(message),
                std::string(file_) + ":" + std::to_string(line_number()));
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  Result<Value> parse_value(std::size_t depth) {
    if (depth > kMaxNesting) return syntax_error("nested deeper than " + std::to_string(kMaxNesting));
    Value result;
    result.begin = result.key_begin = at_;
    result.line = line_number();
    if (peek_char() == '{' || peek_char() == '[') {
      result.kind = peek_char() == '{' ? Kind::kObject : Kind::kArray;
      GPULET_TRY(parse_children(result, depth));
    } else if (peek_char() == '"') {
      result.kind = Kind::kString;
      GPULET_TRY_ASSIGN(result.text, parse_string());
    } else if (peek_char() == '-' || text::is_digit(peek_char())) {
      result.kind = Kind::kNumber;
      GPULET_TRY(parse_number());
    } else {
      GPULET_TRY(parse_literal(result));
    }
    result.end = at_;
    return result;
  }

  Status parse_literal(Value& result) {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      result.kind = word == "null" ? Kind::kNull : Kind::kBool;
      result.flag = word == "true";
      return {};
    }
    return syntax_error("expected a value");
  }

  Status parse_number() {
    if (peek_char() == '-') ++at_;
    const auto digits = [&] {
      const std::size_t begin = at_;
      while (text::is_digit(peek_char())) ++at_;
      return at_ != begin;
    };
    const std::size_t begin = at_;
    if (!digits()) return syntax_error("number without digits");
    if (text_[begin] == '0' && at_ - begin > 1) return syntax_error("number with a leading 0");
    if (peek_char() == '.') {
      ++at_;
      if (!digits()) return syntax_error("number without digits after the point");
    }
    if (peek_char() == 'e' || peek_char() == 'E') {
      ++at_;
      if (peek_char() == '+' || peek_char() == '-') ++at_;
      if (!digits()) return syntax_error("number without digits in the exponent");
    }
    return {};
  }

  Status parse_children(Value& result, std::size_t depth) {
    const bool object = result.kind == Kind::kObject;
    const char close = object ? '}' : ']';
    std::set<std::string> keys;
    ++at_;
    skip_blanks();
    if (peek_char() == close) return ++at_, Status{};
    for (;;) {
      skip_blanks();
      const std::size_t begin = at_;
      const std::size_t at_line = line_number();
      std::string key;
      if (object) {
        if (peek_char() != '"') return syntax_error("expected a name in quotes");
        GPULET_TRY_ASSIGN(key, parse_string());
        if (!keys.insert(key).second) return syntax_error("\"" + key + "\" is duplicated");
        skip_blanks();
        if (peek_char() != ':') return syntax_error("expected `:` after \"" + key + "\"");
        ++at_;
        skip_blanks();
      }
      GPULET_TRY_ASSIGN(Value child, parse_value(depth + 1));
      child.key = std::move(key);
      child.key_begin = begin;
      child.line = at_line;
      result.children.push_back(std::move(child));
      skip_blanks();
      if (peek_char() == close) return ++at_, Status{};
      if (peek_char() != ',') return syntax_error(std::string("expected `,` or `") + close + "`");
      ++at_;
    }
  }

  // Resolves one-character escapes; \u stays as written, because no name that is searched needs it.
  Result<std::string> parse_string() {
    std::string result;
    for (++at_;;) {
      const char c = peek_char();
      if (at_ >= text_.size() || static_cast<unsigned char>(c) < 0x20)
        return syntax_error("unterminated string");
      ++at_;
      if (c == '"') return result;
      if (c != '\\') {
        result += c;
        continue;
      }
      constexpr std::string_view kNames = "\"\\/bfnrt";
      constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
      const char name = peek_char();
      const auto found = name == '\0' ? std::string_view::npos : kNames.find(name);
      if (found == std::string_view::npos && name != 'u') return syntax_error("invalid escape");
      ++at_;
      if (name != 'u') {
        result += kMeant[found];
        continue;
      }
      result += "\\u";
      for (int i = 0; i < 4; ++i, ++at_) {
        if (std::string_view("0123456789abcdefABCDEF").find(peek_char()) == std::string_view::npos ||
            peek_char() == '\0') {
          return syntax_error("\\u escape with too few hexadecimal digits");
        }
        result += peek_char();
      }
    }
  }

  std::string_view text_, file_;
  std::size_t at_ = 0, counted_ = 0, line_ = 1;
};

}  // namespace

const Value* Value::find(std::string_view member) const {
  const auto found = std::ranges::find(children, member, &Value::key);
  return kind == Kind::kObject && found != children.end() ? &*found : nullptr;
}

Result<Value> parse_json_text(std::string_view text, std::string_view file) {
  return JsonTextParser(text, file).parse_document();
}

std::string with_child(const std::string& text, const Value& parent, const std::string& child) {
  std::string result = text;
  if (parent.children.empty()) return result.insert(parent.begin + 1, child);
  const auto& last = parent.children.back();
  const std::size_t before = text.find_last_not_of(" \t\r\n", last.key_begin - 1) + 1;
  const std::string_view gap(text.data() + before, last.key_begin - before);
  const bool own_line = gap.find('\n') != std::string_view::npos;
  const bool spaced = parent.children.size() == 1 || !gap.empty();
  return result.insert(last.end,
                       "," + (own_line ? std::string(gap) : std::string(spaced ? " " : "")) + child);
}

std::string without_child(const std::string& text, const Value& parent, std::size_t index) {
  const auto& child = parent.children[index];
  std::size_t begin = child.key_begin, end = child.end;
  if (index > 0) {
    begin = parent.children[index - 1].end;
  } else if (parent.children.size() > 1) {
    end = parent.children[1].key_begin;
  }
  std::string result = text;
  return result.erase(begin, end - begin);
}

std::string quote_json(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

}  // namespace gpulet::runtimes::json

namespace gpulet::runtimes::docker {
namespace {

using json::Kind;
using json::Value;

constexpr std::string_view kDirs = "cdi-spec-dirs";
constexpr EngineVersion kOnByDefault{28, 2, 0};

// The record's content: gpulet's changes of the file.
struct ChangeRecord {
  bool created_file = false;
  bool created_features = false;
  std::string cdi;                // the value before: "absent" or "false"; empty if unchanged
  std::vector<std::string> dirs;  // directories added to cdi-spec-dirs
};

std::string file_and_line(const std::string& path, const Value& value) {
  return path + ":" + std::to_string(value.line);
}

struct DaemonSettings {
  std::optional<bool> cdi;
  std::optional<std::vector<std::string>> dirs;
  std::string cdi_said, dirs_said;
};

Result<Value> parse_object(const std::string& text, const std::string& path) {
  GPULET_TRY_ASSIGN(Value root, json::parse_json_text(text, path));
  if (root.kind != Kind::kObject) return fail(Code::kInvalidArgument, "not a JSON object", path + ":1");
  return root;
}

Result<std::vector<std::string>> read_string_array(const Value& list, const std::string& path) {
  std::vector<std::string> result;
  bool right = list.kind == Kind::kArray;
  for (const auto& item : list.children) {
    right = right && item.kind == Kind::kString;
    result.push_back(item.text);
  }
  if (!right)
    return fail(Code::kInvalidArgument, list.key + " is not a list of strings", file_and_line(path, list));
  return result;
}

Result<DaemonSettings> read_settings(const Value& root, const std::string& path) {
  DaemonSettings settings;
  if (const auto* features = root.find("features")) {
    if (features->kind != Kind::kObject) {
      return fail(Code::kInvalidArgument, "features is not an object", file_and_line(path, *features));
    }
    if (const auto* cdi = features->find("cdi")) {
      if (cdi->kind != Kind::kBool) {
        return fail(Code::kInvalidArgument, "features.cdi is not a boolean", file_and_line(path, *cdi));
      }
      settings.cdi = cdi->flag;
      settings.cdi_said = file_and_line(path, *cdi);
    }
  }
  if (const auto* dirs = root.find(kDirs)) {
    GPULET_TRY_ASSIGN(settings.dirs, read_string_array(*dirs, path));
    settings.dirs_said = file_and_line(path, *dirs);
  }
  return settings;
}

// An empty list means the default, [""] means none.
bool has_spec_dirs(const DaemonSettings& settings) {
  return !settings.dirs || settings.dirs->empty() || has_required_spec_dirs(*settings.dirs);
}

bool is_cdi_enabled(const Target& target, const DaemonSettings& settings) {
  return settings.cdi.value_or(target.version && *target.version >= kOnByDefault);
}

std::string record_text(const ChangeRecord& record) {
  std::vector<std::string> dirs;
  for (const auto& dir : record.dirs) dirs.push_back(json::quote_json(dir));
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return "{\n  \"about\": \"changes of gpulet runtime configure, for --remove\",\n"
         "  \"created-file\": " +
         flag(record.created_file) + ",\n  \"created-features\": " + flag(record.created_features) +
         ",\n  \"cdi-before\": " + json::quote_json(record.cdi) + ",\n  \"added-dirs\": [" +
         text::join(dirs, ", ") + "]\n}\n";
}

Result<ChangeRecord> parse_record(const std::string& text, const std::string& path) {
  GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
  const auto* file = root.find("created-file");
  const auto* features = root.find("created-features");
  const auto* cdi = root.find("cdi-before");
  const auto* dirs = root.find("added-dirs");
  if (file == nullptr || features == nullptr || cdi == nullptr || dirs == nullptr) {
    return fail(Code::kInvalidArgument, "not a record of gpulet's changes", path);
  }
  ChangeRecord record{
      .created_file = file->flag, .created_features = features->flag, .cdi = cdi->text, .dirs = {}};
  GPULET_TRY_ASSIGN(record.dirs, read_string_array(*dirs, path));
  return record;
}

Result<std::optional<ChangeRecord>> read_record(const Target& target, const Reader& reader) {
  const std::string path = record_path(target.config);
  GPULET_TRY_ASSIGN(const auto text, reader.read(path));
  if (!text) return std::nullopt;
  GPULET_TRY_ASSIGN(ChangeRecord record, parse_record(*text, path));
  return record;
}

// Returns `text` with CDI on and adds the change to `record`.
Result<std::string> with_cdi(const std::string& text, const std::string& path, ChangeRecord& record) {
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

Result<std::string> with_dirs(std::string text, const std::string& path, ChangeRecord& record) {
  GPULET_TRY_ASSIGN(const Value before, parse_object(text, path));
  GPULET_TRY_ASSIGN(const auto old_dirs, read_string_array(*before.find(kDirs), path));
  const auto dirs = with_required_spec_dirs(old_dirs);
  for (std::size_t i = old_dirs.size(); i < dirs.size(); ++i) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
    text = json::with_child(text, *root.find(kDirs), json::quote_json(dirs[i]));
    if (std::ranges::count(record.dirs, dirs[i]) == 0) record.dirs.push_back(dirs[i]);
  }
  return text;
}

Result<std::string> without_dirs(std::string text, const std::string& path, const ChangeRecord& record) {
  for (auto dir = record.dirs.rbegin(); dir != record.dirs.rend(); ++dir) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
    const auto* dirs = root.find(kDirs);
    if (dirs == nullptr || dirs->kind != Kind::kArray) return text;
    const auto found = std::ranges::find(dirs->children, *dir, &Value::text);
    // Removing the last leaves an empty list, which means the default.
    if (found == dirs->children.end()) continue;
    text = json::without_child(text, *dirs, static_cast<std::size_t>(found - dirs->children.begin()));
  }
  return text;
}

Result<std::string> without_cdi(const std::string& text, const std::string& path,
                                const ChangeRecord& record) {
  GPULET_TRY_ASSIGN(const Value root, parse_object(text, path));
  const auto* features = root.find("features");
  const auto* cdi = features == nullptr ? nullptr : features->find("cdi");
  // Edited since: it is no longer gpulet's.
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

// Returns whether dockerd treats the text as empty settings.
bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

}  // namespace

std::string record_path(const std::string& config) { return config + ".gpulet"; }

Result<Plan> plan_setup(const Target& target, const Reader& reader) {
  GPULET_TRY(check_engine_version(Engine::kDocker, target.version));
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  GPULET_TRY_ASSIGN(const auto known, read_record(target, reader));
  if (main && is_blank(*main)) {
    return fail(Code::kFailedPrecondition,
                "the file is empty, which is not JSON: remove it, or write {} into it", target.config);
  }
  const std::string before = main.value_or("{}");
  GPULET_TRY_ASSIGN(const Value root, parse_object(before, target.config));
  GPULET_TRY_ASSIGN(const DaemonSettings settings, read_settings(root, target.config));
  if (settings.dirs && std::ranges::count(*settings.dirs, "") != 0) {
    return fail(Code::kFailedPrecondition,
                "cdi-spec-dirs has an empty path, which disables the CDI directories: remove it",
                settings.dirs_said);
  }
  const bool on = is_cdi_enabled(target, settings), right = has_spec_dirs(settings);
  if (on && right) return Plan{.message = known ? "" : "CDI is on and reads both spec directories"};
  ChangeRecord record = known.value_or(ChangeRecord{});
  if (!known) record.created_file = !main;
  std::string text = before;
  if (!on) {
    GPULET_TRY_ASSIGN(text, with_cdi(text, target.config, record));
  }
  if (!right) {
    GPULET_TRY_ASSIGN(text, with_dirs(text, target.config, record));
  }
  if (!main) text = "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n";
  return Plan{.changes = {{record_path(target.config), record_text(record)}, {target.config, text}}};
}

Result<Plan> plan_removal(const Target& target, const Reader& reader) {
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

Result<std::vector<Finding>> collect_findings(const Target& target, const Reader& reader) {
  GPULET_TRY_ASSIGN(const auto main, reader.read(target.config));
  DaemonSettings settings;
  if (main && !is_blank(*main)) {
    GPULET_TRY_ASSIGN(const Value root, parse_object(*main, target.config));
    GPULET_TRY_ASSIGN(settings, read_settings(root, target.config));
  }
  const std::string remedy = configure_command(Engine::kDocker);
  const bool on = is_cdi_enabled(target, settings), right = has_spec_dirs(settings);
  const bool by_default = !settings.dirs || settings.dirs->empty();
  const bool cleared = settings.dirs && std::ranges::count(*settings.dirs, "") != 0;
  return std::vector<Finding>{
      version_finding(Engine::kDocker, target.version),
      {.subject = "CDI",
       .is_met = on,
       .detail =
           std::string(on ? "on" : "off") + (settings.cdi ? " (" + settings.cdi_said + ")" : " (default)"),
       .advice = on ? "" : remedy},
      {.subject = "spec dirs",
       .is_met = right && !cleared,
       .detail = by_default ? text::join(required_spec_dirs(), ", ") + " (default)"
                            : text::join(*settings.dirs, ", ") + " (" + settings.dirs_said + ")",
       .advice = cleared ? "remove \"\" from cdi-spec-dirs"
                 : right ? ""
                         : remedy}};
}

}  // namespace gpulet::runtimes::docker
