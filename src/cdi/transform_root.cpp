#include "cdi/transform_root.h"

#include <utility>

#include "base/text.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kLdconfigFlag = "--ldconfig-path";

// Without trailing slashes: "/" becomes "".
Result<std::string> without_trailing_slash(std::string_view path) {
  if (!text::starts_with(path, "/")) {
    return fail(Code::kInvalidArgument, "'" + std::string(path) + "' is not an absolute path");
  }
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

class Transform {
 public:
  Transform(std::string from, std::string to, PathSide side)
      : from_(std::move(from)), to_(std::move(to)), side_(side) {}

  void transform_paths(ContainerEdits& edits) const {
    for (auto& node : edits.device_nodes) transform_paths(node);
    for (auto& mount : edits.mounts)
      replace_prefix(transform_host_path() ? mount.host_path : mount.container_path);
    for (auto& hook : edits.hooks) transform_paths(hook);
  }

 private:
  bool transform_host_path() const { return side_ == PathSide::kHost; }

  void replace_prefix(std::string& path) const {
    if (!path.starts_with(from_)) return;
    const std::string_view rest = std::string_view(path).substr(from_.size());
    if (path.empty() || (!rest.empty() && rest.front() != '/')) return;
    std::string made = to_ + std::string(rest);
    path = made.empty() ? "/" : std::move(made);
  }

  void transform_paths(NodeEdit& node) const {
    // An unset host path equals the container's, and must stay what it was.
    std::string on_host = node.host_path.empty() ? node.path : node.host_path;
    replace_prefix(transform_host_path() ? on_host : node.path);
    node.host_path = on_host == node.path ? std::string() : std::move(on_host);
  }

  // "/path", "/target::/link", "--flag=/path".
  void replace_argument(std::string& argument) const {
    std::string before;
    if (text::starts_with(argument, "--")) {
      const auto equals = argument.find('=');
      if (equals == std::string::npos) return;
      before = argument.substr(0, equals + 1);
      argument.erase(0, equals + 1);
    }
    if (const auto mark = argument.find("::"); mark != std::string::npos) {
      std::string target = argument.substr(0, mark);
      replace_prefix(target);
      before += target + "::";
      argument.erase(0, mark + 2);
    }
    replace_prefix(argument);
    argument.insert(0, before);
  }

  void transform_paths(HookEdit& hook) const {
    const bool runs_inside = hook.hook_name == "startContainer";
    const bool told_inside = runs_inside || hook.hook_name == "createContainer";
    if (runs_inside != transform_host_path()) replace_prefix(hook.path);
    bool of_ldconfig = false;  // this argument is that flag's value
    for (std::size_t i = 1; i < hook.args.size(); ++i) {
      auto& argument = hook.args[i];
      const bool on_host =
          of_ldconfig || !told_inside || text::starts_with(argument, std::string(kLdconfigFlag) + "=");
      of_ldconfig = argument == kLdconfigFlag;
      if (on_host == transform_host_path()) replace_argument(argument);
    }
  }

  std::string from_, to_;
  PathSide side_;
};

}  // namespace

Result<PathSide> parse_path_side(std::string_view text) {
  if (text == "host") return PathSide::kHost;
  if (text == "container") return PathSide::kContainer;
  return fail(Code::kInvalidArgument, "'" + std::string(text) + "' is neither host nor container");
}

Status transform_root(Spec& spec, const std::string& from, const std::string& to, PathSide side) {
  GPULET_TRY_ASSIGN(const std::string old_root, without_trailing_slash(from));
  GPULET_TRY_ASSIGN(const std::string new_root, without_trailing_slash(to));
  const Transform transform(old_root, new_root, side);
  transform.transform_paths(spec.edits);
  for (auto& device : spec.devices) transform.transform_paths(device.edits);
  const auto least = minimum_version(spec);
  if (version_rank(spec.version) < version_rank(least)) spec.version = least;
  return {};
}

}  // namespace gpulet::cdi
