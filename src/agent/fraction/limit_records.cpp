#include "agent/fraction/limit_records.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/fraction/limit_request.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_files.h"
#include "dra/json_object.h"

namespace gpulet::agent {
namespace {

constexpr std::int64_t kLimitRecordVersion = 1;
constexpr std::string_view kLimitRecordSuffix = ".json";
constexpr mode_t kLimitRecordMode = 0600;

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

}  // namespace

std::string limit_record_json(const LimitRecord& record) {
  nlohmann::json limits = nlohmann::json::object();
  for (const auto& [gpu, limit] : record.limits) limits[gpu.str()] = limit.value;
  const nlohmann::json object = {
      {"version", kLimitRecordVersion}, {"id", record.container_id},  {"namespace", record.pod.name_space},
      {"pod", record.pod.name},         {"podUID", record.pod.uid},   {"container", record.container},
      {"cgroup", record.cgroup},        {"limits", std::move(limits)}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<LimitRecord> parse_limit_record(std::string_view text) {
  if (text.size() > kMaxLimitRecordBytes)
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxLimitRecordBytes) +
                                            " bytes, found " + std::to_string(text.size()));
  const auto root = parse_json(text);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const auto object, dra::JsonObject::from_value(root, ""));
  GPULET_TRY(object.reject_unknown_fields(
      {"version", "id", "namespace", "pod", "podUID", "container", "cgroup", "limits"}));
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

std::string LimitRecordStore::path_of(std::string_view container_id) const {
  return directory_ + "/" + std::string(container_id) + std::string(kLimitRecordSuffix);
}

Result<LimitRecordStore::Loaded> LimitRecordStore::load_records() const {
  Loaded loaded;
  std::vector<std::string> names;
  std::error_code error;
  auto it = std::filesystem::directory_iterator(directory_, error);
  if (error == std::errc::no_such_file_or_directory) return loaded;
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (is_temporary_file(name, kLimitRecordSuffix)) {
      ::unlink(it->path().c_str());
    } else if (name.ends_with(kLimitRecordSuffix)) {
      names.push_back(std::move(name));
    }
    if (names.size() > kMaxLimitRecords)
      return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxLimitRecords) + " records",
                  directory_);
  }
  if (error) return fail(errno_error("cannot read the directory", error.value(), directory_));
  std::ranges::sort(names);
  for (const auto& name : names) {
    const std::string path = directory_ + "/" + name;
    const auto text = read_file(path, kMaxLimitRecordBytes);
    auto record = text ? parse_limit_record(*text) : fail(text.error());
    if (record && record->container_id + std::string(kLimitRecordSuffix) != name)
      record = fail(Code::kInvalidArgument, "id: expected the file's name, found " + record->container_id);
    if (record) {
      loaded.records.push_back(std::move(*record));
    } else {
      loaded.errors.emplace_back(record.error().code(), record.error().message(), path);
    }
  }
  return loaded;
}

Status LimitRecordStore::write_record(const LimitRecord& record) const {
  if (!is_container_id(record.container_id))
    return fail(Code::kInvalidArgument,
                "the id of a container is not valid: \"" + record.container_id + "\"");
  return write_file_atomic(path_of(record.container_id), limit_record_json(record), kLimitRecordMode);
}

Status LimitRecordStore::remove_record(std::string_view container_id) const {
  if (!is_container_id(container_id)) return {};
  const std::string path = path_of(container_id);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return fail(errno_error("cannot remove the record of a container's memory limit", errno, path));
}

}  // namespace gpulet::agent
