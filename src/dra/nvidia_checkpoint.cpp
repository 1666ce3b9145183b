#include "dra/nvidia_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "dra/claim.h"
#include "dra/json_object.h"
#include "health/state/persisted_state.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr const char* kImportedSuffix = ".imported";

// The UUID of a prepared device: of a GPU in "info", of a MIG device in "concrete", before 25.12 in "info".
Result<std::string> device_uuid(const JsonObject& prepared, bool is_mig) {
  if (is_mig) {
    GPULET_TRY_ASSIGN(const auto concrete, prepared.optional_object("concrete"));
    if (concrete) return concrete->required_text("migUUID");
  }
  GPULET_TRY_ASSIGN(const auto info, prepared.optional_object("info"));
  if (info) return info->required_text("uuid");
  return fail(Code::kInvalidArgument, prepared.field_path("info") + ": required, not set");
}

// One device for each request that it was allocated to; none for another kind than GPU or MIG.
Status read_prepared_device(const JsonObject& entry, ClaimRecord& record) {
  for (const bool is_mig : {false, true}) {
    GPULET_TRY_ASSIGN(const auto prepared, entry.optional_object(is_mig ? "mig" : "gpu"));
    if (!prepared) continue;
    GPULET_TRY_ASSIGN(auto uuid, device_uuid(*prepared, is_mig));
    GPULET_TRY_ASSIGN(const auto device, prepared->optional_object("device"));
    if (!device) return fail(Code::kInvalidArgument, prepared->field_path("device") + ": required, not set");
    RecordedDevice recorded;
    recorded.uuid = DeviceUuid(std::move(uuid));
    GPULET_TRY_ASSIGN(recorded.pool, device->required_text("PoolName"));
    GPULET_TRY_ASSIGN(recorded.device, device->required_text("DeviceName"));
    GPULET_TRY_ASSIGN(recorded.share_id, read_share_id(*device, "ShareID"));
    GPULET_TRY_ASSIGN(const auto requests, device->texts("Requests", kMaxResults));
    for (const auto& request : requests) {
      recorded.request = request.substr(0, request.find('/'));
      record.devices.push_back(recorded);
    }
  }
  return {};
}

// The devices that the claim's status allocates with administrator's access.
Result<std::set<std::string>> admin_devices(const JsonObject& claim) {
  std::set<std::string> devices;
  GPULET_TRY_ASSIGN(auto object, claim.optional_object("status"));
  for (const char* const name : {"allocation", "devices"}) {
    if (!object) return devices;
    GPULET_TRY_ASSIGN(object, object->optional_object(name));
  }
  if (!object) return devices;
  GPULET_TRY_ASSIGN(const auto results, object->objects("results", kMaxResults));
  for (const auto& result : results) {
    GPULET_TRY_ASSIGN(const auto admin_access, result.optional_bool("adminAccess"));
    GPULET_TRY_ASSIGN(const auto device, result.optional_text("device"));
    if (admin_access.value_or(false) && device) devices.insert(*device);
  }
  return devices;
}

// nullopt for a claim that was not prepared wholly, or holds no GPU and no MIG device.
Result<std::optional<ClaimRecord>> read_prepared_claim(const JsonObject& claim, const std::string& uid) {
  if (!is_valid_uid(uid)) return fail(Code::kInvalidArgument, "the uid is not valid");
  GPULET_TRY_ASSIGN(const auto state, claim.optional_text("checkpointState"));
  if (state && *state != "PrepareCompleted") return std::nullopt;
  ClaimRecord record;
  record.uid = uid;
  GPULET_TRY_ASSIGN(const auto name_space, claim.optional_text("namespace"));
  GPULET_TRY_ASSIGN(const auto name, claim.optional_text("name"));
  if (name_space && name) {
    record.name_space = *name_space;
    record.name = *name;
  }
  GPULET_TRY_ASSIGN(const auto groups, claim.objects("preparedDevices", kMaxResults));
  for (const auto& group : groups) {
    GPULET_TRY_ASSIGN(const auto entries, group.objects("devices", kMaxResults));
    for (const auto& entry : entries) GPULET_TRY(read_prepared_device(entry, record));
  }
  if (record.devices.size() > kMaxResults) {
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxResults) +
                                            " devices, found " + std::to_string(record.devices.size()));
  }
  GPULET_TRY_ASSIGN(const auto admin, admin_devices(claim));
  for (auto& device : record.devices) device.admin_access = admin.contains(device.device);
  if (record.devices.empty()) return std::nullopt;
  return std::optional(std::move(record));
}

Result<JsonObject> newest_body(const JsonObject& root) {
  for (const char* const version : {"v2", "v1"}) {
    GPULET_TRY_ASSIGN(const auto body, root.optional_object(version));
    if (body) return *body;
  }
  return fail(Code::kInvalidArgument, "expected a checkpoint of NVIDIA's DRA driver, with \"v2\" or \"v1\"");
}

}  // namespace

Result<ImportedClaims> parse_nvidia_checkpoint(std::string_view text, std::string_view boot_id) {
  if (text.size() > kMaxCheckpointBytes) {
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxCheckpointBytes) +
                                            " bytes, found " + std::to_string(text.size()));
  }
  const auto value = parse_json(text);
  if (value.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const auto root, JsonObject::from_value(value, ""));
  GPULET_TRY_ASSIGN(const auto body, newest_body(root));
  ImportedClaims imported;
  GPULET_TRY_ASSIGN(const auto booted, body.optional_text("nodeBootID"));
  if (booted && !booted->empty() && *booted != boot_id) return imported;
  GPULET_TRY_ASSIGN(const auto claims, body.optional_object("preparedClaims"));
  if (!claims) return imported;
  if (claims->value().size() > kMaxRecords) {
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxRecords) +
                                            " claims, found " + std::to_string(claims->value().size()));
  }
  for (const auto& [uid, entry] : claims->value().items()) {
    const auto claim = JsonObject::from_value(entry, "");
    auto record = claim ? read_prepared_claim(*claim, uid) : fail(claim.error());
    if (!record) {
      imported.notes.push_back("claim " + uid.substr(0, 64) + ": " + record.error().message());
    } else if (*record) {
      imported.records.push_back(std::move(**record));
    }
  }
  return imported;
}

void import_nvidia_checkpoint(const std::string& path, const RecordStore& store,
                              std::map<std::string, ClaimRecord>& records) {
  const auto text = read_file(path, kMaxCheckpointBytes);
  if (!text && text.error().code() == Code::kNotFound) return;
  const auto imported =
      text ? parse_nvidia_checkpoint(*text, health::read_boot_id().value_or("")) : fail(text.error());
  if (!imported) {
    return log::error("the checkpoint of NVIDIA's DRA driver is not read", imported.error(),
                      {{"file", path}});
  }
  // First, so that no claim that is unprepared meanwhile comes back.
  if (std::rename(path.c_str(), (path + kImportedSuffix).c_str()) != 0) {
    return log::error("the checkpoint of NVIDIA's DRA driver is not used",
                      errno_error("cannot rename the file", errno, path));
  }
  for (const auto& note : imported->notes) {
    log::warning("a claim of NVIDIA's DRA driver is left out", {{"reason", note}});
  }
  for (const auto& record : imported->records) {
    if (records.contains(record.uid)) continue;
    if (const auto written = store.write_record(record); !written) {
      log::error("cannot record a claim of NVIDIA's DRA driver", written.error());
      continue;
    }
    records.emplace(record.uid, record);
  }
  log::info("claims of NVIDIA's DRA driver stay prepared", {{"claims", imported->records.size()}});
}

}  // namespace gpulet::dra
