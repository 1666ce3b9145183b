#include "dra/claim_record.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/json.h"
#include "dra/claim.h"
#include "dra/json_object.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr std::int64_t kRecordVersion = 1;
constexpr std::int64_t kWholePercentage = 100;

Result<unsigned> required_number(const JsonObject& object, const char* name) {
  constexpr std::int64_t kMost = 1 << 20;
  GPULET_TRY_ASSIGN(const auto number, object.optional_integer(name));
  if (!number || *number < 0 || *number > kMost)
    return fail(Code::kInvalidArgument, object.field_path(name) + ": expected a number");
  return static_cast<unsigned>(*number);
}

Result<RecordedPartition> read_partition(const JsonObject& object) {
  GPULET_TRY(object.reject_unknown_fields({"gpu", "profile", "profileID", "start", "size", "made"}));
  RecordedPartition read;
  GPULET_TRY_ASSIGN(std::string gpu, object.required_text("gpu"));
  read.gpu = DeviceUuid(std::move(gpu));
  auto& partition = read.partition;
  GPULET_TRY_ASSIGN(partition.profile, object.required_text("profile"));
  GPULET_TRY_ASSIGN(partition.profile_id, required_number(object, "profileID"));
  GPULET_TRY_ASSIGN(partition.placement.start, required_number(object, "start"));
  GPULET_TRY_ASSIGN(partition.placement.size, required_number(object, "size"));
  GPULET_TRY_ASSIGN(const auto made, object.optional_bool("made"));
  read.made = made.value_or(false);
  return read;
}

json partition_json(const RecordedPartition& recorded) {
  const auto& partition = recorded.partition;
  return {{"gpu", recorded.gpu.str()},         {"profile", partition.profile},
          {"profileID", partition.profile_id}, {"start", partition.placement.start},
          {"size", partition.placement.size},  {"made", recorded.made}};
}

Result<std::map<std::string, std::uint64_t>> read_consumed(const JsonObject& device) {
  std::map<std::string, std::uint64_t> consumed;
  GPULET_TRY_ASSIGN(const auto object, device.optional_object("consumedCapacity"));
  if (!object) return consumed;
  if (object->value().size() > kMaxConsumedCapacities) {
    return fail(Code::kInvalidArgument, object->path() + ": expected at most " +
                                            std::to_string(kMaxConsumedCapacities) + " entries, found " +
                                            std::to_string(object->value().size()));
  }
  for (const auto& item : object->value().items()) {
    if (!item.value().is_number_unsigned())
      return fail(wrong_type(object->field_path(item.key()), "a number", item.value()));
    consumed[item.key()] = item.value().get<std::uint64_t>();
  }
  return consumed;
}

Result<RecordedDevice> read_device(const JsonObject& object) {
  GPULET_TRY(object.reject_unknown_fields(
      {"request", "pool", "device", "uuid", "adminAccess", "shareID", "consumedCapacity", "partition"}));
  RecordedDevice device;
  GPULET_TRY_ASSIGN(device.request, object.required_text("request"));
  GPULET_TRY_ASSIGN(device.pool, object.required_text("pool"));
  GPULET_TRY_ASSIGN(device.device, object.required_text("device"));
  GPULET_TRY_ASSIGN(const auto partition, object.optional_object("partition"));
  if (partition) {
    GPULET_TRY_ASSIGN(device.partition, read_partition(*partition));
  }
  if (!partition || object.member("uuid") != nullptr) {
    GPULET_TRY_ASSIGN(std::string uuid, object.required_text("uuid"));
    device.uuid = DeviceUuid(std::move(uuid));
  }
  GPULET_TRY_ASSIGN(const auto admin_access, object.optional_bool("adminAccess"));
  device.admin_access = admin_access.value_or(false);
  GPULET_TRY_ASSIGN(device.share_id, read_share_id(object, "shareID"));
  GPULET_TRY_ASSIGN(device.consumed, read_consumed(object));
  return device;
}

