#include "cdi/generate.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace gpulet::cdi {
namespace {

constexpr const char* kCheckRequirements = "check-requirements";  // gpulet-hook's own
constexpr const char* kLinks = "create-symlinks";
constexpr const char* kCudaCompat = "enable-cuda-compat";
constexpr const char* kLdcache = "update-ldcache";
constexpr const char* kDeviceParams = "disable-device-node-modification";
constexpr const char* kAppProfile = "update-application-profile";
constexpr const char* kChmod = "chmod";
constexpr const char* kAll = "all";
// The steps of one gpulet-hook process, in order.
constexpr std::array kSteps{kCheckRequirements, kLinks, kCudaCompat, kLdcache, kDeviceParams, kAppProfile};

std::string hook_program(const HookOptions& options) { return std::string(text::base_name(options.path)); }

// Seconds, after which the runtime kills the hook and the container does not start. gpulet-hook ends by
// itself long before that (hook/supervisor.h). Every version of CDI has the field.
constexpr std::int64_t kHookTimeoutSeconds = 10;

bool is_ours(const HookOptions& options) { return is_gpulet_hook(options.path); }

bool is_off(const HookOptions& options, std::string_view name) {
  if (options.enabled.contains(name)) return false;
  return options.disabled.contains(name) || options.disabled.contains(kAll);
}

HookEdit make_hook(const HookOptions& options, const char* name, const std::vector<std::string>& arguments) {
  HookEdit edit{"createContainer", options.path, {hook_program(options)}};
  if (edit.args.front() == "nvidia-ctk") edit.args.emplace_back("hook");
  edit.args.emplace_back(name);
  edit.args.insert(edit.args.end(), arguments.begin(), arguments.end());
  if (is_ours(options)) edit.timeout = kHookTimeoutSeconds;
  edit.env = {is_ours(options) ? "GPULET_HOOK=1" : "NVIDIA_CTK_DEBUG=false"};
  return edit;
}

HookEdit limit_hook(const HookOptions& options) {
  auto hook = make_hook(options, "limit-memory", {"--socket", options.limit_socket});
  hook.hook_name = "createRuntime";  // in the host's namespaces, where the socket is
  return hook;
}

std::vector<std::string> link_arguments(const std::vector<Link>& links) {
  std::vector<std::string> arguments;
  for (const auto& link : links) {
    arguments.emplace_back("--link");
    arguments.push_back(link.target + "::" + link.link);
  }
  return arguments;
}

std::vector<std::string> directory_arguments(const HookOptions& options,
                                             const std::vector<std::string>& directories) {
  std::vector<std::string> arguments;
  if (!options.ldconfig_path.empty()) arguments = {"--ldconfig-path", options.ldconfig_path};
  for (const auto& directory : directories) {
    arguments.emplace_back("--folder");
    arguments.push_back(directory);
  }
  return arguments;
}

std::vector<HookEdit> one_hook(const HookOptions& options, const HookHost& host,
                               const std::vector<Link>& links, const std::vector<std::string>& directories,
                               bool management) {
  std::vector<std::string> left_out;
  for (const char* step : kSteps) {
    const bool manages = management && (step == kDeviceParams || step == kAppProfile);
    if (is_off(options, step) || (manages && !options.enabled.contains(step))) left_out.emplace_back(step);
  }
  if (left_out.size() == kSteps.size()) return {};
  std::vector<std::string> arguments;
  const auto add = [&](std::vector<std::string> more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
  };
  const auto add_pair = [&](const char* option, const std::string& value) {
    if (!value.empty()) add({option, value});
  };
  if (!is_off(options, kLinks)) add(link_arguments(links));
  if (!is_off(options, kLdcache)) {
    for (const auto& directory : directories) add({"--folder", directory});
    add_pair("--ldconfig-path", options.ldconfig_path);
  }
  add_pair("--host-driver-version", host.driver_version);
  add_pair("--host-cuda-version", host.cuda_version);
  add_pair("--host-arch", host.arch);
  add_pair("--host-brand", host.brand);
  for (const auto& step : left_out) arguments.push_back("--disable=" + step);
  return {make_hook(options, "create-container", arguments)};
}

}  // namespace

bool is_gpulet_hook(std::string_view path) { return text::base_name(path) == "gpulet-hook"; }

Status check_hook_options(const HookOptions& options) {
  if (options.limit_socket.empty()) return {};
  if (!is_ours(options)) {
    return fail(Code::kInvalidArgument,
                "memory limits of the driver need gpulet-hook as the hook program, found " + options.path);
  }
  if (options.limit_socket.front() == '/') return {};
  return fail(Code::kInvalidArgument, "expected an absolute path", options.limit_socket);
}

Status check_hook_name(const std::string& name, bool all_allowed) {
  std::vector<std::string> names(kSteps.begin(), kSteps.end());
  names.emplace_back(kChmod);
  if (all_allowed) names.emplace_back(kAll);
  if (std::ranges::find(names, name) != names.end()) return {};
  return fail(Code::kInvalidArgument,
              "unknown hook '" + name + "'; expected one of " + text::join(names, ", "));
}

std::vector<HookEdit> common_hooks(const HookOptions& options, const HookHost& host,
                                   const std::vector<Link>& links,
                                   const std::vector<std::string>& directories, bool management) {
  if (is_ours(options)) {
    auto ours = one_hook(options, host, links, directories, management);
    if (!options.limit_socket.empty()) ours.push_back(limit_hook(options));
    return ours;
  }
  std::vector<HookEdit> hooks;
  const auto add = [&](const char* name, const std::vector<std::string>& arguments) {
    if (!is_off(options, name)) hooks.push_back(make_hook(options, name, arguments));
  };
  if (!links.empty()) add(kLinks, link_arguments(links));
  std::vector<std::string> compat;
  if (!host.driver_version.empty()) compat = {"--host-driver-version=" + host.driver_version};
  add(kCudaCompat, compat);
  add(kLdcache, directory_arguments(options, directories));
  if (!management || options.enabled.contains(kDeviceParams)) add(kDeviceParams, {});
  if (!management || options.enabled.contains(kAppProfile)) add(kAppProfile, {});
  return hooks;
}

std::vector<HookEdit> device_hooks(const HookOptions& options, const std::vector<Link>& links,
                                   const std::vector<NodeEdit>& nodes) {
  std::vector<HookEdit> hooks;
  if (!links.empty() && !is_off(options, kLinks)) {
    hooks.push_back(make_hook(options, kLinks, link_arguments(links)));
  }
  if (!options.enabled.contains(kChmod)) return hooks;
  std::vector<std::string> arguments{"--mode", "755"};
  for (const char* directory : {"/dev/dri", "/dev/nvidia-caps"}) {
    const std::string prefix = std::string(directory) + "/";
    if (std::ranges::any_of(nodes, [&](const NodeEdit& node) { return node.path.starts_with(prefix); })) {
      arguments.insert(arguments.end(), {"--path", directory});
    }
  }
  if (arguments.size() > 2) hooks.push_back(make_hook(options, kChmod, arguments));
  return hooks;
}

}  // namespace gpulet::cdi
