#include "health/report.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/wall_time.h"
#include "health/remedies.h"

namespace gpulet::health {
namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kVersion = 1;
constexpr std::size_t kMostFaults = kMaxFaults + kFaultClasses;

Json instance(std::uint32_t id) { return id == kNoInstance ? Json() : Json(id); }

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

class Writer {
 public:
  explicit Writer(const Clock& at) : at_(at) {}

  Json device(const DeviceView& device) const {
    const auto& standing = device.standing;
    Json json{{"name", describe(device)},
              {"uuid", device.uuid.str()},
              {"gpu", device.scope.gpu.str()},
              {"gpuInstance", instance(device.scope.gpu_instance)},
              {"computeInstance", instance(device.scope.compute_instance)},
              {"index", or_null(device.gpu_index)},
              {"migIndex", or_null(device.mig_index)},
              {"model", device.model},
              {"slot", device.slot},
              {"state", name(standing.state)},
              {"offered", offered(standing.state)},
              {"since", time(standing.since)},
              {"reason", standing.reason},
              {"comesBack", standing.comes_back},
              {"due", time(standing.due)},
              {"relapses", standing.relapses},
              {"next", what_next(device)},
              {"faults", Json::array()},
              {"absences", Json::array()}};
    for (const auto& one : standing.faults) json["faults"].push_back(fault(one, device));
    for (const auto& absence : device.absences)
      json["absences"].push_back({{"source", name(absence.source)}, {"why", absence.why}});
    return json;
  }

 private:
  std::string time(Time time) const {
    return wall_text(at_.wall - std::chrono::duration_cast<WallTime::duration>(at_.now - time));
  }
  Json time(const std::optional<Time>& moment) const { return moment ? Json(time(*moment)) : Json(); }

  Json fault(const Fault& fault, const DeviceView& device) const {
    return {{"class", rule_of(fault.fault_class).name},
            {"code", fault.code},
            {"gpuInstance", instance(fault.scope.gpu_instance)},
            {"computeInstance", instance(fault.scope.compute_instance)},
            {"effect", name(fault.effect)},
            {"opened", time(fault.opened)},
            {"lastSeen", time(fault.last_seen)},
            {"count", fault.count},
            {"detail", fault.detail},
            {"linked", fault.linked},
            {"proved", time(fault.proved)},
            {"due", time(fault.due)},
            {"text", fault.text()},
            {"next", remedy(fault, device)}};
  }

  const Clock& at_;
};

// The members of one object. The first that is wrong is told, with its place: "devices[3].state".
class Members {
 public:
  Members(const Json& object, std::string place, std::string& wrong)
      : object_(object), place_(std::move(place)), wrong_(wrong) {
    if (!object.is_object()) refuse({}, "is no object");
  }

  std::string text(const char* name) {
    const auto& value = member(name);
    if (value.is_string()) return value.get<std::string>();
    refuse(name, "is no text");
    return {};
  }
  std::uint64_t number(const char* name, std::uint64_t most) {
    const auto& value = member(name);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= most) return value.get<std::uint64_t>();
    refuse(name, "is no number up to " + std::to_string(most));
    return 0;
  }
  std::optional<unsigned> index(const char* name) {
    if (member(name).is_null()) return std::nullopt;
    return static_cast<unsigned>(number(name, kNoInstance - 1));
  }
  bool flag(const char* name) {
    const auto& value = member(name);
    if (!value.is_boolean()) refuse(name, "is neither true nor false");
    return value.is_boolean() && value.get<bool>();
  }
  WallTime wall(const char* name) {
    const auto wall = parse_wall_text(text(name));
    if (!wall) refuse(name, "is no time");
    return wall.value_or(WallTime());
  }
  Time time(const char* name) { return Time(wall(name).time_since_epoch()); }
  std::optional<Time> maybe_time(const char* name) {
    if (member(name).is_null()) return std::nullopt;
    return time(name);
  }
  Scope scope(const DeviceUuid& gpu) {
    return normal(
        {gpu, index("gpuInstance").value_or(kNoInstance), index("computeInstance").value_or(kNoInstance)});
  }
  // The value that has that name among all of them.
  template <class T, class Named>
  T named(const char* name, const Named& values) {
    const auto wanted = text(name);
    for (const T value : values) {
      if (gpulet::health::name(value) == wanted) return value;
    }
    refuse(name, "is nothing that is known");
    return {};
  }
  template <class Visit>
  void each(const char* name, std::size_t most, const Visit& visit) {
    const auto& list = member(name);
    if (!list.is_array()) return refuse(name, "is no list");
    if (list.size() > most) return refuse(name, "has more than " + std::to_string(most) + " entries");
    for (std::size_t i = 0; i < list.size() && wrong_.empty(); ++i) {
      visit(Members(list[i], at(name) + "[" + std::to_string(i) + "]", wrong_));
    }
  }
  void refuse(const std::string& name, const std::string& why) {
    if (wrong_.empty()) wrong_ = (name.empty() && place_.empty() ? "the whole" : at(name)) + " " + why;
  }

