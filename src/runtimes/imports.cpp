#include "runtimes/imports.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"

namespace gpulet::runtimes {
namespace {

using toml::Kind;

constexpr std::string_view kOurLine = "  # by `gpulet runtime configure`";

const toml::Entry* imports_entry(const toml::Document& document) { return document.find({"imports"}); }

// Turns "a/./b//c" into "a/b/c"; ".." removes the directory before it.
std::string clean_path(const std::string& path) {
  std::string result = std::filesystem::path(path).lexically_normal();
  if (result.size() > 1 && result.ends_with('/')) result.pop_back();
  return result;
}

// Where the line of a key of the root table begins: after a byte order mark.
std::size_t root_line_begin(std::string_view text, const toml::Document& document, const toml::Entry& entry) {
  return std::max(toml::line_begin(text, entry.begin), document.tables.front().begin);
}

bool is_all_blank(std::string_view text) { return text::trim(text).empty(); }

// Returns whether the text is a comma with whitespace only.
bool is_separator(std::string_view text) {
  const auto comma = text.find(',');
  return comma != std::string_view::npos && is_all_blank(text.substr(0, comma)) &&
         is_all_blank(text.substr(comma + 1));
}

// Returns the comma that ends the item before `at`, after whitespace and comments; npos for the last item.
std::size_t following_comma(std::string_view text, std::size_t at) {
  for (;;) {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == std::string_view::npos || text[at] != '#') break;
    at = toml::line_end(text, at);
  }
  return at != std::string_view::npos && text[at] == ',' ? at : std::string_view::npos;
}

// Returns the separator before a new item, on a line of its own if the last item has one.
std::string separator(std::string_view text, const toml::Value& last, std::size_t list_end) {
  const std::size_t begin = toml::line_begin(text, last.begin);
  std::string_view rest =
      text.substr(last.end, std::min(toml::line_end(text, last.end), list_end) - last.end);
  if (rest.starts_with(',')) rest.remove_prefix(1);
  if (!is_all_blank(text.substr(begin, last.begin - begin)) || begin == 0) return ", ";
  if (!is_all_blank(rest) || rest.find('\n') == std::string_view::npos) return ", ";
  const std::string newline = rest.ends_with("\r\n") ? "\r\n" : "\n";
  return "," + newline + std::string(text.substr(begin, last.begin - begin));
}

}  // namespace

std::string import_pattern(const std::string& drop_in) {
  constexpr std::string_view kEnding = ".toml";
  if (!drop_in.ends_with(kEnding)) return drop_in + "*";
  return drop_in.substr(0, drop_in.size() - kEnding.size()) + "*" + std::string(kEnding);
}

Result<std::vector<std::string>> read_imports(const toml::Document& document, const std::string& path) {
  std::vector<std::string> result;
  const auto* entry = imports_entry(document);
  if (entry == nullptr) return result;
  const std::string about = path + ":" + std::to_string(entry->line);
  if (entry->value.kind != Kind::kArray) {
    return fail(Code::kInvalidArgument, "imports is not a list of paths", about);
  }
  for (const auto& item : entry->value.items) {
    if (item.kind != Kind::kString || item.text.empty()) {
      return fail(Code::kInvalidArgument, "imports has an item that is not a path", about);
    }
    result.push_back(
        clean_path(item.text[0] == '/' ? item.text : path.substr(0, path.rfind('/') + 1) + item.text));
  }
  return result;
}

bool import_matches(const std::string& import, const std::string& path) {
  if (import.find('*') == std::string::npos) return import == path;
  return ::fnmatch(import.c_str(), path.c_str(), FNM_PATHNAME) == 0;
}

std::string with_import(const std::string& text, const toml::Document& document, const std::string& pattern) {
  std::string result = text;
  if (const auto* entry = imports_entry(document)) {
    const toml::Value& list = entry->value;
    if (list.items.empty()) return result.insert(list.begin + 1, toml::quote_toml(pattern));
    const toml::Value& last = list.items.back();
    return result.insert(last.end, separator(text, last, list.end) + toml::quote_toml(pattern));
  }
  const std::string newline = text.find("\r\n") == std::string::npos ? "\n" : "\r\n";
  const std::string line = "imports = [" + toml::quote_toml(pattern) + "]" + std::string(kOurLine) + newline;
  std::size_t at = document.tables.front().begin;
  if (const auto* version = document.find({"version"})) {
    at = toml::line_end(text, version->value.end);
    if (text[at - 1] != '\n') at = root_line_begin(text, document, *version);
  }
  return result.insert(at, line);
}

std::string without_import(const std::string& text, const toml::Document& document,
                           const std::string& pattern) {
  const auto* entry = imports_entry(document);
  if (entry == nullptr || entry->value.kind != Kind::kArray) return text;
  const auto& items = entry->value.items;
  const auto ours = std::ranges::find_if(
      items, [&](const toml::Value& item) { return item.kind == Kind::kString && item.text == pattern; });
  if (ours == items.end()) return text;
  std::string result = text;
  const std::size_t line_begin = root_line_begin(text, document, *entry);
  const std::size_t line_end = toml::line_end(text, entry->value.end);
  const std::string_view behind(text.data() + entry->value.end, line_end - entry->value.end);
  if (items.size() == 1 && behind.starts_with(kOurLine))
    return result.erase(line_begin, line_end - line_begin);
  std::size_t begin = ours->begin, end = ours->end;
  const std::string_view all(text);
  if (ours != items.begin() && is_separator(all.substr((ours - 1)->end, begin - (ours - 1)->end))) {
    begin = (ours - 1)->end;
  } else if (ours + 1 != items.end() && is_separator(all.substr(end, (ours + 1)->begin - end))) {
    end = (ours + 1)->begin;
  } else {
    // A comment is between: remove only the following comma.
    const std::size_t comma = following_comma(text, end);
    if (comma != std::string::npos) result.erase(comma, 1);
  }
  result.erase(begin, end - begin);
  const auto rest = toml::parse_toml(result, {});
  return rest ? without_import(result, *rest, pattern) : result;
}

}  // namespace gpulet::runtimes
