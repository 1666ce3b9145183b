#include "agent/node_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "base/wall_time.h"
#include "topology/topology.h"

namespace gpulet::agent {
namespace {

using Json = nlohmann::ordered_json;

// A moment of the loop's clock by the wall's, to the second: the two clocks drift by less, and a document in
// which nothing else changed stays the same.
WallTime wall_of(Time at, const health::Clock& clock) {
  return std::chrono::round<std::chrono::seconds>(
      clock.wall - std::chrono::duration_cast<WallTime::duration>(clock.now - at));
}

std::string text_of(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string driver_cuda(unsigned version) {
  if (version == 0) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Memory slices of a GPU with MIG: eight, four for the smaller ones (A30), and more if a driver ever says so.
constexpr unsigned kFewSlices = 4, kSlices = 8;
unsigned slices_of(const inventory::Gpu& gpu) {
  unsigned last = 0;
  for (const auto& device : gpu.mig_devices)
    last = std::max(last, device.placement_start + device.placement_size);
  const bool few = gpu.model.find("A30") != std::string::npos;
  return std::max(last, few ? kFewSlices : kSlices);
}

// The device that an id is a share of: "GPU-…" of "GPU-…::3".
DeviceUuid device_of(const DeviceId& id) { return DeviceUuid(id.str().substr(0, id.str().find("::"))); }

class NodeDocument {
 public:
  explicit NodeDocument(const NodePageInput& input) : input_(input) {
    for (const auto& [resource, ids] : input.offered) {
      for (const auto& id : ids) offered_[device_of(id)].emplace_back(&resource, &id);
    }
    for (const auto& container : input.containers) {
      for (const auto& [resource, ids] : container.devices) {
        for (const auto& id : ids) holders_[device_of(id)].push_back({&container, &resource, &id});
      }
    }
  }

  // The lines of the timeline and of the events become text one by one: as one tree of JSON they would take
  // several times the room of the whole document.
  std::string text() const {
    Json head = {{"name", input_.node_name},    {"version", input_.version}, {"driver", driver()},
                 {"problems", input_.problems}, {"gpus", Json::array()},     {"links", Json::array()}};
    if (input_.snapshot) {
      for (const auto& gpu : input_.snapshot->gpus) head["gpus"].push_back(gpu_object(gpu));
      head["links"] = links();
    }
    std::string text = text_of(head);
    text.pop_back();  // the brace that ends it
    text += ",\"timeline\":[";
    if (input_.moments != nullptr) add_all(text, input_.moments->entries(), moment_object);
    text += "],\"events\":[";
    if (input_.events != nullptr) add_all(text, input_.events->entries(), event_object);
    return text + "],\"config\":" + text_of(input_.config) + "}";
  }

 private:
  struct Holder {
    const kubelet::ContainerDevices* container;
    const ResourceName* resource;
    const DeviceId* id;
  };

  Json driver() const {
    if (!input_.snapshot) return {{"version", ""}, {"cuda", ""}};
    return {{"version", input_.snapshot->driver.version},
            {"cuda", driver_cuda(input_.snapshot->driver.cuda_version)}};
  }

  Json links() const {
    const auto topology = topology::build(*input_.snapshot);
    Json rows = Json::array();
    for (std::size_t a = 0; a < topology.size; ++a) {
      Json row = Json::array();
      for (std::size_t b = 0; b < topology.size; ++b)
        row.push_back(a == b ? "X" : topology::label(topology.between(a, b)));
      rows.push_back(std::move(row));
    }
    return rows;
  }

  const health::DeviceView* view_of(const health::Scope& scope) const {
    return input_.health ? input_.health->find(scope) : nullptr;
  }

  // Before the first judgement, and where nobody judges, what the snapshot says.
  static void put_plain_health(Json& object, const inventory::Health& health) {
    object["state"] = name(health.healthy ? health::State::kHealthy : health::State::kQuarantined);
    object["reason"] = health.reason;
  }

  void put_health(Json& object, const inventory::Gpu& gpu) const {
    const auto* view = view_of({.gpu = gpu.uuid});
    object.update({{"state", nullptr},
                   {"offered", gpu.health.healthy},
                   {"since", nullptr},
                   {"reason", ""},
                   {"comes_back", ""},
                   {"due", nullptr},
                   {"relapses", 0},
                   {"faults", Json::array()}});
    if (view == nullptr) return put_plain_health(object, gpu.health);
    const auto& standing = view->standing;
    const auto& clock = input_.health->at;
    object["state"] = name(standing.state);
    object["offered"] = offered(standing.state);
    object["since"] = unix_milliseconds(wall_of(standing.since, clock));
    object["reason"] = standing.reason;
    object["comes_back"] = standing.comes_back;
    if (standing.due) object["due"] = unix_milliseconds(wall_of(*standing.due, clock));
    object["relapses"] = standing.relapses;
    for (const auto& fault : standing.faults) {
      object["faults"].push_back({{"text", fault.text()},
                                  {"effect", name(fault.effect)},
                                  {"count", fault.count},
                                  {"opened", unix_milliseconds(wall_of(fault.opened, clock))},
                                  {"last", unix_milliseconds(wall_of(fault.last_seen, clock))},
                                  {"detail", fault.detail}});
    }
  }

  Json mig_object(const inventory::Gpu& gpu) const {
    if (!gpu.mig_enabled) return nullptr;
    Json mig = {{"slices", slices_of(gpu)}, {"devices", Json::array()}};
    for (const auto& device : gpu.mig_devices) {
      Json object = {{"index", device.index},         {"uuid", device.uuid.str()},
                     {"profile", device.profile},     {"start", device.placement_start},
                     {"size", device.placement_size}, {"memory", device.memory.value}};
      const auto* view = view_of({gpu.uuid, device.gpu_instance, device.compute_instance});
      if (view != nullptr) {
        object["state"] = name(view->standing.state);
        object["reason"] = view->standing.reason;
      } else {
        put_plain_health(object, device.health);
      }
      mig["devices"].push_back(std::move(object));
    }
    return mig;
  }

  void put_shares(Json& object, const DeviceUuid& device) const {
    const auto found = offered_.find(device);
    if (found == offered_.end()) return;
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
                                   {"namespace", holder.container->name_space},
                                   {"pod", holder.container->pod},
                                   {"container", holder.container->container},
                                   {"resource", holder.resource->str()}});
    }
  }

