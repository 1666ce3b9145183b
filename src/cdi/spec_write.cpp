// The two forms of a CDI document. Both are written from one small tree, so that neither has a field that the
// other lacks.
#include <array>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cdi/spec.h"

namespace gpulet::cdi {
namespace {

struct Value {
  enum class Kind { kText, kBare, kList, kMap };  // kBare: a number or a boolean
  Kind kind = Kind::kMap;
  std::string text = {};
  std::vector<Value> items = {};
  std::vector<std::pair<std::string, Value>> members = {};

  static Value of(std::string text) { return {Kind::kText, std::move(text)}; }
  static Value of(std::int64_t number) { return {Kind::kBare, std::to_string(number)}; }
  bool empty() const { return kind == Kind::kMap ? members.empty() : items.empty(); }

  void put(const char* key, Value value) { members.emplace_back(key, std::move(value)); }
  void put_text(const char* key, const std::string& value) {
    if (!value.empty()) put(key, of(value));
  }
  void put_number(const char* key, std::int64_t value) {
    if (value != 0) put(key, of(value));
  }
  template <class T>
  void put_optional(const char* key, const std::optional<T>& value) {
    if (value) put(key, of(static_cast<std::int64_t>(*value)));
  }
  void put_flag(const char* key, bool value) {
    if (value) put(key, {Kind::kBare, "true"});
  }
  template <class T, class Make>
  void put_list(const char* key, const std::vector<T>& values, Make make) {
    if (values.empty()) return;
    Value list{Kind::kList};
    for (const auto& value : values) list.items.push_back(make(value));
    put(key, std::move(list));
  }
  void put_texts(const char* key, const std::vector<std::string>& values) {
    put_list(key, values, [](const std::string& value) { return of(value); });
  }
  void put_annotations(const Annotations& annotations) {
    if (annotations.empty()) return;
    Value map;
    for (const auto& [key, value] : annotations) map.members.emplace_back(key, of(value));
    put("annotations", std::move(map));
  }
};

Value node_value(const NodeEdit& node) {
  Value value;
  value.put("path", Value::of(node.path));
  value.put_text("hostPath", node.host_path);
  value.put_text("type", node.type);
  value.put_number("major", node.major);
  value.put_number("minor", node.minor);
  value.put_optional("fileMode", node.file_mode);
  value.put_text("permissions", node.permissions);
  value.put_optional("uid", node.uid);
  value.put_optional("gid", node.gid);
  return value;
}

Value net_device_value(const NetDeviceEdit& device) {
  Value value;
  value.put("hostInterfaceName", Value::of(device.host_interface_name));
  value.put("name", Value::of(device.name));
  return value;
}

Value hook_value(const HookEdit& hook) {
  Value value;
  value.put("hookName", Value::of(hook.hook_name));
  value.put("path", Value::of(hook.path));
  value.put_texts("args", hook.args);
  value.put_texts("env", hook.env);
  value.put_optional("timeout", hook.timeout);
  return value;
}

Value mount_value(const MountEdit& mount) {
  Value value;
  value.put("hostPath", Value::of(mount.host_path));
  value.put("containerPath", Value::of(mount.container_path));
  value.put_texts("options", mount.options);
  value.put_text("type", mount.type);
  return value;
}

Value rdt_value(const IntelRdt& rdt) {
  Value value;
  value.put_text("closID", rdt.clos_id);
  value.put_text("l3CacheSchema", rdt.l3_cache_schema);
  value.put_text("memBwSchema", rdt.mem_bw_schema);
  value.put_texts("schemata", rdt.schemata);
  value.put_flag("enableMonitoring", rdt.enable_monitoring);
  value.put_flag("enableCMT", rdt.enable_cmt);
  value.put_flag("enableMBM", rdt.enable_mbm);
  return value;
}

Value edits_value(const ContainerEdits& edits) {
  Value value;
  value.put_texts("env", edits.env);
  value.put_list("deviceNodes", edits.device_nodes, node_value);
  value.put_list("netDevices", edits.net_devices, net_device_value);
  value.put_list("hooks", edits.hooks, hook_value);
  value.put_list("mounts", edits.mounts, mount_value);
  if (edits.intel_rdt) value.put("intelRdt", rdt_value(*edits.intel_rdt));
  value.put_list("additionalGids", edits.additional_gids, [](std::uint32_t gid) { return Value::of(gid); });
  return value;
}

// `always`: Go's JSON has the document's edits even where there are none, its YAML has not.
Value spec_value(const Spec& spec, bool always) {
  Value value;
  value.put("cdiVersion", Value::of(spec.version));
  value.put("kind", Value::of(spec.kind));
  value.put_annotations(spec.annotations);
  Value devices{Value::Kind::kList};
  for (const auto& device : spec.devices) {
    Value entry;
    entry.put("name", Value::of(device.name));
    entry.put_annotations(device.annotations);
    entry.put("containerEdits", edits_value(device.edits));
    devices.items.push_back(std::move(entry));
  }
  value.put("devices", std::move(devices));
  if (always || !spec.edits.empty()) value.put("containerEdits", edits_value(spec.edits));
  return value;
}

void put_escape(unsigned char c, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u00";
  out += kDigits[c >> 4];
  out += kDigits[c & 15];
}

// Go's JSON writes <, > and & as escapes too; YAML's double quotes do not.
void put_quoted(std::string_view text, bool escape_html, std::string& out) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f || (escape_html && (c == '<' || c == '>' || c == '&'))) {
      put_escape(byte, out);
    } else {
      out += c;
    }
  }
  out += '"';
}

