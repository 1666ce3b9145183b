#include "cli/mig_report.h"

#include <nlohmann/json.hpp>

#include "mig/export.h"
#include "mig/layout.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string head(const MigGpu& gpu) { return "GPU " + std::to_string(gpu.index) + ": "; }

// "2 × 1g.10gb + 1 × 3g.40gb", and what a reset will bring.
std::string stands(const mig::State& state) {
  std::string text = mig::describe(mig::layout_now(state));
  if (state.pending)
    text += *state.pending ? " (enabled by the next reset)" : " (disabled by the next reset)";
  return text;
}

std::string wish(const MigView& view, const MigGpu& gpu) {
  const auto& layout = gpu.wanted->layout;
  if (view.mode_only) return layout.enabled ? "MIG enabled" : "MIG disabled";
  return mig::describe(layout);
}

// Without a plan: why there is none.
std::string plan_lines(const MigGpu& gpu) {
  if (gpu.unreadable) return head(gpu) + "cannot be read: " + gpu.unreadable->text() + "\n";
  if (!gpu.plan) return head(gpu) + "stays as it is: the config says nothing of it\n";
  std::string lines;
  for (const auto& line : mig::describe(*gpu.plan)) lines += line + "\n";
  return lines;
}

std::string apply_lines(const MigGpu& gpu) {
  if (gpu.failed) return head(gpu) + "failed: " + gpu.failed->text() + "\n";
  if (!gpu.report) return plan_lines(gpu);
  // All of the plan, which is shorter than its single steps.
  if (gpu.report->outcome == mig::Outcome::kDone) {
    return head(gpu) + "done: " + mig::describe(*gpu.plan).front().substr(head(gpu).size()) + "\n";
  }
  std::string lines = head(gpu) + mig::describe(*gpu.report) + "\n";
  if (gpu.report->outcome == mig::Outcome::kNeedsReset) {
    lines += head(gpu) + "its MIG mode is set and waits for a reset: `nvidia-smi --gpu-reset -i " +
             std::to_string(gpu.index) + "` or a reboot, then apply again\n";
  }
  return lines;
}

std::string difference(const MigView& view, const MigGpu& gpu) {
  if (gpu.unreadable) return plan_lines(gpu);
  std::string line =
      head(gpu) + "has " + stands(gpu.state) + "; " + view.config + " wants " + wish(view, gpu);
  // An instance that no device is on is not seen in the layouts.
  if (!view.mode_only && mig::layout_now(gpu.state) == gpu.wanted->layout && !gpu.state.pending) {
    line += "; " + mig::describe(*gpu.plan).front().substr(head(gpu).size());
  }
  return line + "\n";
}

Json json(const mig::Layout& layout) {
  Json devices = Json::object();
  for (const auto& [name, count] : layout.devices) devices[name] = count;
  return {{"migEnabled", layout.enabled}, {"migDevices", std::move(devices)}};
}

Json json(const std::optional<Error>& error) {
  if (!error) return nullptr;
  return {{"code", name(error->code())}, {"message", error->text()}};
}

Json json(const mig::Placement& place) { return {{"start", place.start}, {"size", place.size}}; }

Json json(const mig::Plan& plan) {
  Json steps{{"keep", Json::array()},   {"destroyCompute", Json::array()}, {"destroy", Json::array()},
             {"setMode", nullptr},      {"needsReset", plan.needs_reset},  {"createCompute", Json::array()},
             {"create", Json::array()}, {"blockedBy", plan.blocked_by},    {"would", plan.would}};
  for (const auto& keep : plan.keep) {
    steps["keep"].push_back({{"instance", keep.instance},
                             {"profile", keep.profile},
                             {"placement", json(keep.placement)},
                             {"computeInstances", keep.compute}});
  }
  for (const auto& step : plan.destroy_compute) {
    steps["destroyCompute"].push_back(
        {{"instance", step.instance}, {"computeInstance", step.compute}, {"device", step.device}});
  }
  for (const auto& step : plan.destroy) {
    steps["destroy"].push_back(
        {{"instance", step.instance}, {"profile", step.profile}, {"placement", json(step.placement)}});
  }
  if (plan.set_mode) steps["setMode"] = *plan.set_mode;
  for (const auto& step : plan.create_compute) {
    steps["createCompute"].push_back({{"instance", step.instance}, {"device", step.compute.device}});
  }
  for (const auto& step : plan.create) {
    Json devices = Json::array();
    for (const auto& compute : step.compute) devices.push_back(compute.device);
    steps["create"].push_back(
        {{"profile", step.profile}, {"placement", json(step.placement)}, {"devices", std::move(devices)}});
  }
  return steps;
}

