// The container engines that gpulet configures, and the CDI support of their versions.
//
// Sources: containerd #6654 (CDI, 1.7, off), #9621 (on by default, 2.0), #9982 (imports are merged, 2.0);
// CRI-O 1.23; moby #45134 (25, off), #49963 (on by default, 28.2); Podman 4.1 (CDI 0.3), 5.5 (spec dirs
// configurable, by default only /etc/cdi: podman #26569), 5.6 (both again: containers/common #2462).
#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::runtimes {

enum class Engine { kContainerd, kCrio, kDocker, kPodman };

inline constexpr Engine kEngines[] = {Engine::kContainerd, Engine::kCrio, Engine::kDocker, Engine::kPodman};

struct EngineVersion {
  unsigned major = 0, minor = 0, patch = 0;
  auto operator<=>(const EngineVersion&) const = default;
  std::string str() const;  // "2.3.6"
};

// Returns the first text like 1.2 or 1.2.3 in a program's version output; nullopt without one.
std::optional<EngineVersion> parse_engine_version(std::string_view text);

// Constants of an engine.
struct EngineFacts {
  std::string_view name;     // value of --runtime
  std::string_view title;    // display name
  std::string_view program;  // its daemon, for Podman the program itself
  std::string_view config;   // its main file
  std::string_view drop_in;  // gpulet's drop-in, empty if it has no drop-ins
  std::string_view socket;   // its socket
  std::string_view unit;     // the systemd unit, empty if there is no daemon to restart
  EngineVersion first_with_cdi;
};
const EngineFacts& engine_facts(Engine engine);
std::optional<Engine> engine_by_name(std::string_view name);

// Returns the CDI spec directories: gpulet writes below /var/run/cdi, administrators below /etc/cdi.
const std::vector<std::string>& required_spec_dirs();
// Returns whether `dirs` has both. /run equals /var/run; a trailing slash is ignored.
bool has_required_spec_dirs(const std::vector<std::string>& dirs);
// Returns `dirs` followed by the missing ones.
std::vector<std::string> with_required_spec_dirs(std::vector<std::string> dirs);

// The engine to set up. Paths are the host's.
struct Target {
  std::optional<EngineVersion> version{};  // of its program, nullopt if unknown
  std::string config;
  std::string drop_in{};
};

// Reads the host's files; a map in tests.
struct Reader {
  // nullopt if there is none. Errors: not readable, too large, not a regular file.
  std::function<Result<std::optional<std::string>>(const std::string& path)> read;
  // The existing paths that match a pattern with `*`, `?` or `[]`, in bytewise order.
  std::function<std::vector<std::string>(const std::string& pattern)> glob;
};

struct Change {
  std::string path;
  std::optional<std::string> text;  // nullopt: the file is removed
  bool operator==(const Change&) const = default;
};

// Changes in the order in which they must be applied, so that an engine that starts meanwhile never sees an
// inconsistent state.
struct Plan {
  std::vector<Change> changes{};
  std::string message{};  // why there is nothing to do, or what is special
};

// A requirement of an engine for CDI, and whether it is met.
struct Finding {
  std::string subject;  // "version", "CDI", "spec dirs"
  bool is_met = false;
  std::string detail;    // the value found
  std::string advice{};  // what to do if it is not met
};

// Returns the usual advice.
std::string configure_command(Engine engine);

// Returns the version as a finding. An unknown version counts as met.
Finding version_finding(Engine engine, const std::optional<EngineVersion>& version);
// Errors: kUnsupported if the version is known and too old.
Status check_engine_version(Engine engine, const std::optional<EngineVersion>& version);

// Files that gpulet creates begin with kFileHeader; a foreign file at the same path is never changed.
inline constexpr std::string_view kFileHeader =
    "# Written by `gpulet runtime configure`; `gpulet runtime configure --remove` deletes it. Do not "
    "edit.\n";

// Errors: kFailedPrecondition if the file exists without the header.
inline Status check_file_owner(const std::string& path, const std::optional<std::string>& text) {
  if (!text || text->starts_with(kFileHeader)) return {};
  return fail(
      Code::kFailedPrecondition,
      "a file that gpulet did not write is at the drop-in's path: choose another with --drop-in-config",
      path);
}

// Errors: kInvalidArgument for a path that is not absolute and plain, or that a pattern cannot express.
inline Status check_drop_in_path(const std::string& path) {
  const bool plain = path.starts_with('/') && path.find_first_of("*?[]\\\"\n\r") == std::string::npos &&
                     path.find("//") == std::string::npos && path.find("/.") == std::string::npos &&
                     !path.ends_with('/');
  if (plain) return {};
  return fail(Code::kInvalidArgument,
              "invalid path for a drop-in: expected an absolute path without `.`, `..` and patterns", path);
}

// Kubernetes distributions with a containerd of their own, and the paths of its files.
//
// Sources: k3s docs "Advanced options", rancher/k3s pkg/agent/containerd (drop-ins: config-v3.toml.d beside a
// config of version 3, config.toml.d beside one of version 2, where it imports them); RKE2 docs; k0s
// docs/runtime.md; MicroK8s docs "Configuring services". docs/platforms.md has their other needs.
struct Distribution {
  std::string_view name;     // "k3s"
  std::string_view program;  // its containerd
  std::string_view config;   // its config
  std::string_view socket;
  std::string_view editable_config;  // the file to change, if `config` is generated from it at each start
  std::string_view drop_in;          // path of gpulet's drop-in
  std::string_view units;            // pattern of the systemd units that run its kubelet: "k3s*"
  // Set where `editable_config` is generated too, so that only its own imports last: the drop-in path for
  // containerd 1, and the templates for containerd 2 and 1. Empty elsewhere.
  std::string_view old_drop_in{}, template_file{}, old_template_file{};
};
std::span<const Distribution> distributions();

// Returns the path where a drop-in is read, given the text of `distribution.config`.
std::string drop_in_path(const Distribution& distribution, const std::string& config);
// Returns how to turn CDI on there, with the command, given the same text: where no drop-in would be read, by
// the distribution's template or an upgrade.
std::string cdi_advice(const Distribution& distribution, const std::string& config);

}  // namespace gpulet::runtimes