void put_json(const Value& value, std::string& out) {
  switch (value.kind) {
    case Value::Kind::kText:
      return put_quoted(value.text, true, out);
    case Value::Kind::kBare:
      out += value.text;
      return;
    case Value::Kind::kList:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ',';
        put_json(value.items[i], out);
      }
      out += ']';
      return;
    case Value::Kind::kMap:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ',';
        put_quoted(value.members[i].first, true, out);
        out += ':';
        put_json(value.members[i].second, out);
      }
      out += '}';
      return;
  }
}

// Whether a reader of YAML 1.1 or 1.2 could take the bare word for something other than a text: a number in
// any base, base 60 ("0:1"), a date, a boolean, null.
bool looks_typed(std::string_view text) {
  static constexpr std::array<std::string_view, 14> kWords{
      "y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ".nan", ".inf", "-.inf", "+.inf"};
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto word : kWords) {
    if (lower == word) return true;
  }
  std::string_view rest = text;
  if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.starts_with('.')) rest.remove_prefix(1);
  if (rest.empty() || !text::is_digit(rest.front())) return false;
  if (rest.starts_with("0x") || rest.starts_with("0o") || rest.starts_with("0b")) return true;
  // Digits with at most one dot and the signs of base 60, exponents and dates. "0.5.0" has two dots: a text.
  std::size_t dots = text.front() == '.' ? 1 : 0;
  for (const char c : rest) {
    if (c == '.') ++dots;
    if (!text::is_digit(c) && std::string_view("._:-+eETtZ ").find(c) == std::string_view::npos) return false;
  }
  return dots <= 1;
}

bool is_plain(std::string_view text) {
  if (text.empty() || looks_typed(text) || text == "=" || text == "<<") return false;
  if (text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (std::string_view("#,[]{}&*!|>'\"%@`").find(text.front()) != std::string_view::npos) return false;
  if (text == "-" || text == "?" || text.starts_with("- ") || text.starts_with("? ")) return false;
  if (text.starts_with(":") || text.starts_with("---") || text.starts_with("...")) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte >= 0x7f) return false;
    if (text[i] == ':' && text[i + 1 < text.size() ? i + 1 : i] == ' ') return false;
    if (text[i] == '#' && i > 0 && text[i - 1] == ' ') return false;
  }
  return true;
}

void put_scalar(const Value& value, std::string& out) {
  if (value.kind == Value::Kind::kBare || is_plain(value.text)) {
    out += value.text;
  } else {
    put_quoted(value.text, false, out);
  }
}

void put_yaml(const Value& value, std::size_t indent, bool in_item, std::string& out);

// What stands behind "key:".
void put_yaml_member(const Value& value, std::size_t indent, std::string& out) {
  if (value.kind == Value::Kind::kText || value.kind == Value::Kind::kBare) {
    out += ' ';
    put_scalar(value, out);
    out += '\n';
  } else if (value.empty()) {
    out += value.kind == Value::Kind::kMap ? " {}\n" : " []\n";
  } else {
    out += '\n';
    put_yaml(value, (indent + 4) / 4 * 4, false, out);  // Go's encoder aligns to fours
  }
}

// `in_item`: the first line is begun already, behind a dash.
void put_yaml(const Value& value, std::size_t indent, bool in_item, std::string& out) {
  if (value.kind == Value::Kind::kMap) {
    for (const auto& [key, member] : value.members) {
      if (!in_item) out.append(indent, ' ');
      in_item = false;
      put_scalar(Value::of(key), out);
      out += ':';
      put_yaml_member(member, indent, out);
    }
    return;
  }
  for (const auto& item : value.items) {
    out.append(indent, ' ');
    out += "- ";
    if (item.kind == Value::Kind::kMap) {
      put_yaml(item, indent + 2, true, out);
    } else {
      put_scalar(item, out);
      out += '\n';
    }
  }
}

}  // namespace

std::string to_json(const Spec& spec) {
  std::string out;
  put_json(spec_value(spec, true), out);
  out += '\n';
  return out;
}

std::string to_yaml(const Spec& spec) {
  std::string out = "---\n";
  put_yaml(spec_value(spec, false), 0, false, out);
  return out;
}

}  // namespace gpulet::cdi
