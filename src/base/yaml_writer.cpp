#include "base/yaml_writer.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace gpulet {
namespace {

// A longer key without "?" is an error. Source: YAML 1.2, 7.4, implicit keys: 1024 characters with the colon.
constexpr std::size_t kMaxImplicitKeyBytes = 1000;

// Whether a reader of YAML 1.1 or 1.2 could take the bare word as a number in any base, base 60 ("0:1"), a
// date, a boolean or null.
bool looks_typed(std::string_view text) {
  static constexpr std::array<std::string_view, 14> kWords{
      "y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ".nan", ".inf", "-.inf", "+.inf"};
  if (std::ranges::count(kWords, text::lower(text)) != 0) return true;
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

std::string scalar_text(const YamlNode& node, bool in_flow) {
  if (node.kind == YamlNode::Kind::kBare) return node.scalar;
  if (in_flow && node.scalar.find_first_of(",[]{}") != std::string::npos) return quoted_text(node.scalar);
  return yaml_scalar(node.scalar);
}

std::string comment_text(const YamlNode& node) {
  if (node.comment.empty()) return "\n";
  std::string comment = node.comment;
  std::ranges::replace_if(comment, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return "  # " + comment + "\n";
}

class Writer {
 public:
  Writer(std::size_t width, std::string& out) : width_(width), out_(out) {}

  // `in_item`: the first line already has a dash.
  void write_block(const YamlNode& node, std::size_t margin, bool in_item) {
    for (const auto& [key, member] : node.members) {
      if (!in_item) out_.append(margin, ' ');
      in_item = false;
      const std::string name = yaml_scalar(key);
      out_ += name.size() > kMaxImplicitKeyBytes ? "? " + name + "\n" + std::string(margin, ' ') : name;
      out_ += ":";
      write_value(member, margin);
    }
    for (const auto& item : node.items) {
      out_.append(margin, ' ');
      out_ += "-";
      if (item.kind == YamlNode::Kind::kMapping && !item.members.empty()) {
        out_ += " ";
        write_block(item, margin + 2, true);
      } else {
        write_value(item, margin);
      }
    }
  }

 private:
  // Writes the value after "key:" or "-".
  void write_value(const YamlNode& value, std::size_t margin) {
    if (value.is_scalar()) {
      out_ += " " + scalar_text(value, false) + comment_text(value);
    } else if (value.items.empty() && value.members.empty()) {
      out_ += (value.kind == YamlNode::Kind::kList ? " []" : " {}") + comment_text(value);
    } else if (value.flow) {
      std::string list;
      for (const auto& item : value.items) list += (list.empty() ? "" : ", ") + scalar_text(item, true);
      out_ += " [" + list + "]" + comment_text(value);
    } else {
      out_ += comment_text(value);
      write_block(value, (margin + width_) / width_ * width_, false);
    }
  }

  std::size_t width_;
  std::string& out_;
};

}  // namespace

std::string yaml_scalar(std::string_view text) {
  return is_plain(text) ? std::string(text) : quoted_text(text);
}

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u" + hex_text(byte, 4);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string write_yaml(const YamlNode& root, std::size_t indent) {
  std::string out;
  Writer(indent, out).write_block(root, 0, false);
  return out;
}

}  // namespace gpulet