Result<RecordedDaemon> read_daemon(const JsonObject& object) {
  GPULET_TRY(object.reject_unknown_fields({"devices", "threadPercentage", "limitsMiB"}));
  RecordedDaemon daemon;
  GPULET_TRY_ASSIGN(const auto devices, object.texts("devices", kMaxResults));
  for (const auto& uuid : devices) daemon.devices.emplace_back(uuid);
  if (devices.empty())
    return fail(Code::kInvalidArgument, object.field_path("devices") + ": required, not set");
  GPULET_TRY_ASSIGN(const auto percentage, object.optional_integer("threadPercentage"));
  if (!percentage || *percentage < 1 || *percentage > kWholePercentage) {
    return fail(Code::kInvalidArgument, object.field_path("threadPercentage") + ": expected 1 to 100");
  }
  daemon.thread_percentage = static_cast<unsigned>(*percentage);
  GPULET_TRY_ASSIGN(const auto limits, object.optional_object("limitsMiB"));
  if (!limits) return daemon;
  for (const auto& item : limits->value().items()) {
    if (!item.value().is_number_unsigned()) {
      return fail(wrong_type(limits->field_path(item.key()), "a number of MiB", item.value()));
    }
    daemon.limits_mib[DeviceUuid(item.key())] = item.value().get<std::uint64_t>();
  }
  return daemon;
}

json daemons_json(const std::vector<RecordedDaemon>& daemons) {
  json list = json::array();
  for (const auto& daemon : daemons) {
    json entry = {{"devices", json::array()}, {"threadPercentage", daemon.thread_percentage}};
    for (const auto& uuid : daemon.devices) entry["devices"].push_back(uuid.str());
    for (const auto& [uuid, limit] : daemon.limits_mib) entry["limitsMiB"][uuid.str()] = limit;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string claim_text(const ClaimRecord& record) {
  return record.name.empty() ? "uid " + record.uid : record.name_space + "/" + record.name;
}

bool ClaimRecord::has_partitions() const {
  return std::ranges::any_of(devices,
                             [](const RecordedDevice& device) { return device.partition.has_value(); });
}

std::string record_json(const ClaimRecord& record) {
  json devices = json::array();
  for (const auto& device : record.devices) {
    json entry = {{"request", device.request}, {"pool", device.pool}, {"device", device.device}};
    if (!device.uuid.empty()) entry["uuid"] = device.uuid.str();
    if (device.partition) entry["partition"] = partition_json(*device.partition);
    if (device.admin_access) entry["adminAccess"] = true;
    if (!device.share_id.empty()) entry["shareID"] = device.share_id;
    for (const auto& [capacity, amount] : device.consumed) entry["consumedCapacity"][capacity] = amount;
    devices.push_back(std::move(entry));
  }
  json object = {{"version", kRecordVersion}, {"uid", record.uid}, {"devices", std::move(devices)}};
  if (!record.name.empty()) {
    object["namespace"] = record.name_space;
    object["name"] = record.name;
  }
  if (record.ending) object["ending"] = true;
  if (!record.daemons.empty()) object["mps"] = daemons_json(record.daemons);
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<ClaimRecord> parse_record(std::string_view text) {
  if (text.size() > kMaxRecordBytes) {
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxRecordBytes) +
                                            " bytes, found " + std::to_string(text.size()));
  }
  const auto root = parse_json(text);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const JsonObject object, JsonObject::from_value(root, ""));
  GPULET_TRY(
      object.reject_unknown_fields({"version", "uid", "namespace", "name", "devices", "mps", "ending"}));
  GPULET_TRY_ASSIGN(const auto version, object.optional_integer("version"));
  if (version != kRecordVersion) {
    return fail(Code::kInvalidArgument,
                "version: expected 1, found " + (version ? std::to_string(*version) : std::string("none")));
  }
  ClaimRecord record;
  GPULET_TRY_ASSIGN(record.uid, object.required_text("uid"));
  if (!is_valid_uid(record.uid)) {
    return fail(Code::kInvalidArgument,
                "uid: expected lower case letters, digits and '-', found \"" + record.uid + "\"");
  }
  if (object.member("namespace") != nullptr || object.member("name") != nullptr) {
    GPULET_TRY_ASSIGN(record.name_space, object.required_text("namespace"));
    GPULET_TRY_ASSIGN(record.name, object.required_text("name"));
  }
  GPULET_TRY_ASSIGN(const auto devices, object.objects("devices", kMaxResults));
  for (const auto& entry : devices) {
    GPULET_TRY_ASSIGN(RecordedDevice device, read_device(entry));
    record.devices.push_back(std::move(device));
  }
  GPULET_TRY_ASSIGN(const auto ending, object.optional_bool("ending"));
  record.ending = ending.value_or(false);
  GPULET_TRY_ASSIGN(const auto daemons, object.objects("mps", kMaxResults));
  for (const auto& entry : daemons) {
    GPULET_TRY_ASSIGN(RecordedDaemon daemon, read_daemon(entry));
    record.daemons.push_back(std::move(daemon));
  }
  return record;
}

