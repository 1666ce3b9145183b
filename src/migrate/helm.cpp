#include "migrate/helm.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cluster/objects.h"
#include "web/document.h"
#include "web/passwords.h"

namespace gpulet::migrate {
namespace {

using cluster::member;
using cluster::text_of;
using nlohmann::json;

// Values of NVIDIA's chart (nvidia-device-plugin) that are settings, and hold no text of anybody's own.
// Source: k8s-device-plugin v0.20.0, deployments/helm/nvidia-device-plugin/values.yaml.
constexpr std::array<std::string_view, 26> kValues = {"config.name",
                                                      "config.default",
                                                      "config.fallbackStrategies",
                                                      "compatWithCPUManager",
                                                      "migStrategy",
                                                      "failOnInitError",
                                                      "deviceListStrategy",
                                                      "deviceIDStrategy",
                                                      "deviceDiscoveryStrategy",
                                                      "nvidiaDriverRoot",
                                                      "nvidiaDevRoot",
                                                      "nvidiaDriverCapabilities",
                                                      "logVerbosity",
                                                      "gdrcopyEnabled",
                                                      "gdsEnabled",
                                                      "mofedEnabled",
                                                      "runtimeClassName",
                                                      "priorityClassName",
                                                      "devicePlugin.enabled",
                                                      "devicePlugin.enableHostNetwork",
                                                      "gfd.enabled",
                                                      "mps.root",
                                                      "mps.enableHostPID",
                                                      "mps.enableHostNetwork",
                                                      "cdi.nvidiaHookPath",
                                                      "cdi.featureFlags"};

std::string plain(const json& value) {
  if (value.is_string()) return text_of(value);
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  if (value.is_array() && std::ranges::all_of(value, [](const auto& one) { return one.is_string(); })) {
    std::string all;
    for (const auto& one : value) all += (all.empty() ? "" : ",") + text_of(one);
    return all;
  }
  return {};
}

// Each leaf by its path; a list is one.
void read_values(const json& values, const std::string& path, Release& release) {
  for (const auto& [key, value] : values.items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    if (value.is_object() && !value.empty()) {
      // The keys of a config map are its user's.
      if (name == "config.map") {
        release.others.push_back(name);
      } else {
        read_values(value, name, release);
      }
    } else if (std::ranges::count(kValues, name) != 0) {
      release.values.emplace_back(name, plain(value));
    } else {
      release.others.push_back(name);
    }
  }
}

}  // namespace

Result<Release> release_of(std::string_view secret) {
  const json object = json::parse(secret, nullptr, false);
  const auto no_release = [](const char* why) { return fail(Code::kInvalidArgument, why); };
  if (text_of(member(object, "type")) != "helm.sh/release.v1") return no_release("is no release of Helm's");
  const std::string packed =
      web::decode_base64(web::decode_base64(text_of(member(member(object, "data"), "release"))));
  const std::string text = web::gunzip(packed, kMaxReleaseBytes);
  if (text.empty()) return no_release("is no gzip, or unpacked larger than 32 MiB");
  const json release = json::parse(text, nullptr, false);
  const json& chart = member(member(release, "chart"), "metadata");
  Release made{.name = text_of(member(release, "name")),
               .name_space = text_of(member(release, "namespace")),
               .chart = text_of(member(chart, "name")),
               .version = text_of(member(chart, "version")),
               .revision = {},
               .values = {},
               .others = {}};
  const json& revision = member(release, "version");
  if (revision.is_number_unsigned()) made.revision = std::to_string(revision.get<unsigned>());
  if (made.name.empty() || made.chart.empty()) return no_release("has neither a name nor a chart");
  const json& values = member(release, "config");
  if (values.is_object()) read_values(values, "", made);
  return made;
}

}  // namespace gpulet::migrate
