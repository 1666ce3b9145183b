#include "hook/ld_config.h"

#include <climits>
#include <set>
#include <utility>

#include "base/text.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kBlanks = " \t\r";  // what text::trim removes

// Turns "/a/./b//c/" into "/a/b/c". The kernel resolves "..".
std::string normalized_path(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const auto slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
    if (!part.empty() && part != ".") out += "/" + std::string(part);
  }
  return out.empty() ? "/" : out;
}

class LdConfigReader {
 public:
  explicit LdConfigReader(const Rootfs& root) : root_(root) {}

  Status read_config_file(const std::string& path, int depth) {
    if (!files_.insert(path).second) return {};
    if (files_.size() > kMaxLdConfigFiles)
      return fail(Code::kInvalidArgument,
                  "includes more than " + std::to_string(kMaxLdConfigFiles) + " files",
                  std::string(kLdConfig));
    GPULET_TRY(take_steps(kStepsPerOpen));
    const auto content = root_.read_file(path, kMaxLdConfigBytes);
    // A file that is too large is an error; any other failure counts as missing.
    if (!content && content.error().code() == Code::kInvalidArgument) return fail(content.error());
    if (!content) return {};
    GPULET_TRY(take_steps(content->size()));
    std::string_view rest = *content;
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      line = text::trim(line.substr(0, line.find('#')));
      GPULET_TRY(parse_line(line, path, depth));
    }
    return {};
  }

  std::vector<LdDirectory> directories() && { return std::move(directories_); }

 private:
  Status parse_line(std::string_view line, const std::string& file, int depth) {
    if (line.empty() || line.find('\0') != std::string_view::npos) return {};
    if (is_keyword(line, "include")) return read_included(line.substr(7), file, depth);
    if (is_keyword(line, "hwcap")) return {};
    line = text::trim(line.substr(0, line.find('=')));
    if (line.empty() || line[0] != '/' || line.size() >= PATH_MAX) return {};
    std::string path = normalized_path(line);
    if (!seen_.insert(path).second) return {};
    if (directories_.size() == kMaxLdDirectories)
      return fail(Code::kInvalidArgument,
                  "names more than " + std::to_string(kMaxLdDirectories) + " directories",
                  std::string(kLdConfig));
    directories_.push_back({std::move(path), file});
    return {};
  }

  static bool is_keyword(std::string_view line, std::string_view word) {
    return text::starts_with(line, word) && line.size() > word.size() &&
           kBlanks.find(line[word.size()]) != std::string_view::npos;
  }

  Status read_included(std::string_view patterns, const std::string& file, int depth) {
    if (depth == kMaxIncludeDepth)
      return fail(Code::kInvalidArgument, "includes more than " + std::to_string(depth) + " deep", file);
    while (!(patterns = text::trim(patterns)).empty()) {
      const auto end = patterns.find_first_of(kBlanks);
      std::string pattern(patterns.substr(0, end));
      patterns.remove_prefix(end == std::string_view::npos ? patterns.size() : end);
      // A relative pattern is relative to the file's directory.
      if (pattern[0] != '/') pattern = file.substr(0, file.rfind('/') + 1) + pattern;
      if (pattern.size() < PATH_MAX) GPULET_TRY(expand_pattern("", normalized_path(pattern), depth));
    }
    return {};
  }

  // `done` is the expanded part of the path; `rest` begins with '/'.
  Status expand_pattern(const std::string& done, std::string_view rest, int depth) {
    const auto wild = rest.find_first_of("*?");
    if (wild == std::string_view::npos) return read_config_file(done + std::string(rest), depth + 1);
    const auto slash = rest.rfind('/', wild);
    const auto end = rest.find('/', wild);
    const std::string directory = done + std::string(rest.substr(0, slash));
    const std::string_view pattern = rest.substr(slash + 1, end - slash - 1);
    const std::string_view after = end == std::string_view::npos ? std::string_view() : rest.substr(end);
    GPULET_TRY(take_steps(kStepsPerOpen));
    const auto names = root_.list_directory(directory.empty() ? "/" : directory, kMaxLdConfigEntries);
    if (!names && names.error().code() == Code::kInvalidArgument) return fail(names.error());
    if (!names) return {};
    GPULET_TRY(take_steps(names->size() * kStepsPerName + kStepsPerOpen));
    const NamePattern wanted(pattern);
    for (const std::string& name : *names) {
      GPULET_TRY(take_steps(name.size()));
      if (!wanted.matches(name)) continue;
      GPULET_TRY(expand_pattern(directory + "/" + name, after, depth));
    }
    return {};
  }

  Status take_steps(std::size_t count) {
    if (count <= steps_left_) {
      steps_left_ -= count;
      return {};
    }
    return fail(Code::kInvalidArgument,
                "takes too many steps to read: its files, include patterns and the names in their "
                "directories",
                std::string(kLdConfig));
  }

  // What one costs in comparison to a byte of a file or of a name.
  static constexpr std::size_t kStepsPerOpen = 1024;
  static constexpr std::size_t kStepsPerName = 64;

  const Rootfs& root_;
  std::size_t steps_left_ = kMaxLdConfigSteps;
  std::set<std::string> files_;
  std::set<std::string> seen_;
  std::vector<LdDirectory> directories_;
};

}  // namespace

NamePattern::NamePattern(std::string_view pattern) : after_(1u << CHAR_BIT) {
  leading_dot_ = text::starts_with(pattern, ".");
  for (const char c : pattern) {
    if (c == '*') {
      if (length_ < stars_.size()) stars_.set(length_);
      continue;
    }
    if (length_ < NAME_MAX) {
      (c == '?' ? any_ : after_[static_cast<unsigned char>(c)]).set(length_);
    }
    ++length_;
  }
}

bool NamePattern::matches(std::string_view name) const {
  if (length_ > NAME_MAX || (text::starts_with(name, ".") && !leading_dot_)) return false;
  States states;
  states.set(0);
  for (const char c : name)
    states = ((states & (any_ | after_[static_cast<unsigned char>(c)])) << 1) | (states & stars_);
  return states.test(length_);
}

Result<std::vector<LdDirectory>> read_ld_config(const Rootfs& root) {
  LdConfigReader reader(root);
  GPULET_TRY(reader.read_config_file(std::string(kLdConfig), 0));
  return std::move(reader).directories();
}

}  // namespace gpulet::hook
