#include "hook/container.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "hook/json_reader.h"

namespace gpulet::hook {
namespace {

// Reads a member that is an object, or null, which Go writes for a missing one.
Status object_or_null(JsonReader& json, const std::function<Status(std::string_view)>& member) {
  return json.consume_null() ? Status{} : json.read_object(member);
}

Status read_process(JsonReader& json, BundleConfig& config) {
  return object_or_null(json, [&](std::string_view key) -> Status {
    if (key != "env" || json.consume_null()) return key == "env" ? Status{} : json.skip_value();
    config.environment.clear();
    return json.read_array([&]() -> Status {
      // The runtime rejects a variable with a NUL.
      GPULET_TRY_ASSIGN(std::string variable, json.read_string());
      config.environment.push_back(std::move(variable));
      return {};
    });
  });
}

Status read_root(JsonReader& json, BundleConfig& config) {
  return object_or_null(json, [&](std::string_view key) -> Status {
    if (key == "path") return json.read_string_into(config.root_path);
    if (key != "readonly") return json.skip_value();
    GPULET_TRY_ASSIGN(config.root_read_only, json.read_boolean());
    return {};
  });
}

Status read_namespaces(JsonReader& json, BundleConfig& config) {
  if (json.consume_null()) return {};
  return json.read_array([&] {
    return object_or_null(json, [&](std::string_view key) -> Status {
      if (key != "type") return json.skip_value();
      std::string type;
      GPULET_TRY(json.read_string_into(type));
      if (type == "user") config.user_namespace = true;
      return {};
    });
  });
}

// Reads the bundle's config.json: a trusted file, but still required to be regular and within the limit.
Result<BundleConfig> read_bundle(const std::string& bundle) {
  const std::string path = bundle + "/config.json";
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kInvalidArgument, "not a regular file", path);
  GPULET_TRY_ASSIGN(const std::string content, read_all(fd.get(), path, kMaxConfigBytes));
  auto config = parse_bundle_config(content);
  if (!config) return fail(Error(config.error().code(), config.error().message(), path));
  return config;
}

}  // namespace

Result<OciState> parse_oci_state(std::string_view text) {
  JsonReader json(text);
  OciState state;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "id") return json.read_string_into(state.id);
    if (key == "bundle") return json.read_string_into(state.bundle);
    if (key == "root") return json.read_string_into(state.root);
    return json.skip_value();
  }));
  GPULET_TRY(json.expect_end());
  return state;
}

Result<BundleConfig> parse_bundle_config(std::string_view text) {
  JsonReader json(text);
  BundleConfig config;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "root") return read_root(json, config);
    if (key == "process") return read_process(json, config);
    if (key != "linux") return json.skip_value();
    return object_or_null(json, [&](std::string_view member) {
      return member == "namespaces" ? read_namespaces(json, config) : json.skip_value();
    });
  }));
  GPULET_TRY(json.expect_end());
  return config;
}

std::string_view Container::environment_value(std::string_view name) const {
  for (auto entry = environment.rbegin(); entry != environment.rend(); ++entry) {
    const std::string_view text = *entry;
    if (text.size() > name.size() && text.substr(0, name.size()) == name && text[name.size()] == '=')
      return text.substr(name.size() + 1);
  }
  return {};
}

Result<Container> read_container(int state_fd) {
  auto text = read_all(state_fd, "the container's state", kMaxStateBytes);
  if (!text) return fail(text.error());
  auto state = parse_oci_state(*text);
  if (!state) return fail(state.error().with_context("cannot parse the container's state (standard input)"));
  BundleConfig config;
  if (!state->bundle.empty()) {
    if (state->bundle[0] != '/')
      return fail(Code::kInvalidArgument, "the container's bundle is not an absolute path", state->bundle);
    auto read = read_bundle(state->bundle);
    if (!read && state->root.empty()) return fail(read.error());
    if (read) config = std::move(*read);
  }
  std::string path = state->root.empty() ? config.root_path : state->root;
  if (path.empty()) return fail(Code::kInvalidArgument, "the container's state names no root directory");
  if (path[0] != '/') path = state->bundle + "/" + path;
  GPULET_TRY_ASSIGN(Rootfs root, Rootfs::open_root(path));
  return Container{std::move(root), path, config.root_read_only, config.user_namespace,
                   std::move(config.environment)};
}

}  // namespace gpulet::hook