bool is_valid_uid(std::string_view uid) { return is_dns_label(uid); }

Result<RecordStore::Loaded> RecordStore::load_records() const {
  Loaded loaded;
  GPULET_TRY_ASSIGN(loaded.errors,
                    files_.read_files(kMaxRecords, kMaxRecordBytes,
                                      [&](const std::string& id, std::string_view text) -> Status {
                                        GPULET_TRY_ASSIGN(auto record, parse_record(text));
                                        if (record.uid != id)
                                          return fail(
                                              Code::kInvalidArgument,
                                              "uid: expected the file's name, found \"" + record.uid + "\"");
                                        loaded.records.emplace(id, std::move(record));
                                        return {};
                                      }));
  return loaded;
}

bool RecordStore::has_records() const {
  const auto loaded = load_records();
  return loaded && (!loaded->records.empty() || !loaded->errors.empty());
}

Status RecordStore::write_record(const ClaimRecord& record) const {
  if (!is_valid_uid(record.uid)) {
    return fail(Code::kInvalidArgument, "the uid of a claim is not valid: \"" + record.uid + "\"");
  }
  return files_.write_file(record.uid, record_json(record));
}

Status RecordStore::remove_record(std::string_view uid) const {
  if (!is_valid_uid(uid)) return {};
  return files_.remove_file(uid);
}

const ClaimRecord* find_holder(const std::map<std::string, ClaimRecord>& records, const DeviceUuid& device,
                               std::string_view uid, bool gets_share) {
  for (const auto& [holder, record] : records) {
    if (holder == uid) continue;
    const bool holds = std::ranges::any_of(record.devices, [&](const RecordedDevice& held) {
      return !device.empty() && held.uuid == device && !held.admin_access && !(gets_share && held.is_share());
    });
    if (holds) return &record;
  }
  return nullptr;
}

void add_share_use(const ClaimRecord& record, const DeviceUuid& device, const std::string& capacity,
                   std::uint64_t total, ShareUse& use) {
  bool has_share = false;
  for (const auto& held : record.devices) {
    if (held.uuid != device || !held.is_share()) continue;
    has_share = true;
    const auto known = held.consumed.find(capacity);
    const std::uint64_t amount = known == held.consumed.end() ? total : known->second;
    use.sum += std::min(amount, std::numeric_limits<std::uint64_t>::max() - use.sum);
  }
  if (has_share) use.claims.push_back(claim_text(record));
}

ShareUse find_share_use(const std::map<std::string, ClaimRecord>& records, const DeviceUuid& device,
                        const std::string& capacity, std::uint64_t total, std::string_view uid) {
  ShareUse use;
  for (const auto& [holder, record] : records) {
    if (holder != uid) add_share_use(record, device, capacity, total, use);
  }
  return use;
}

const ClaimRecord* find_partition_holder(const std::map<std::string, ClaimRecord>& records,
                                         const DeviceUuid& gpu, const Partition& partition,
                                         std::string_view uid) {
  for (const auto& [holder, record] : records) {
    if (holder == uid) continue;
    const bool holds = std::ranges::any_of(record.devices, [&](const RecordedDevice& held) {
      return held.partition && held.partition->gpu == gpu && !held.admin_access &&
             held.partition->partition.overlaps(partition);
    });
    if (holds) return &record;
  }
  return nullptr;
}

}  // namespace gpulet::dra
