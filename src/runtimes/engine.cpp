#include "runtimes/engine.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace gpulet::runtimes {
namespace {

constexpr std::array<EngineFacts, 4> kFacts{{
    {.name = "containerd",
     .title = "containerd",
     .program = "containerd",
     .config = "/etc/containerd/config.toml",
     .drop_in = "/etc/containerd/conf.d/99-gpulet.toml",
     .socket = "/run/containerd/containerd.sock",
     .unit = "containerd.service",
     .first_with_cdi = {1, 7, 0}},
    {.name = "crio",
     .title = "CRI-O",
     .program = "crio",
     .config = "/etc/crio/crio.conf",
     .drop_in = "/etc/crio/crio.conf.d/99-gpulet.conf",
     .socket = "/run/crio/crio.sock",
     .unit = "crio.service",
     .first_with_cdi = {1, 23, 0}},
    {.name = "docker",
     .title = "Docker",
     .program = "dockerd",
     .config = "/etc/docker/daemon.json",
     .drop_in = "",
     .socket = "/run/docker.sock",
     .unit = "docker.service",
     .first_with_cdi = {25, 0, 0}},
    {.name = "podman",
     .title = "Podman",
     .program = "podman",
     .config = "/etc/containers/containers.conf",
     .drop_in = "/etc/containers/containers.conf.d/99-gpulet.conf",
     .socket = "/run/podman/podman.sock",
     .unit = "",
     .first_with_cdi = {4, 1, 0}},
}};

// A number at `at`, which is moved behind it.
std::optional<unsigned> number(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && text::is_digit(text[at])) ++at;
  const auto value = text::parse_unsigned(text.substr(begin, at - begin));
  if (!value || *value > 1'000'000) return std::nullopt;
  return static_cast<unsigned>(*value);
}

std::string same_dir(std::string dir) {
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return dir.starts_with("/run/") ? "/var" + dir : dir;
}

bool has_dir(const std::vector<std::string>& dirs, const std::string& wanted) {
  return std::ranges::any_of(dirs, [&](const auto& dir) { return same_dir(dir) == wanted; });
}

}  // namespace

std::string Version::str() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::optional<Version> parse_version(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!text::is_digit(text[at])) continue;
    const char before = at == 0 ? ' ' : text[at - 1];
    if (before == ' ' || before == 'v' || before == '\t' || before == '\n') {
      Version version;
      const auto major = number(text, at);
      if (major && at + 1 < text.size() && text[at] == '.' && text::is_digit(text[at + 1])) {
        version.major = *major;
        const auto minor = number(text, ++at);
        if (!minor) return std::nullopt;
        version.minor = *minor;
        if (at + 1 < text.size() && text[at] == '.' && text::is_digit(text[at + 1])) {
          version.patch = number(text, ++at).value_or(0);
        }
        return version;
      }
    }
    while (at < text.size() && text::is_digit(text[at])) ++at;
    --at;
  }
  return std::nullopt;
}

const EngineFacts& facts(Engine engine) { return kFacts[static_cast<std::size_t>(engine)]; }

std::optional<Engine> engine_of(std::string_view name) {
  for (const Engine engine : kEngines) {
    if (facts(engine).name == name) return engine;
  }
  return std::nullopt;
}

const std::vector<std::string>& wanted_spec_dirs() {
  static const std::vector<std::string> dirs{"/etc/cdi", "/var/run/cdi"};
  return dirs;
}

bool has_wanted_spec_dirs(const std::vector<std::string>& dirs) {
  return std::ranges::all_of(wanted_spec_dirs(), [&](const auto& wanted) { return has_dir(dirs, wanted); });
}

std::vector<std::string> with_wanted_spec_dirs(std::vector<std::string> dirs) {
  for (const auto& wanted : wanted_spec_dirs()) {
    if (!has_dir(dirs, wanted)) dirs.push_back(wanted);
  }
  return dirs;
}

std::string configure_command(Engine engine) {
  return "gpulet runtime configure --runtime " + std::string(facts(engine).name);
}

Finding judge_version(Engine engine, const std::optional<Version>& version) {
  const std::string first = facts(engine).first_with_cdi.str();
  if (!version) return {.what = "version", .fit = true, .say = "unknown; CDI came with " + first};
  if (*version < facts(engine).first_with_cdi) {
    return {.what = "version",
            .fit = false,
            .say = version->str() + " has no CDI",
            .remedy = "upgrade to " + first + " or later"};
  }
  return {.what = "version", .fit = true, .say = version->str()};
}

Status check_version(Engine engine, const std::optional<Version>& version) {
  const Finding finding = judge_version(engine, version);
  if (finding.fit) return {};
  return fail(Code::kUnsupported,
              finding.say + "; " + facts(engine).first_with_cdi.str() + " or later would do",
              std::string(facts(engine).title));
}

}  // namespace gpulet::runtimes
