#include "agent/fraction/limit_records.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "agent/fraction/limit_request.h"
#include "base/json.h"
#include "base/text.h"
#include "dra/json_object.h"

namespace gpulet::agent {
namespace {

constexpr std::int64_t kLimitRecordVersion = 1;

Result<std::map<DeviceUuid, Bytes>> read_limits(const dra::JsonObject& record) {
  std::map<DeviceUuid, Bytes> limits;
  GPULET_TRY_ASSIGN(const auto object, record.optional_object("limits"));
  if (!object || object->value().empty() || object->value().size() > kMaxLimitedGpus)
    return fail(Code::kInvalidArgument, "limits: expected 1 to " + std::to_string(kMaxLimitedGpus) + " GPUs");
  for (const auto& item : object->value().items()) {
    if (!item.value().is_number_unsigned())
      return fail(dra::wrong_type(object->field_path(item.key()), "a number of bytes", item.value()));
    limits[DeviceUuid(item.key())] = Bytes{item.value().get<std::uint64_t>()};
  }
  return limits;
}

// Absent where the Pod's cgroup has no limit.
Status read_pod_level(const dra::JsonObject& object, LimitRecord& record) {
  GPULET_TRY_ASSIGN(const auto pod_cgroup, object.optional_text("podCgroup"));
  if (!pod_cgroup) return {};
  if (!text::starts_with(*pod_cgroup, "/"))
    return fail(Code::kInvalidArgument,
                "podCgroup: expected an absolute path, found \"" + *pod_cgroup + "\"");
  record.pod_cgroup = *pod_cgroup;
  GPULET_TRY_ASSIGN(const auto gpus, object.required_text("podGPUs"));
  for (const auto& gpu : text::split(gpus, ',')) {
    if (!record.limits.contains(DeviceUuid(gpu)))
      return fail(Code::kInvalidArgument, "podGPUs: expected GPUs of limits, found \"" + gpu + "\"");
    record.pod_gpus.insert(DeviceUuid(gpu));
  }
  return {};
}

}  // namespace

std::string limit_record_json(const LimitRecord& record) {
  nlohmann::json limits = nlohmann::json::object();
  for (const auto& [gpu, limit] : record.limits) limits[gpu.str()] = limit.value;
  nlohmann::json object = {
      {"version", kLimitRecordVersion}, {"id", record.container_id},  {"namespace", record.pod.name_space},
      {"pod", record.pod.name},         {"podUID", record.pod.uid},   {"container", record.container},
      {"cgroup", record.cgroup},        {"limits", std::move(limits)}};
  if (!record.pod_cgroup.empty()) {
    std::vector<std::string> gpus;
    for (const auto& gpu : record.pod_gpus) gpus.push_back(gpu.str());
    object["podCgroup"] = record.pod_cgroup;
    object["podGPUs"] = text::join(gpus, ",");
  }
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<LimitRecord> parse_limit_record(std::string_view text) {
  if (text.size() > kMaxLimitRecordBytes)
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxLimitRecordBytes) +
                                            " bytes, found " + std::to_string(text.size()));
  const auto root = parse_json(text);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const auto object, dra::JsonObject::from_value(root, ""));
  GPULET_TRY(object.reject_unknown_fields({"version", "id", "namespace", "pod", "podUID", "container",
                                           "cgroup", "limits", "podCgroup", "podGPUs"}));
  GPULET_TRY_ASSIGN(const auto version, object.optional_integer("version"));
  if (version != kLimitRecordVersion)
    return fail(Code::kInvalidArgument,
                "version: expected 1, found " + (version ? std::to_string(*version) : std::string("none")));
  LimitRecord record;
  GPULET_TRY_ASSIGN(record.container_id, object.required_text("id"));
  if (!is_container_id(record.container_id))
    return fail(Code::kInvalidArgument, "id: expected 64 hexadecimal digits");
  GPULET_TRY_ASSIGN(record.pod.name_space, object.required_text("namespace"));
  GPULET_TRY_ASSIGN(record.pod.name, object.required_text("pod"));
  GPULET_TRY_ASSIGN(record.pod.uid, object.required_text("podUID"));
  GPULET_TRY_ASSIGN(record.container, object.required_text("container"));
  GPULET_TRY_ASSIGN(record.cgroup, object.required_text("cgroup"));
  if (record.cgroup.front() != '/')
    return fail(Code::kInvalidArgument, "cgroup: expected an absolute path, found \"" + record.cgroup + "\"");
  GPULET_TRY_ASSIGN(record.limits, read_limits(object));
  GPULET_TRY(read_pod_level(object, record));
  return record;
}

Status LimitRecordStore::move_records(const LimitRecordStore& to) const {
  GPULET_TRY_ASSIGN(const Loaded loaded, load_records());
  for (const auto& record : loaded.records) {
    GPULET_TRY(to.write_record(record));
    GPULET_TRY(remove_record(record.container_id));
  }
  return {};
}

Result<LimitRecordStore::Loaded> LimitRecordStore::load_records() const {
  Loaded loaded;
  GPULET_TRY_ASSIGN(loaded.errors,
                    files_.read_files(kMaxLimitRecords, kMaxLimitRecordBytes,
                                      [&](const std::string& id, std::string_view text) -> Status {
                                        GPULET_TRY_ASSIGN(auto record, parse_limit_record(text));
                                        if (record.container_id != id)
                                          return fail(
                                              Code::kInvalidArgument,
                                              "id: expected the file's name, found " + record.container_id);
                                        loaded.records.push_back(std::move(record));
                                        return {};
                                      }));
  return loaded;
}

Status LimitRecordStore::write_record(const LimitRecord& record) const {
  if (!is_container_id(record.container_id))
    return fail(Code::kInvalidArgument,
                "the id of a container is not valid: \"" + record.container_id + "\"");
  return files_.write_file(record.container_id, limit_record_json(record));
}

Status LimitRecordStore::remove_record(std::string_view container_id) const {
  if (!is_container_id(container_id)) return {};
  return files_.remove_file(container_id);
}

}  // namespace gpulet::agent
