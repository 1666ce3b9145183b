// Any text is a claim, a record, a checkpoint of NVIDIA's driver or a ResourceSlice, or is refused with a
// reason; what is read of a record, a checkpoint and a slice is written and reads as the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "dra/claim.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "dra/nvidia_checkpoint.h"
#include "dra/opaque_config.h"
#include "dra/resource_slice.h"

namespace {

using namespace gpulet;
using namespace gpulet::dra;

void require(bool holds) {
  if (!holds) std::abort();
}

void read_as_claim(std::string_view text) {
  const auto claim = parse_claim(text, kDriverName);
  if (!claim) {
    require(!claim.error().message().empty());
    return;
  }
  require(claim->results.size() <= kMaxResults && claim->configs.size() <= kMaxConfigs);
  for (const auto& result : claim->results) {
    require(result.share_id.empty() || is_valid_uid(result.share_id));
    require(result.consumed_capacity.size() <= kMaxConsumedCapacities);
  }
  for (const auto type : {DeviceType::kGpu, DeviceType::kMig}) {
    const std::vector<DeviceType> types(claim->results.size(), type);
    const auto configs = resolve_configs(*claim, types, {true, true});
    if (configs) require(configs->size() == claim->results.size());
  }
}

void read_as_record(std::string_view text) {
  const auto record = parse_record(text);
  if (!record) return require(!record.error().message().empty());
  const auto again = parse_record(record_json(*record));
  require(again && *again == *record);
}

void read_as_checkpoint(std::string_view text) {
  const auto imported = parse_nvidia_checkpoint(text, "boot-1");
  if (!imported) return require(!imported.error().message().empty());
  for (const auto& record : imported->records) {
    require(!record.devices.empty());
    const auto again = parse_record(record_json(record));
    require(again && *again == record);
  }
}

void read_as_slice(std::string_view text) {
  const auto slice = parse_slice(text);
  if (!slice) return require(!slice.error().message().empty());
  const PoolName pool{slice->driver, slice->pool, slice->node};
  // What was shown is either kept or replaced; a second plan has nothing to do.
  auto plan = plan_slices(pool, slice->devices, {*slice});
  std::vector<ResourceSlice> shown;
  for (auto& created : plan.creates) shown.push_back(created);
  for (auto& updated : plan.updates) shown.push_back(updated);
  if (plan.empty()) shown = {*slice};
  require(plan_slices(pool, slice->devices, shown).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_as_claim(text);
  read_as_record(text);
  read_as_checkpoint(text);
  read_as_slice(text);
  const auto config = parse_device_config(text, {true, true});
  if (!config) require(!config.error().message().empty());
  return 0;
}