 private:
  const Json& member(const char* name) const {
    static const Json none;
    if (!object_.is_object()) return none;
    const auto found = object_.find(name);
    return found == object_.end() ? none : *found;
  }
  std::string at(const std::string& name) const {
    return place_.empty() || name.empty() ? place_ + name : place_ + "." + name;
  }

  const Json& object_;
  std::string place_;
  std::string& wrong_;
};

std::array<Source, kSourceCount> all_sources() {
  std::array<Source, kSourceCount> sources{};
  for (std::size_t i = 0; i < kSourceCount; ++i) sources[i] = static_cast<Source>(i);
  return sources;
}
constexpr Effect kEffects[] = {Effect::kIgnore, Effect::kFlag, Effect::kDrain, Effect::kQuarantine,
                               Effect::kLose};

Fault fault_of(Members members, const DeviceUuid& gpu) {
  Fault fault;
  const auto fault_class = parse_fault_class(members.text("class"));
  if (!fault_class) members.refuse("class", "is nothing that is known");
  fault.fault_class = fault_class.value_or(FaultClass::kXidUnknown);
  fault.code = members.number("code", ~0ull);
  fault.scope = members.scope(gpu);
  fault.effect = members.named<Effect>("effect", kEffects);
  fault.opened = members.time("opened");
  fault.last_seen = members.time("lastSeen");
  fault.count = members.number("count", ~0ull);
  fault.detail = members.text("detail");
  fault.linked = members.flag("linked");
  fault.proved = members.maybe_time("proved");
  fault.due = members.maybe_time("due");
  return fault;
}

DeviceView device_of(Members members) {
  DeviceView device;
  device.uuid = DeviceUuid(members.text("uuid"));
  device.scope = members.scope(DeviceUuid(members.text("gpu")));
  device.gpu_index = members.index("index");
  device.mig_index = members.index("migIndex");
  device.model = members.text("model");
  device.slot = members.text("slot");
  auto& standing = device.standing;
  standing.state = members.named<State>("state", kStates);
  standing.since = members.time("since");
  standing.reason = members.text("reason");
  standing.comes_back = members.text("comesBack");
  standing.due = members.maybe_time("due");
  standing.relapses = static_cast<unsigned>(members.number("relapses", kMostRelapses));
  members.each("faults", kMostFaults,
               [&](Members one) { standing.faults.push_back(fault_of(std::move(one), device.scope.gpu)); });
  members.each("absences", kSourceCount, [&](Members one) {
    device.absences.push_back({one.named<Source>("source", all_sources()), one.text("why")});
  });
  return device;
}

}  // namespace

std::string format_report(const View& view) {
  Json json{{"version", kVersion}, {"at", wall_text(view.at.wall)}, {"devices", Json::array()}};
  const Writer writer(view.at);
  for (const auto& device : view.devices) json["devices"].push_back(writer.device(device));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<View> parse_report(std::string_view text) {
  const auto json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(Code::kInvalidArgument, "is no JSON: cut off, or damaged");
  std::string wrong;
  Members members(json, {}, wrong);
  View view;
  const auto version = members.number("version", ~0ull);
  if (wrong.empty() && version != kVersion) {
    return fail(Code::kInvalidArgument, "is of another version of gpulet: it has version " +
                                            std::to_string(version) + ", and this program reads " +
                                            std::to_string(kVersion));
  }
  view.at.wall = members.wall("at");
  view.at.now = Time(view.at.wall.time_since_epoch());
  members.each("devices", kMaxReportDevices,
               [&](Members one) { view.devices.push_back(device_of(std::move(one))); });
  if (!wrong.empty()) return fail(Code::kInvalidArgument, "is no report of gpulet's health: " + wrong);
  return view;
}

Result<View> read_report(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto text, read_file(path, kMaxReportBytes));
  auto view = parse_report(text);
  if (!view) return fail(Error(view.error().code(), view.error().message(), path));
  return view;
}

}  // namespace gpulet::health