  Json gpu_object(const inventory::Gpu& gpu) const {
    Json object = {{"index", gpu.index},
                   {"uuid", gpu.uuid.str()},
                   {"model", gpu.model},
                   {"architecture", gpu.architecture},
                   {"slot", gpu.pci.sysfs()},
                   {"numa", nullptr},
                   {"memory", gpu.memory.value},
                   {"nvswitch_links", std::ranges::count(gpu.nvlinks, inventory::NvLinkRemote::kSwitch,
                                                         &inventory::NvLink::kind)}};
    if (gpu.numa_node) object["numa"] = *gpu.numa_node;
    put_health(object, gpu);
    object.update(
        {{"resource", ""}, {"shares", Json::array()}, {"holders", Json::array()}, {"mig", mig_object(gpu)}});
    put_shares(object, gpu.uuid);
    put_holders(object, gpu.uuid);
    for (const auto& device : gpu.mig_devices) put_holders(object, device.uuid);
    return object;
  }

  static Json moment_object(const HealthMoment& moment) {
    return {{"at", unix_milliseconds(moment.at)}, {"uuid", moment.gpu.str()}, {"device", moment.device},
            {"from", name(moment.before)},        {"to", name(moment.after)}, {"reason", moment.reason}};
  }

  static Json event_object(const RecentEvent& event) {
    return {{"at", unix_milliseconds(event.at)},
            {"severity", event.warning ? "warning" : "normal"},
            {"reason", event.reason},
            {"message", event.message}};
  }

  template <class Entries, class Object>
  static void add_all(std::string& text, const Entries& entries, Object object_of) {
    for (const auto& entry : entries) {
      if (text.back() != '[') text += ',';
      text += text_of(object_of(entry));
    }
  }

