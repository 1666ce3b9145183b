#include "agent/observe/page_json.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/observe/link_status.h"
#include "agent/observe/sample_json.h"
#include "base/cuda_version.h"
#include "base/device_id.h"
#include "base/text.h"
#include "mig/device_holders.h"
#include "topology/topology.h"

namespace gpulet::agent {
namespace {

using Json = nlohmann::ordered_json;

std::string dump_json(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Memory slices of a GPU with MIG: eight, four for an A30, or more if a device uses higher ones.
constexpr unsigned kFewSlices = 4, kSlices = 8;
unsigned memory_slices(const inventory::Gpu& gpu) {
  unsigned last = 0;
  for (const auto& device : gpu.mig_devices)
    last = std::max(last, device.placement_start + device.placement_size);
  return std::max(last, gpu.model.find("A30") != std::string::npos ? kFewSlices : kSlices);
}

void hide_process_names(Json& value) {
  if (auto* const text = value.get_ptr<std::string*>()) *text = mig::without_process_names(*text);
  if (!value.is_structured()) return;
  for (auto& part : value) hide_process_names(part);
}

class NodeDocument {
 public:
  NodeDocument(const NodePageInput& input, ProcessNames names) : input_(input), names_(names) {
    for (const auto& [resource, ids] : input.devices) {
      for (const auto& id : ids) shares_[uuid_of_device(id)].emplace_back(&resource, &id);
    }
    for (const auto& container : input.containers) {
      for (const auto& [resource, ids] : container.devices) {
        for (const auto& id : ids) holders_[uuid_of_device(id)].push_back({&container, &resource, &id});
      }
    }
  }

  // Timeline and events become text line by line: one JSON tree would take several times the memory of the
  // whole document.
  std::string json_text() const {
    Json head = {{"name", input_.node_name},    {"version", input_.version}, {"driver", driver_json()},
                 {"problems", input_.problems}, {"gpus", Json::array()},     {"links", Json::array()}};
    if (input_.snapshot) {
      for (const auto& gpu : input_.snapshot->gpus) head["gpus"].push_back(gpu_json(gpu));
      head["links"] = links_json();
    }
    if (!input_.claims.is_empty()) head["claims"] = claim_status_json(input_.claims);
    if (input_.memory_limit) head["memory_limit"] = limit_status_json(*input_.memory_limit);
    if (!input_.cut_off.empty()) head["cut_off"] = input_.cut_off;
    if (!input_.power.empty()) head["power"] = power_status_json(input_.power);
    std::string text = dump_shown(std::move(head));
    text.pop_back();  // the brace that ends it
    text += ",\"timeline\":[";
    if (input_.moments != nullptr) append_entries(text, input_.moments->entries(), moment_json);
    text += "],\"events\":[";
    if (input_.events != nullptr) append_entries(text, input_.events->entries(), event_json);
    return text + "],\"config\":" + dump_json(input_.config) + "}";
  }

 private:
  struct Holder {
    const ContainerDevices* container;
    const ResourceName* resource;
    const DeviceId* id;
  };

  Json driver_json() const {
    if (!input_.snapshot) return {{"version", ""}, {"cuda", ""}};
    const auto& driver = input_.snapshot->driver;
    return {{"version", driver.version},
            {"cuda", driver.cuda_version == 0 ? std::string() : cuda_version_text(driver.cuda_version)}};
  }

  Json links_json() const {
    const auto topology = topology::build_topology(*input_.snapshot);
    Json rows = Json::array();
    for (std::size_t a = 0; a < topology.size; ++a) {
      Json row = Json::array();
      for (std::size_t b = 0; b < topology.size; ++b)
        row.push_back(a == b ? "X" : topology::pair_label(topology.pair_between(a, b)));
      rows.push_back(std::move(row));
    }
    return rows;
  }

  const health::DeviceView* find_view(const health::Scope& scope) const {
    return input_.health ? input_.health->find(scope) : nullptr;
  }

  // The health in the snapshot, if there is no view of the device.
  static void put_plain_health(Json& object, const inventory::Health& health) {
    object["state"] =
        enum_name(health.healthy ? health::DeviceState::kHealthy : health::DeviceState::kQuarantined);
    object["reason"] = health.reason;
  }

  void put_health(Json& object, const inventory::Gpu& gpu) const {
    const auto* view = find_view({.gpu = gpu.uuid});
    object.update({{"state", nullptr},
                   {"offered", gpu.health.healthy},
                   {"since", nullptr},
                   {"reason", ""},
                   {"comes_back", ""},
                   {"due", nullptr},
                   {"relapses", 0},
                   {"faults", Json::array()},
                   {"unread", nullptr}});
    if (view == nullptr) return put_plain_health(object, gpu.health);
    const auto& standing = view->status;
    const auto& clock = input_.health->at;
    object["state"] = enum_name(standing.state);
    object["offered"] = is_offered(*view);
    object["since"] = unix_milliseconds(to_wall_time(standing.since, clock));
    object["reason"] = standing.reason;
    object["comes_back"] = standing.recovery_text;
    if (standing.due) object["due"] = unix_milliseconds(to_wall_time(*standing.due, clock));
    object["relapses"] = standing.relapses;
    for (const auto& fault : standing.faults) {
      object["faults"].push_back({{"class", health::fault_rule(fault.fault_class).name},
                                  {"text", fault.fault_text()},
                                  {"effect", enum_name(fault.effect)},
                                  {"count", fault.count},
                                  {"opened", unix_milliseconds(to_wall_time(fault.opened, clock))},
                                  {"last", unix_milliseconds(to_wall_time(fault.last_seen, clock))},
                                  {"detail", fault.detail}});
    }
    put_link_status(object, gpu, *view, *input_.snapshot);
    object["unread"] = Json::array();
    for (const auto& source : view->unavailable_sources)
      object["unread"].push_back({{"source", enum_name(source.source)}, {"reason", source.reason}});
  }

  Json mig_json(const inventory::Gpu& gpu) const {
    if (!gpu.mig_enabled) return nullptr;
    Json mig = {{"slices", memory_slices(gpu)}, {"devices", Json::array()}};
    for (const auto& device : gpu.mig_devices) {
      Json object = {{"index", device.index},         {"uuid", device.uuid.str()},
                     {"profile", device.profile},     {"start", device.placement_start},
                     {"size", device.placement_size}, {"memory", device.memory.value}};
      const auto* view = find_view({gpu.uuid, device.gpu_instance, device.compute_instance});
      if (view != nullptr) {
        object["state"] = enum_name(view->status.state);
        object["reason"] = view->status.reason;
      } else {
        put_plain_health(object, device.health);
      }
      mig["devices"].push_back(std::move(object));
    }
    return mig;
  }

  void put_shares(Json& object, const DeviceUuid& device) const {
    const auto found = shares_.find(device);
    if (found == shares_.end()) return;
    for (const auto& [resource, id] : found->second) {
      object["resource"] = resource->str();
      object["shares"].push_back(id->str());
    }
  }

  void put_holders(Json& object, const DeviceUuid& device) const {
    const auto found = holders_.find(device);
    if (found == holders_.end()) return;
    for (const auto& holder : found->second) {
      object["holders"].push_back({{"device", holder.id->str()},
                                   {"uuid", device.str()},
                                   {"namespace", holder.container->pod.name_space},
                                   {"pod", holder.container->pod.name},
                                   {"container", holder.container->container},
                                   {"resource", holder.resource->str()}});
    }
  }

  Json gpu_json(const inventory::Gpu& gpu) const {
    Json object = {{"index", gpu.index},
                   {"uuid", gpu.uuid.str()},
                   {"model", gpu.model},
                   {"architecture", gpu.architecture},
                   {"slot", gpu.pci.sysfs_text()},
                   {"numa", nullptr},
                   {"memory", gpu.memory.value},
                   {"nvswitch_links", std::ranges::count(gpu.nvlinks, inventory::NvLinkRemote::kSwitch,
                                                         &inventory::NvLink::kind)},
                   {"fabric", false},
                   {"mig_pending", nullptr}};
    if (gpu.numa_node) object["numa"] = *gpu.numa_node;
    if (gpu.mig_pending) object["mig_pending"] = *gpu.mig_pending;
    put_health(object, gpu);
    if (!gpu.excluded.empty()) object.update({{"offered", false}, {"excluded", gpu.excluded}});
    if (const auto* view = find_view({.gpu = gpu.uuid}); view != nullptr && !view->preflight.empty()) {
      object["preflight"] = {{"result", view->preflight}, {"detail", view->preflight_detail}};
      if (view->status.reason.empty()) object["reason"] = waiting_text(*view);
    }
    object.update(
        {{"resource", ""}, {"shares", Json::array()}, {"holders", Json::array()}, {"mig", mig_json(gpu)}});
    put_shares(object, gpu.uuid);
    put_holders(object, gpu.uuid);
    for (const auto& device : gpu.mig_devices) put_holders(object, device.uuid);
    put_processes_outside_pods(object, gpu.uuid);
    return object;
  }

  void put_processes_outside_pods(Json& object, const DeviceUuid& gpu) const {
    const auto found = input_.outside_pods.find(gpu);
    if (found == input_.outside_pods.end()) return;
    for (const auto& process : found->second) {
      Json one = {{"pid", process.pid}, {"memory", process.memory->value}};
      if (names_ == ProcessNames::kShown) one["name"] = process.name;
      object["outside_pods"].push_back(std::move(one));
    }
  }

  static Json moment_json(const HealthMoment& moment) {
    return {{"at", unix_milliseconds(moment.at)}, {"uuid", moment.gpu.str()},      {"device", moment.device},
            {"from", enum_name(moment.before)},   {"to", enum_name(moment.after)}, {"reason", moment.reason}};
  }

  static Json event_json(const RecentEvent& event) {
    return {{"at", unix_milliseconds(event.at)},
            {"severity", event.warning ? "warning" : "normal"},
            {"reason", event.reason},
            {"message", event.message}};
  }

  template <class Entries, class Object>
  void append_entries(std::string& text, const Entries& entries, Object object_of) const {
    for (const auto& entry : entries) {
      if (text.back() != '[') text += ',';
      text += dump_shown(object_of(entry));
    }
  }

  std::string dump_shown(Json part) const {
    if (names_ == ProcessNames::kHidden) hide_process_names(part);
    return dump_json(part);
  }

  const NodePageInput& input_;
  ProcessNames names_;
  std::map<DeviceUuid, std::vector<std::pair<const ResourceName*, const DeviceId*>>> shares_;
  std::map<DeviceUuid, std::vector<Holder>> holders_;
};

// One decimal is all that is displayed, and the document is sent each second.
Json round_to_tenth(double value) {
  if (!std::isfinite(value)) return nullptr;
  const double rounded = std::round(value * 10) / 10;
  if (rounded == std::floor(rounded) && std::abs(rounded) < 1e15) return static_cast<std::int64_t>(rounded);
  return rounded;
}

Json pods_json(const metrics::PodShares& shares) {
  Json pods = Json::array();
  for (const auto& use : shares.pods) {
    Json pod = {{"namespace", use.holder.pod.name_space},
                {"pod", use.holder.pod.name},
                {"containers", use.holder.containers},
                {"shares", use.holder.shares.size()}};
    if (shares.is_known) pod["memory"] = use.memory.value;
    if (shares.is_known && shares.is_busy_known) pod["busy"] = round_to_tenth(use.busy);
    pods.push_back(std::move(pod));
  }
  return pods;
}

Json processes_json(const std::vector<metrics::ProcessSample>& samples,
                    std::span<const metrics::PodShare> shares, const metrics::PodByPid& pods,
                    ProcessNames names) {
  Json processes = Json::array();
  for (const auto& sample : samples) {
    Json process = {{"pid", sample.pid}};
    if (names == ProcessNames::kShown) process["name"] = sample.name;
    if (sample.memory) process["memory"] = sample.memory->value;
    process["sm"] = round_to_tenth(sample.sm);
    if (const auto pod = metrics::pod_of_process(sample, shares, pods)) {
      process["namespace"] = pod->name_space;
      process["pod"] = pod->name;
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace

HealthMoment health_moment(const health::StatusChange& change, const health::HealthView& view) {
  const auto* device = view.find(change.device);
  return {.at = to_wall_time(change.after.since, view.at),
          .gpu = change.device.gpu,
          .device = device != nullptr ? health::describe_device(*device) : "GPU " + change.device.gpu.str(),
          .before = change.before.state,
          .after = change.after.state,
          .reason = change.after.reason};
}

std::string node_json(const NodePageInput& input, ProcessNames names) {
  return NodeDocument(input, names).json_text();
}

std::string use_json(const metrics::Sample& sample, const std::map<DeviceUuid, metrics::PodShares>& devices,
                     const metrics::PodByPid& pods, WallTime at, ProcessNames names) {
  Json document = {{"at", unix_milliseconds(at)}, {"devices", Json::object()}};
  const auto add = [&](const DeviceUuid& uuid, const std::vector<metrics::ProcessSample>& processes) {
    const auto shares = devices.find(uuid);
    const bool held = shares != devices.end() && !shares->second.pods.empty();
    if (!held && processes.empty()) return;
    Json device = Json::object();
    device["pods"] = held ? pods_json(shares->second) : Json::array();
    if (shares != devices.end()) {
      device["rest"] = {{"memory", shares->second.unattributed_memory.value},
                        {"busy", round_to_tenth(shares->second.unattributed_busy)}};
    }
    device["processes"] = processes_json(
        processes, held ? std::span(shares->second.pods) : std::span<const metrics::PodShare>(), pods, names);
    document["devices"][uuid.str()] = std::move(device);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    if (!gpu.mig) add(gpu.uuid, gpu.processes);
    for (const auto& instance : gpu.instances) {
      for (const auto& device : instance.devices) add(device.uuid, device.processes);
    }
  }
  return dump_json(document);
}

namespace {

// Memory in whole steps, so that only a real change is a new document; busy time is not part of it.
std::map<DeviceUuid, std::vector<metrics::ProcessSample>> find_processes_outside_pods(
    const metrics::Sample& sample) {
  std::map<DeviceUuid, std::vector<metrics::ProcessSample>> found;
  for (const auto& gpu : sample.gpus) {
    for (auto& process : processes_outside_pods(gpu)) {
      process.memory->value -= process.memory->value % metrics::kWorkMemory.value;
      process.sm = 0;
      found[gpu.uuid].push_back(std::move(process));
    }
  }
  return found;
}

}  // namespace

WallTime to_wall_time(Time at, const health::ClockPair& clock) {
  return std::chrono::round<std::chrono::seconds>(
      clock.wall - std::chrono::duration_cast<WallTime::duration>(clock.now - at));
}

PageState::PageState(std::string node_name, std::string version) {
  input_.node_name = std::move(node_name);
  input_.version = std::move(version);
  input_.moments = &moments_;
  input_.events = &events_;
}

template <class Value>
void PageState::assign_if_changed(Value& mine, Value now) {
  if (mine == now) return;
  mine = std::move(now);
  changed_ = true;
}

void PageState::set_snapshot(inventory::SnapshotPtr snapshot) {
  assign_if_changed(input_.snapshot, std::move(snapshot));
}
void PageState::set_problems(std::vector<std::string> problems) {
  assign_if_changed(input_.problems, std::move(problems));
}
void PageState::set_devices(device_plugin::DevicesByResource offered) {
  assign_if_changed(input_.devices, std::move(offered));
}
void PageState::set_containers(std::vector<ContainerDevices> containers) {
  assign_if_changed(input_.containers, std::move(containers));
}
void PageState::set_claims(ClaimStatus claims) { assign_if_changed(input_.claims, std::move(claims)); }
void PageState::set_memory_limit(std::optional<MemoryLimitStatus> status) {
  assign_if_changed(input_.memory_limit, std::move(status));
}
void PageState::set_cut_off(std::vector<std::string> containers) {
  assign_if_changed(input_.cut_off, std::move(containers));
}
void PageState::set_power(std::vector<GpuPowerStatus> statuses) {
  assign_if_changed(input_.power, std::move(statuses));
}
void PageState::set_config_text(std::string text) { assign_if_changed(input_.config, std::move(text)); }

void PageState::record_health(health::HealthViewPtr view, const std::vector<health::StatusChange>& changes) {
  for (const auto& change : changes) {
    if (change.before.state != change.after.state) moments_.add_entry(health_moment(change, *view));
  }
  assign_if_changed(input_.health, std::move(view));
}

void PageState::record_event(bool warning, std::string reason, std::string message, WallTime at) {
  events_.add_entry({at, warning, std::move(reason), std::move(message)});
  changed_ = true;
}

void PageState::set_sample(const metrics::Aggregator& meter, WallTime at) {
  now_ = now_json(meter.last_sample(), at);
  const auto usage = [&](ProcessNames names) {
    return use_json(meter.last_sample(), meter.attribution().devices, meter.pods_by_pid(), at, names);
  };
  use_ = usage(ProcessNames::kShown);
  public_use_ = usage(ProcessNames::kHidden);
  if (trends_.add_sample(meter.last_sample(), at) || trends_json_.empty())
    trends_json_ = trends_.trends_json(at);
  assign_if_changed(input_.outside_pods, find_processes_outside_pods(meter.last_sample()));
}

void PageState::write_pages(web::Pages& pages) {
  if (std::exchange(changed_, false)) {
    node_ = node_json(input_);
    node_.shrink_to_fit();  // it stays in memory; growing has doubled its capacity
    public_node_ = node_json(input_, ProcessNames::kHidden);
    public_node_.shrink_to_fit();
  }
  pages.node = node_;
  pages.now = now_;
  pages.use = use_;
  pages.public_node = public_node_;
  pages.public_use = public_use_;
  pages.trends = trends_json_;
  pages.usage = usage_;
}

}  // namespace gpulet::agent
