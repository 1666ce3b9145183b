#include "runtimes/engine.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "runtimes/containerd.h"
#include "runtimes/imports.h"
#include "runtimes/toml.h"

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

// Parses the number at `at` and advances `at`.
std::optional<unsigned> parse_version_number(std::string_view text, std::size_t& at) {
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

std::string EngineVersion::str() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::optional<EngineVersion> parse_engine_version(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!text::is_digit(text[at])) continue;
    const char before = at == 0 ? ' ' : text[at - 1];
    if (before == ' ' || before == 'v' || before == '\t' || before == '\n') {
      EngineVersion version;
      const auto major = parse_version_number(text, at);
      if (major && at + 1 < text.size() && text[at] == '.' && text::is_digit(text[at + 1])) {
        version.major = *major;
        const auto minor = parse_version_number(text, ++at);
        if (!minor) return std::nullopt;
        version.minor = *minor;
        if (at + 1 < text.size() && text[at] == '.' && text::is_digit(text[at + 1])) {
          version.patch = parse_version_number(text, ++at).value_or(0);
        }
        return version;
      }
    }
    while (at < text.size() && text::is_digit(text[at])) ++at;
    --at;
  }
  return std::nullopt;
}

const EngineFacts& engine_facts(Engine engine) { return kFacts[static_cast<std::size_t>(engine)]; }

std::optional<Engine> engine_by_name(std::string_view name) {
  for (const Engine engine : kEngines) {
    if (engine_facts(engine).name == name) return engine;
  }
  return std::nullopt;
}

const std::vector<std::string>& required_spec_dirs() {
  static const std::vector<std::string> dirs{"/etc/cdi", "/var/run/cdi"};
  return dirs;
}

bool has_required_spec_dirs(const std::vector<std::string>& dirs) {
  return std::ranges::all_of(required_spec_dirs(), [&](const auto& wanted) { return has_dir(dirs, wanted); });
}

std::vector<std::string> with_required_spec_dirs(std::vector<std::string> dirs) {
  for (const auto& wanted : required_spec_dirs()) {
    if (!has_dir(dirs, wanted)) dirs.push_back(wanted);
  }
  return dirs;
}

std::string configure_command(Engine engine) {
  return "gpulet runtime configure --runtime " + std::string(engine_facts(engine).name);
}

Finding version_finding(Engine engine, const std::optional<EngineVersion>& version) {
  const std::string first = engine_facts(engine).first_with_cdi.str();
  if (!version) return {.subject = "version", .is_met = true, .detail = "unknown; CDI requires " + first};
  if (*version < engine_facts(engine).first_with_cdi) {
    return {.subject = "version",
            .is_met = false,
            .detail = version->str() + " does not support CDI",
            .advice = "upgrade to " + first + " or later"};
  }
  return {.subject = "version", .is_met = true, .detail = version->str()};
}

Status check_engine_version(Engine engine, const std::optional<EngineVersion>& version) {
  const Finding finding = version_finding(engine, version);
  if (finding.is_met) return {};
  return fail(Code::kUnsupported,
              finding.detail + "; " + engine_facts(engine).first_with_cdi.str() + " or later is required",
              std::string(engine_facts(engine).title));
}

namespace {

constexpr std::array<Distribution, 4> kDistributions{{
    {.name = "k3s",
     .program = "/var/lib/rancher/k3s/data/current/bin/containerd",
     .config = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .editable_config = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml",
     .units = "k3s*",
     .old_drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.d/99-gpulet.toml",
     .template_file = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
     .old_template_file = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl"},
    {.name = "RKE2",
     .program = "/var/lib/rancher/rke2/bin/containerd",
     .config = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .editable_config = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml",
     .units = "rke2-*",
     .old_drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.d/99-gpulet.toml",
     .template_file = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
     .old_template_file = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"},
    {.name = "k0s",
     .program = "/var/lib/k0s/bin/containerd",
     .config = "/etc/k0s/containerd.toml",
     .socket = "/run/k0s/containerd.sock",
     .editable_config = "/etc/k0s/containerd.toml",
     .drop_in = "/etc/k0s/containerd.d/99-gpulet.toml",
     .units = "k0s*"},
    {.name = "MicroK8s",
     .program = "/snap/microk8s/current/bin/containerd",
     .config = "/var/snap/microk8s/current/args/containerd.toml",
     .socket = "/var/snap/microk8s/common/run/containerd.sock",
     .editable_config = "/var/snap/microk8s/current/args/containerd-template.toml",
     .drop_in = "/var/snap/microk8s/current/args/99-gpulet.toml",
     .units = "snap.microk8s.daemon-kubelite"},
}};

// Returns false for invalid TOML: containerd reads nothing of it.
bool imports_file(const Distribution& distribution, const std::string& config, const std::string& file) {
  const std::string path(distribution.config);
  const auto document = toml::parse_toml(config, path);
  if (!document) return false;
  const auto all = read_imports(*document, path);
  return all && std::ranges::any_of(*all, [&](const auto& one) { return import_matches(one, file); });
}

// Config version 3 came with containerd 2.
bool is_containerd_1_config(const Distribution& distribution, const std::string& config) {
  const auto document = toml::parse_toml(config, std::string(distribution.config));
  const auto* version = document ? document->find({"version"}) : nullptr;
  return version == nullptr || version->value.number < 3;
}

}  // namespace

std::span<const Distribution> distributions() { return kDistributions; }

std::string drop_in_path(const Distribution& distribution, const std::string& config) {
  if (distribution.old_drop_in.empty()) return std::string(distribution.drop_in);
  for (const auto candidate : {distribution.drop_in, distribution.old_drop_in}) {
    if (imports_file(distribution, config, std::string(candidate))) return std::string(candidate);
  }
  return std::string(is_containerd_1_config(distribution, config) ? distribution.old_drop_in
                                                                  : distribution.drop_in);
}

std::string cdi_advice(const Distribution& distribution, const std::string& config) {
  const std::string name(distribution.name), drop_in = drop_in_path(distribution, config);
  if (distribution.old_drop_in.empty() || imports_file(distribution, config, drop_in)) {
    return configure_command(Engine::kContainerd) + " --config " + std::string(distribution.editable_config) +
           " --drop-in-config " + drop_in + ", and restart " + name;
  }
  const bool old = is_containerd_1_config(distribution, config);
  return name + " regenerates this file at each start without imports: set enable_cdi = true in " +
         std::string(old ? distribution.old_template_file : distribution.template_file) + " and restart " +
         name + (old ? ", or upgrade " + name + " to a version with containerd 2, where CDI is on" : "");
}

}  // namespace gpulet::runtimes
