#include "mig/hooks_file.h"

#include <algorithm>

#include "base/file.h"
#include "config/fields.h"
#include "config/problems.h"
#include "config/yaml.h"

namespace gpulet::mig {
namespace {

using config::Fields;
using config::found_instead;
using config::Problems;
using config::yaml::Node;
using Kind = Node::Kind;

constexpr std::array<std::string_view, kHookPoints> kPoints = {"apply-start", "pre-apply-mode",
                                                               "pre-apply-config", "apply-exit"};

// A text that a program can be given: it ends at its first NUL.
std::optional<std::string> read_argument(const Node& node, const std::string& field, Problems& problems) {
  const auto text = config::read_text(node, field, problems);
  if (!text || text->find('\0') == std::string::npos) return text;
  problems.error(node.position, field, "holds a NUL character, which no program can be given");
  return std::nullopt;
}

std::optional<std::string> read_path(const Node& node, const std::string& field, Problems& problems) {
  const auto path = read_argument(node, field, problems);
  if (!path || path->starts_with('/')) return path;
  problems.error(node.position, field, found_instead("an absolute path", node));
  return std::nullopt;
}

void read_envs(const Node& node, const std::string& field, Hook& hook, Problems& problems) {
  if (!config::expect(Kind::kMapping, "a mapping of names and values", node, field, problems)) return;
  for (const auto& [name, position, value] : node.entries) {
    if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos) {
      problems.error(position, field, "expected a variable's name, found '" + name.substr(0, 64) + "'");
    } else if (value.kind == Kind::kNull) {
      hook.envs[name] = "";
    } else if (auto text = read_argument(value, field + "." + name, problems)) {
      hook.envs[name] = std::move(*text);
    }
  }
}

Hook read_hook(const Node& node, const std::string& path, Problems& problems) {
  Hook hook;
  hook.place = config::yaml::place(problems.file(), node.position);
  if (!config::expect(Kind::kMapping, "a mapping with a command", node, path, problems)) return hook;
  const Fields fields(node, path, {"command", "args", "envs", "workdir"}, problems);
  if (const auto* command = fields["command"]) {
    hook.command = read_path(*command, fields.path("command"), problems).value_or("");
  } else {
    problems.error(node.position, path, "command is missing; the absolute path of a program would do");
  }
  const auto* args = fields["args"];
  if (args != nullptr &&
      config::expect(Kind::kSequence, "a list of texts", *args, fields.path("args"), problems)) {
    for (const auto& item : args->items) {
      if (auto text = read_argument(item, fields.path("args"), problems))
        hook.args.push_back(std::move(*text));
    }
  }
  if (const auto* envs = fields["envs"]) read_envs(*envs, fields.path("envs"), hook, problems);
  const auto* folder = fields["workdir"];
  const bool left_out = folder == nullptr || (folder->kind == Kind::kScalar && folder->scalar.empty());
  if (!left_out) {
    hook.workdir = read_path(*folder, fields.path("workdir"), problems).value_or("/");
  }
  return hook;
}

void read_points(const Node& node, HooksFile& file, Problems& problems) {
  if (!config::expect(Kind::kMapping, "a mapping of lists of commands", node, "hooks", problems)) return;
  const Fields fields(node, "hooks", {kPoints.begin(), kPoints.end()}, problems);
  for (std::size_t point = 0; point < kHookPoints; ++point) {
    const auto* list = fields[kPoints[point]];
    const std::string path = fields.path(kPoints[point]);
    if (list == nullptr || !config::expect(Kind::kSequence, "a list of commands", *list, path, problems))
      continue;
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      file.hooks[point].push_back(read_hook(list->items[i], path + "[" + std::to_string(i) + "]", problems));
    }
  }
}

void read_root(const config::yaml::Document& document, HooksFile& file, Problems& problems) {
  for (const auto& twice : document.duplicates) {
    problems.error(twice.position, twice.key.substr(0, 64),
                   "is given twice, first at " + config::yaml::place(file.path, twice.first));
  }
  if (document.second) problems.error(*document.second, "", "a second document; one would do");
  const Node& root = document.root;
  if (root.kind != Kind::kMapping) {
    const config::yaml::Position start{std::max(root.position.line, 1u), std::max(root.position.column, 1u)};
    problems.error(start, "", found_instead("a mapping with version and hooks", root));
    return;
  }
  const Fields fields(root, "", {"version", "hooks"}, problems);
  const auto* version = fields["version"];
  if (version == nullptr) {
    problems.error(root.position, "", "version is missing; version: v1 would do");
  } else if (version->kind != Kind::kScalar || version->scalar != "v1") {
    problems.error(version->position, "version", found_instead("v1", *version));
  }
  if (const auto* hooks = fields["hooks"]) read_points(*hooks, file, problems);
}

}  // namespace

std::string_view name(HookPoint point) { return kPoints[static_cast<std::size_t>(point)]; }

Result<HooksFile> parse_hooks_file(std::string_view text, const std::string& path) {
  GPULET_TRY_ASSIGN(const auto document, config::yaml::parse(text, path));
  Problems problems(path, false);
  HooksFile file;
  file.path = path;
  read_root(document, file, problems);
  const auto errors = problems.take_errors();
  if (!errors.empty()) return fail(errors.front());
  return file;
}

Result<HooksFile> load_hooks_file(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto text, read_file(path, config::yaml::kMaxTextBytes));
  return parse_hooks_file(text, path);
}

}  // namespace gpulet::mig
