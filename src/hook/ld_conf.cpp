#include "hook/ld_conf.h"

#include <climits>
#include <set>

#include "base/text.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kBlanks = " \t\r";  // what text::trim takes away

// "/a/./b//c/" is "/a/b/c". ".." is left to the kernel.
std::string tidied(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const auto slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
    if (!part.empty() && part != ".") out += "/" + std::string(part);
  }
  return out.empty() ? "/" : out;
}

class Reader {
 public:
  explicit Reader(const Rootfs& root) : root_(root) {}

  Status read(const std::string& path, int depth) {
    if (!files_.insert(path).second) return {};
    if (files_.size() > kMaxLdConfigFiles)
      return fail(Code::kInvalidArgument,
                  "leads to more than " + std::to_string(kMaxLdConfigFiles) + " files",
                  std::string(kLdConfig));
    const auto content = root_.read(path, kMaxLdConfigBytes);
    // Too large is a limit; all else is as if it were not there.
    if (!content && content.error().code() == Code::kInvalidArgument) return fail(content.error());
    if (!content) return {};
    std::string_view rest = *content;
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      line = text::trim(line.substr(0, line.find('#')));
      GPULET_TRY(take(line, path, depth));
    }
    return {};
  }

  std::vector<LdFolder> folders() && { return std::move(folders_); }

 private:
  Status take(std::string_view line, const std::string& file, int depth) {
    if (line.empty() || line.find('\0') != std::string_view::npos) return {};
    if (is_word(line, "include")) return include(line.substr(7), file, depth);
    if (is_word(line, "hwcap")) return {};
    line = text::trim(line.substr(0, line.find('=')));
    if (line.empty() || line[0] != '/' || line.size() >= PATH_MAX) return {};
    std::string path = tidied(line);
    if (!seen_.insert(path).second) return {};
    if (folders_.size() == kMaxLdFolders)
      return fail(Code::kInvalidArgument, "names more than " + std::to_string(kMaxLdFolders) + " folders",
                  std::string(kLdConfig));
    folders_.push_back({std::move(path), file});
    return {};
  }

  static bool is_word(std::string_view line, std::string_view word) {
    return text::starts_with(line, word) && line.size() > word.size() &&
           kBlanks.find(line[word.size()]) != std::string_view::npos;
  }

  Status include(std::string_view patterns, const std::string& file, int depth) {
    if (depth == kMaxIncludeDepth)
      return fail(Code::kInvalidArgument, "includes more than " + std::to_string(depth) + " deep", file);
    while (!(patterns = text::trim(patterns)).empty()) {
      const auto end = patterns.find_first_of(kBlanks);
      std::string pattern(patterns.substr(0, end));
      patterns.remove_prefix(end == std::string_view::npos ? patterns.size() : end);
      // Beside the file that says so, when it is not absolute.
      if (pattern[0] != '/') pattern = file.substr(0, file.rfind('/') + 1) + pattern;
      if (pattern.size() < PATH_MAX) GPULET_TRY(expand("", tidied(pattern), depth));
    }
    return {};
  }

  // `done` is the part of the path without patterns; `rest` begins with '/'.
  Status expand(const std::string& done, std::string_view rest, int depth) {
    const auto wild = rest.find_first_of("*?");
    if (wild == std::string_view::npos) return read(done + std::string(rest), depth + 1);
    const auto slash = rest.rfind('/', wild);
    const auto end = rest.find('/', wild);
    const std::string folder = done + std::string(rest.substr(0, slash));
    const std::string_view pattern = rest.substr(slash + 1, end - slash - 1);
    const std::string_view after = end == std::string_view::npos ? std::string_view() : rest.substr(end);
    if (++lists_ > kMaxLdConfigFiles)
      return fail(Code::kInvalidArgument, "its patterns name too many folders", std::string(kLdConfig));
    const auto names = root_.list(folder.empty() ? "/" : folder, kMaxLdConfigEntries);
    if (!names && names.error().code() == Code::kInvalidArgument) return fail(names.error());
    if (!names) return {};
    for (const std::string& name : *names) {
      if (!matches_pattern(pattern, name)) continue;
      GPULET_TRY(expand(folder + "/" + name, after, depth));
    }
    return {};
  }

  const Rootfs& root_;
  std::size_t lists_ = 0;
  std::set<std::string> files_;
  std::set<std::string> seen_;
  std::vector<LdFolder> folders_;
};

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  if (!name.empty() && name[0] == '.' && (pattern.empty() || pattern[0] != '.')) return false;
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;
  std::size_t from = 0;  // where the last '*' ends in the name
  for (std::size_t n = 0; n < name.size();) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<std::vector<LdFolder>> read_ld_config(const Rootfs& root) {
  Reader reader(root);
  GPULET_TRY(reader.read(std::string(kLdConfig), 0));
  return std::move(reader).folders();
}

}  // namespace gpulet::hook
