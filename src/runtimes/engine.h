// The container engines that gpulet sets up, and what of CDI each version of them can.
//
// Sources: containerd #6654 (CDI, 1.7, off), #9621 (on by default, 2.0), #9982 (imports are merged, 2.0);
// CRI-O 1.23; moby #45134 (25, off), #49963 (on by default, 28.2); Podman 4.1 (CDI 0.3), 5.5 (spec dirs are
// a setting, and by default only /etc/cdi: podman #26569), 5.6 (both again: containers/common #2462).
#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::runtimes {

enum class Engine { kContainerd, kCrio, kDocker, kPodman };

inline constexpr Engine kEngines[] = {Engine::kContainerd, Engine::kCrio, Engine::kDocker, Engine::kPodman};

struct Version {
  unsigned major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;
  std::string str() const;  // "2.3.6"
};

// The first thing like 1.2 or 1.2.3 in what a program says of its version; nullopt without one.
std::optional<Version> parse_version(std::string_view text);

// What is the same for every installation of an engine.
struct EngineFacts {
  std::string_view name;     // as --runtime takes it
  std::string_view title;    // as people write it
  std::string_view program;  // its daemon, or for Podman the program itself
  std::string_view config;   // its main file
  std::string_view drop_in;  // our file, empty where it has no drop-ins
  std::string_view socket;   // where it listens
  std::string_view unit;     // systemd's unit, empty where there is no daemon to restart
  Version first_with_cdi;
};
const EngineFacts& facts(Engine engine);
std::optional<Engine> engine_of(std::string_view name);

// Where CDI specs are: gpulet writes below /var/run/cdi, people below /etc/cdi.
const std::vector<std::string>& wanted_spec_dirs();
// Whether `dirs` has both; /run is /var/run, and a slash at the end does not count.
bool has_wanted_spec_dirs(const std::vector<std::string>& dirs);
// `dirs` in their order, then what is missing.
std::vector<std::string> with_wanted_spec_dirs(std::vector<std::string> dirs);

// An engine as it is to be set up: paths as the host sees them.
struct Target {
  std::optional<Version> version{};  // of its program, nullopt when it could not be asked
  std::string config;
  std::string drop_in{};
};

// The host's files, read by whoever can. A test has a map behind it.
struct Reader {
  // nullopt when there is none. Errors: not readable, too large, no regular file.
  std::function<Result<std::optional<std::string>>(const std::string& path)> read;
  // The existing paths that match a pattern with `*`, `?` or `[]`, bytewise order.
  std::function<std::vector<std::string>(const std::string& pattern)> glob;
};

struct Change {
  std::string path;
  std::optional<std::string> text;  // nullopt: the file is removed
  bool operator==(const Change&) const = default;
};

// Changes in the order in which they are to be made: at no moment does an engine that starts meet half of
// them.
struct Plan {
  std::vector<Change> changes{};
  std::string say{};  // why there is nothing to do, or what was special
};

// One thing that an engine needs for CDI, and whether it has it.
struct Finding {
  std::string what;  // "version", "CDI", "spec dirs"
  bool fit = false;
  std::string say;       // what was found
  std::string remedy{};  // what to do, for what is unfit
};

// The remedy that most findings have.
std::string configure_command(Engine engine);

// The version as a finding. An unknown one is fit: it cannot be said otherwise.
Finding judge_version(Engine engine, const std::optional<Version>& version);
// kUnsupported when it is known and too old.
Status check_version(Engine engine, const std::optional<Version>& version);

}  // namespace gpulet::runtimes
