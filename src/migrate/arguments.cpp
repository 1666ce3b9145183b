#include "migrate/arguments.h"

#include <algorithm>
#include <array>

#include "config/schema.h"
#include "migrate/exporter.h"

namespace gpulet::migrate {
namespace {

bool takes_no_value(Part part, std::string_view name) {
  if (part == Part::kDcgmExporter) {
    const auto* option = exporter_flag(name);
    return option != nullptr && option->is_switch;
  }
  if (part == Part::kConfigManager) return name == "oneshot" || name == "send-signal";
  const auto* setting = config::setting_of_flag(name);
  return setting != nullptr && setting->kind == config::Kind::kBool;
}

// Of no setting, and known all the same: what the programs read beside their settings.
constexpr std::array<std::string_view, 17> kOthers = {"NODE_NAME",
                                                      "NAMESPACE",
                                                      "POD_NAME",
                                                      "KUBECONFIG",
                                                      "ONESHOT",
                                                      "CONFIG_FILE_DST",
                                                      "SEND_SIGNAL",
                                                      "SIGNAL",
                                                      "PROCESS_TO_SIGNAL",
                                                      "KUBE_API_QPS",
                                                      "KUBE_API_BURST",
                                                      "NVIDIA_VISIBLE_DEVICES",
                                                      "NVIDIA_DRIVER_CAPABILITIES",
                                                      "NVIDIA_MIG_MONITOR_DEVICES",
                                                      "NVIDIA_MIG_CONFIG_DEVICES",
                                                      "NVIDIA_DISABLE_REQUIRE",
                                                      "WITH_SHUTDOWN_HOST_GPU_CLIENTS"};

}  // namespace

GivenFlags read_flags(Part part, const std::vector<std::string>& arguments) {
  GivenFlags given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view word = arguments[i];
    if (word.size() < 2 || word[0] != '-') {
      given.words.emplace_back(word);
      continue;
    }
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    const auto equals = word.find('=');
    const std::string name(word.substr(0, equals));
    auto& values = given.flags[name];
    if (equals != std::string_view::npos) {
      values.emplace_back(word.substr(equals + 1));
    } else if (takes_no_value(part, name)) {
      values.emplace_back("true");
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with('-')) {
      values.push_back(arguments[++i]);
    } else {
      values.emplace_back();
    }
  }
  return given;
}

bool known_variable(Part part, std::string_view name) {
  if (std::ranges::count(kOthers, name) != 0) return true;
  if (part == Part::kDcgmExporter && exporter_variable(name) != nullptr) return true;
  const std::string_view plain =
      part == Part::kFeatureDiscovery && name.starts_with("GFD_") ? name.substr(4) : name;
  return std::ranges::any_of(config::settings(), [&](const auto& setting) {
    return std::ranges::count(setting.environment, name) != 0 ||
           std::ranges::count(setting.environment, plain) != 0;
  });
}

}  // namespace gpulet::migrate
