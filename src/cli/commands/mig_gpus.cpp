#include "cli/commands/mig.h"

#include <filesystem>
#include <future>

#include <nlohmann/json.hpp>

#include "agent/driver/nvml_adapters.h"
#include "base/text.h"
#include "dra/claimed_devices.h"
#include "health/report/health_report.h"
#include "inventory/snapshot_reader.h"
#include "mig/hardware.h"
#include "mig/layout.h"
#include "mig/layout_file.h"

namespace gpulet::cli {
namespace {

constexpr Duration kDriverLimit = std::chrono::seconds(30);  // for initialising it, and for reading one GPU

nvml::Call gpu_call(const std::string& what, unsigned index, Duration limit) {
  const std::string gpu = "GPU " + std::to_string(index);
  return {what + " MIG of " + gpu, gpu, limit};
}

using PodsResult = Result<mig::PodsByDevice>;
using Containers = Result<std::vector<ContainerDevices>>;

PodsResult to_pods(const Containers& containers) {
  if (!containers) return fail(containers.error());
  return device_plugin::pods_by_device(*containers);
}

}  // namespace

MigDevices::MigDevices(std::string driver_root, std::string kubelet_socket)
    : driver_root_(std::move(driver_root)), kubelet_socket_(std::move(kubelet_socket)) {}

template <class T>
Result<T> MigDevices::wait_for_call(nvml::Call call, std::function<Result<T>()> work) {
  std::optional<Result<T>> answer;
  worker_.run_call<T>(std::move(call), std::move(work), [&](Result<T> result) {
    answer.emplace(std::move(result));
    loop_->stop_loop();
  });
  loop_->run_loop();
  return std::move(*answer);
}

Result<unsigned> MigDevices::open_mig_driver() {
  using Session = std::shared_ptr<const nvml::Session>;
  GPULET_TRY_ASSIGN(
      session_, wait_for_call<Session>({"initialising the driver", "", kDriverLimit},
                                       [root = driver_root_] { return nvml::Session::open_session(root); }));
  return wait_for_call<unsigned>({"counting the GPUs", "", kDriverLimit},
                                 [session = session_] { return session->device_count(); });
}

Result<mig::State> MigDevices::read_mig_state(unsigned index) {
  return wait_for_call<mig::State>(gpu_call("reading", index, kDriverLimit), [session = session_, index] {
    return mig::read_mig_state(*session, index);
  });
}

// A GPU that does not answer is left out.
inventory::SnapshotPtr MigDevices::read_gpus() {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  const auto count = wait_for_call<unsigned>({"counting the GPUs", "", kDriverLimit},
                                             [session = session_] { return session->device_count(); });
  for (unsigned index = 0; index < count.value_or(0); ++index) {
    auto gpu = wait_for_call<inventory::Gpu>(
        gpu_call("reading", index, kDriverLimit), [session = session_, root = driver_root_, index] {
          return Result<inventory::Gpu>(inventory::read_gpu(*session, index, {root, "/"}));
        });
    if (gpu) snapshot->gpus.push_back(std::move(*gpu));
  }
  return snapshot;
}

device_plugin::PodResources& MigDevices::pod_resources() {
  if (!pod_resources_) {
    pod_resources_ = dra::with_claimed_devices(
        device_plugin::make_pod_resources(*loop_, device_plugin::start_grpc_thread(), kubelet_socket_),
        [snapshot = read_gpus()] { return snapshot; });
  }
  return *pod_resources_;
}

Result<std::optional<mig::PodsByDevice>> MigDevices::list_device_pods() {
  std::error_code ignored;
  if (!std::filesystem::exists(kubelet_socket_, ignored)) return std::nullopt;
  std::optional<PodsResult> answer;
  pod_resources().list_containers([&](const Containers& containers) {
    answer = to_pods(containers);
    loop_->stop_loop();
  });
  loop_->run_loop();
  if (!*answer) return fail(answer->error());
  return std::move(**answer);
}

Result<MigAttempt> MigDevices::plan_and_apply(unsigned index, const DeviceUuid& gpu, Planner plan,
                                              bool query_pods) {
  // Runs on the driver's thread while this thread runs the loop.
  const auto ask = [loop = loop_, resources = query_pods ? &pod_resources() : nullptr]() -> PodsResult {
    const auto answer = std::make_shared<std::promise<PodsResult>>();
    auto future = answer->get_future();
    loop->post([answer, resources] {
      resources->list_containers(
          [answer](const Containers& containers) { answer->set_value(to_pods(containers)); });
    });
    // The loop stops once the command has given up on this GPU.
    if (future.wait_for(2 * device_plugin::kPodResourcesTimeout) != std::future_status::ready) {
      return fail(Code::kDeadlineExceeded, "the kubelet did not list the Pods in time");
    }
    return future.get();
  };
  const auto work = [=, session = session_, plan = std::move(plan)]() -> Result<MigAttempt> {
    const auto real = mig::make_hardware(session, index, gpu);
    const auto aware = mig::with_pod_holders(*real, ask);
    mig::Hardware& hardware = query_pods ? *aware : *real;
    GPULET_TRY_ASSIGN(const auto state, hardware.read_state());
    MigAttempt attempt;
    GPULET_TRY_ASSIGN(attempt.plan, plan(state));
    if (!attempt.plan.is_blocked() && !attempt.plan.is_noop()) {
      attempt.report = mig::apply_plan(hardware, attempt.plan);
    }
    return attempt;
  };
  return wait_for_call<MigAttempt>(gpu_call("changing", index, agent::kMigLimit), work);
}

namespace {

using Json = nlohmann::ordered_json;

std::string gpu_prefix(const MigGpu& gpu) { return "GPU " + std::to_string(gpu.index) + ": "; }

// "2 × 1g.10gb + 1 × 3g.40gb", and the pending mode as nvidia-smi names it.
std::string current_layout_text(const mig::State& state) {
  std::string text = mig::layout_text(mig::current_layout(state));
  if (state.pending) text += *state.pending ? " (pending: enabled)" : " (pending: disabled)";
  return text;
}

std::string target_text(const MigReport& view, const MigGpu& gpu) {
  const auto& layout = gpu.target->layout;
  if (view.mode_only) return layout.enabled ? "MIG enabled" : "MIG disabled";
  return mig::layout_text(layout);
}

// Without a plan: the reason.
std::string plan_lines(const MigGpu& gpu) {
  if (gpu.unreadable) return gpu_prefix(gpu) + "cannot be read: " + gpu.unreadable->full_message() + "\n";
  if (!gpu.plan) return gpu_prefix(gpu) + "unchanged: not in the config\n";
  std::string lines;
  for (const auto& line : mig::describe_plan(*gpu.plan)) lines += line + "\n";
  return lines;
}

std::string apply_lines(const MigGpu& gpu) {
  if (gpu.failed) return gpu_prefix(gpu) + "failed: " + gpu.failed->full_message() + "\n";
  if (!gpu.report) return plan_lines(gpu);
  // The summary of the plan, which is shorter than its steps.
  if (gpu.report->outcome == mig::Outcome::kDone) {
    return gpu_prefix(gpu) + "done: " + mig::describe_plan(*gpu.plan).front().substr(gpu_prefix(gpu).size()) +
           "\n";
  }
  std::string lines = gpu_prefix(gpu) + mig::describe_report(*gpu.report) + "\n";
  if (gpu.report->outcome == mig::Outcome::kNeedsReset && gpu.report->in_use) {
    lines += gpu_prefix(gpu) + "MIG mode is set and pending: stop what uses the GPU, then apply again\n";
  } else if (gpu.report->outcome == mig::Outcome::kNeedsReset) {
    lines += gpu_prefix(gpu) + "MIG mode is set and needs a reset: `" +
             health::reset_command(std::to_string(gpu.index)) + "` or a reboot, then apply again\n";
  }
  return lines;
}

std::string difference_line(const MigReport& view, const MigGpu& gpu) {
  if (gpu.unreadable) return plan_lines(gpu);
  std::string line = gpu_prefix(gpu) + "has " + current_layout_text(gpu.state) + "; " + view.config +
                     " requires " + target_text(view, gpu);
  // A GPU instance without a compute instance does not show in the layouts.
  if (!view.mode_only && mig::current_layout(gpu.state) == gpu.target->layout && !gpu.state.pending) {
    line += "; " + mig::describe_plan(*gpu.plan).front().substr(gpu_prefix(gpu).size());
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
  return {{"code", code_name(error->code())}, {"message", error->full_message()}};
}

Json json(const mig::Placement& place) { return {{"start", place.start}, {"size", place.size}}; }

Json json(const mig::Plan& plan) {
  Json steps{{"keep", Json::array()},   {"destroyCompute", Json::array()}, {"destroy", Json::array()},
             {"setMode", nullptr},      {"needsReset", plan.needs_reset},  {"createCompute", Json::array()},
             {"create", Json::array()}, {"blockedBy", plan.blocked_by},    {"would", plan.blocked_steps}};
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
  if (known) one["now"] = json(mig::current_layout(gpu.state));
  if (gpu.state.pending) one["pending"] = *gpu.state.pending;
  if (gpu.target) one["wanted"] = json(gpu.target->layout);
  if (gpu.target && !gpu.target->location.empty()) one["place"] = gpu.target->location;
  if (gpu.plan) one["plan"] = json(*gpu.plan);
  if (gpu.report) {
    one["done"] = gpu.report->steps_done;
    one["undone"] = gpu.report->steps_undone;
    one["error"] = json(gpu.report->rollback_error ? gpu.report->rollback_error : gpu.report->error);
  }
  if (gpu.failed || !known) one["error"] = json(known ? gpu.failed : gpu.unreadable);
  return one;
}

}  // namespace

std::string_view outcome(const MigGpu& gpu) {
  if (gpu.unreadable) return "unreadable";
  if (gpu.failed) return "failed";
  if (gpu.report) return mig::outcome_name(gpu.report->outcome);
  if (!gpu.plan) return "not-in-config";
  if (gpu.plan->is_blocked()) return "blocked";
  return gpu.plan->is_noop() ? "nothing-to-do" : "to-do";
}

std::string mig_plan_text(const MigReport& view) {
  std::string text;
  for (const auto& gpu : view.gpus) text += plan_lines(gpu);
  return text;
}

std::string mig_apply_text(const MigReport& view) {
  std::string text, now;
  for (const auto& gpu : view.gpus) {
    text += apply_lines(gpu);
    if (!gpu.unreadable)
      now += "GPU " + std::to_string(gpu.index) + " has " + current_layout_text(gpu.state) + "\n";
  }
  return text + (now.empty() ? "" : "\n") + now;
}

std::string mig_assert_text(const MigReport& view) {
  std::string text;
  for (const auto& gpu : view.gpus) {
    const auto is = outcome(gpu);
    if (is != "not-in-config" && is != "nothing-to-do") text += difference_line(view, gpu);
  }
  return text.empty() ? "every GPU matches " + view.config + "\n" : text;
}

std::string mig_json(const MigReport& view) {
  Json whole{{"config", view.config},
             {"configFile", nullptr},
             {"modeOnly", view.mode_only},
             {"podsKnown", view.pods_known},
             {"gpus", Json::array()}};
  if (!view.file.empty()) whole["configFile"] = view.file;
  for (const auto& gpu : view.gpus) whole["gpus"].push_back(json(gpu));
  return document_text(whole);
}

std::string mig_export_table(const mig::LayoutFile& file, const TableStyle& style) {
  TableRows rows;
  for (const auto& config : file.configs) {
    for (const auto& entry : config.entries) {
      std::vector<std::string> gpus;
      for (const auto index : entry.indices.value_or(std::vector<unsigned>()))
        gpus.push_back(std::to_string(index));
      rows.push_back(
          {config.name, entry.indices ? text::join(gpus, ",") : "all", mig::layout_text(entry.layout)});
    }
  }
  return draw_table({{"CONFIG"}, {"GPUS"}, {"LAYOUT", ColumnUse::kText}}, rows, style);
}

std::string mig_export_json(const mig::LayoutFile& file) {
  Json whole{{"version", "v1"}, {"mig-configs", Json::object()}};
  for (const auto& config : file.configs) {
    Json entries = Json::array();
    for (const auto& entry : config.entries) {
      Json one = Json::object();
      for (const auto& filter : entry.filters) one["device-filter"].push_back(mig::filter_text(filter));
      one["devices"] = entry.indices ? Json(*entry.indices) : Json("all");
      one["mig-enabled"] = entry.layout.enabled;
      one["mig-devices"] = Json::object();
      for (const auto& [profile, count] : entry.layout.devices) one["mig-devices"][profile] = count;
      entries.push_back(std::move(one));
    }
    whole["mig-configs"][config.name] = std::move(entries);
  }
  return document_text(whole);
}

}  // namespace gpulet::cli