Json json(const MigGpu& gpu) {
  const bool known = !gpu.unreadable;
  Json one{{"index", gpu.index},       {"uuid", gpu.state.uuid.str()},
           {"model", gpu.state.model}, {"outcome", outcome(gpu)},
           {"now", nullptr},           {"pending", nullptr},
           {"wanted", nullptr},        {"place", nullptr},
           {"plan", nullptr},          {"done", Json::array()},
           {"undone", Json::array()},  {"error", nullptr}};
  if (known) one["now"] = json(mig::layout_now(gpu.state));
  if (gpu.state.pending) one["pending"] = *gpu.state.pending;
  if (gpu.wanted) one["wanted"] = json(gpu.wanted->layout);
  if (gpu.wanted && !gpu.wanted->place.empty()) one["place"] = gpu.wanted->place;
  if (gpu.plan) one["plan"] = json(*gpu.plan);
  if (gpu.report) {
    one["done"] = gpu.report->done;
    one["undone"] = gpu.report->undone;
    one["error"] = json(gpu.report->rollback_error ? gpu.report->rollback_error : gpu.report->error);
  }
  if (gpu.failed || !known) one["error"] = json(known ? gpu.failed : gpu.unreadable);
  return one;
}

std::string dump(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) +
         "\n";  // a process's name need not be UTF-8
}

}  // namespace

std::string_view outcome(const MigGpu& gpu) {
  if (gpu.unreadable) return "unreadable";
  if (gpu.failed) return "failed";
  if (gpu.report) return mig::name(gpu.report->outcome);
  if (!gpu.plan) return "not-in-config";
  if (gpu.plan->blocked()) return "blocked";
  return gpu.plan->nothing_to_do() ? "nothing-to-do" : "to-do";
}

std::string mig_plan_text(const MigView& view) {
  std::string text;
  for (const auto& gpu : view.gpus) text += plan_lines(gpu);
  return text;
}

std::string mig_apply_text(const MigView& view) {
  std::string text, now;
  for (const auto& gpu : view.gpus) {
    text += apply_lines(gpu);
    if (!gpu.unreadable) now += "GPU " + std::to_string(gpu.index) + " has " + stands(gpu.state) + "\n";
  }
  return text + (now.empty() ? "" : "\n") + now;
}

std::string mig_assert_text(const MigView& view) {
  std::string text;
  for (const auto& gpu : view.gpus) {
    const auto is = outcome(gpu);
    if (is != "not-in-config" && is != "nothing-to-do") text += difference(view, gpu);
  }
  return text.empty() ? "every GPU is as " + view.config + " says\n" : text;
}

std::string mig_json(const MigView& view) {
  Json whole{{"config", view.config},
             {"configFile", nullptr},
             {"modeOnly", view.mode_only},
             {"podsKnown", view.pods_known},
             {"gpus", Json::array()}};
  if (!view.file.empty()) whole["configFile"] = view.file;
  for (const auto& gpu : view.gpus) whole["gpus"].push_back(json(gpu));
  return dump(whole);
}

std::string mig_export_json(const mig::LayoutFile& file) {
  Json whole{{"version", "v1"}, {"mig-configs", Json::object()}};
  for (const auto& config : file.configs) {
    Json entries = Json::array();
    for (const auto& entry : config.entries) {
      Json one = Json::object();
      for (const auto& filter : entry.filters) one["device-filter"].push_back(mig::str(filter));
      one["devices"] = entry.indices ? Json(*entry.indices) : Json("all");
      one["mig-enabled"] = entry.layout.enabled;
      one["mig-devices"] = Json::object();
      for (const auto& [profile, count] : entry.layout.devices) one["mig-devices"][profile] = count;
      entries.push_back(std::move(one));
    }
    whole["mig-configs"][config.name] = std::move(entries);
  }
  return dump(whole);
}

}  // namespace gpulet::cli