  const NodePageInput& input_;
  std::map<DeviceUuid, std::vector<std::pair<const ResourceName*, const DeviceId*>>> offered_;
  std::map<DeviceUuid, std::vector<Holder>> holders_;
};

// To a tenth: nobody sees more, and the document is sent each second.
Json tenth(double value) {
  if (!std::isfinite(value)) return nullptr;
  const double rounded = std::round(value * 10) / 10;
  if (rounded == std::floor(rounded) && std::abs(rounded) < 1e15) return static_cast<std::int64_t>(rounded);
  return rounded;
}

// The numbers of a GPU: as the page calls them, and by how much they are more than the field's.
constexpr double kMib = 1024 * 1024;
struct NowNumber {
  const char* key;
  metrics::Field field;
  double factor = 1;
};
constexpr NowNumber kGpuNumbers[] = {{"util", metrics::Field::kGpuUtil},
                                     {"sm", metrics::Field::kSmActive, 100},
                                     {"memory_util", metrics::Field::kMemCopyUtil},
                                     {"memory", metrics::Field::kFbUsed, kMib},
                                     {"temperature", metrics::Field::kGpuTemp},
                                     {"memory_temperature", metrics::Field::kMemoryTemp},
                                     {"power", metrics::Field::kPower},
                                     {"power_limit", metrics::Field::kPowerLimitEnforced},
                                     {"sm_clock", metrics::Field::kSmClock},
                                     {"memory_clock", metrics::Field::kMemoryClock}};
constexpr NowNumber kMigNumbers[] = {{"util", metrics::Field::kGraphicsActive, 100},
                                     {"sm", metrics::Field::kSmActive, 100},
                                     {"memory", metrics::Field::kFbUsed, kMib}};

Json now_object(std::span<const NowNumber> numbers, const metrics::Values& values) {
  Json object = Json::object();
  for (const auto& one : numbers) {
    if (const auto value = number(values, one.field)) object[one.key] = tenth(*value * one.factor);
  }
  return object;
}

Json pods_of(const metrics::Shares& shares) {
  Json pods = Json::array();
  for (const auto& use : shares.pods) {
    Json pod = {{"namespace", use.holder.pod.name_space},
                {"pod", use.holder.pod.name},
                {"containers", use.holder.containers},
                {"shares", use.holder.shares.size()}};
    if (shares.known) pod["memory"] = use.memory.value;
    if (shares.known && shares.busy_known) pod["busy"] = tenth(use.busy);
    pods.push_back(std::move(pod));
  }
  return pods;
}

Json processes_of(const std::vector<metrics::ProcessSample>& samples, const metrics::PodOfProcess& pods) {
  Json processes = Json::array();
  for (const auto& sample : samples) {
    Json process = {{"pid", sample.pid}, {"name", sample.name}};
    if (sample.memory) process["memory"] = sample.memory->value;
    process["sm"] = tenth(sample.sm);
    if (const auto pod = pods.find(sample.pid); pod != pods.end()) {
      process["namespace"] = pod->second.name_space;
      process["pod"] = pod->second.name;
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace

HealthMoment moment_of(const health::Change& change, const health::View& view) {
  const auto* device = view.find(change.device);
  return {.at = wall_of(change.after.since, view.at),
          .gpu = change.device.gpu,
          .device = device != nullptr ? health::describe(*device) : "GPU " + change.device.gpu.str(),
          .before = change.before.state,
          .after = change.after.state,
          .reason = change.after.reason};
}

std::string node_document(const NodePageInput& input) { return NodeDocument(input).text(); }

std::set<metrics::Field> now_fields() {
  std::set<metrics::Field> fields;
  for (const auto& one : kGpuNumbers) fields.insert(one.field);
  for (const auto& one : kMigNumbers) fields.insert(one.field);
  return fields;
}

std::string now_document(const metrics::Sample& sample, WallTime at) {
  Json document = {{"at", unix_milliseconds(at)}, {"gpus", Json::object()}};
  Json mig = Json::object();
  for (const auto& gpu : sample.gpus) {
    if (gpu.failed) continue;
    document["gpus"][gpu.uuid.str()] = now_object(kGpuNumbers, gpu.values);
    for (const auto& instance : gpu.instances) {
      for (const auto& device : instance.devices)
        mig[device.uuid.str()] = now_object(kMigNumbers, instance.values);
    }
  }
  if (!mig.empty()) document["mig"] = std::move(mig);
  return text_of(document);
}

std::string use_document(const metrics::Sample& sample, const std::map<DeviceUuid, metrics::Shares>& devices,
                         const metrics::PodOfProcess& pods, WallTime at) {
  Json document = {{"at", unix_milliseconds(at)}, {"devices", Json::object()}};
  const auto add = [&](const DeviceUuid& uuid, const std::vector<metrics::ProcessSample>& processes) {
    const auto shares = devices.find(uuid);
    const bool held = shares != devices.end() && !shares->second.pods.empty();
    if (!held && processes.empty()) return;
    Json device = Json::object();
    device["pods"] = held ? pods_of(shares->second) : Json::array();
    if (shares != devices.end()) {
      device["rest"] = {{"memory", shares->second.rest_memory.value},
                        {"busy", tenth(shares->second.rest_busy)}};
    }
    device["processes"] = processes_of(processes, pods);
    document["devices"][uuid.str()] = std::move(device);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.failed) continue;
    if (!gpu.mig) add(gpu.uuid, gpu.processes);
    for (const auto& instance : gpu.instances) {
      for (const auto& device : instance.devices) add(device.uuid, device.processes);
    }
  }
  return text_of(document);
}

}  // namespace gpulet::agent
