// NVLink: state, far end, errors.
#include "sim/driver/nvlink.h"

#include <algorithm>

#include "sim/driver/pci.h"

namespace gpulet::sim {

std::uint32_t link_count(const Gpu& gpu) {
  return static_cast<std::uint32_t>(std::count_if(std::begin(gpu.links), std::end(gpu.links),
                                                  [](const NvLink& link) { return link.present != 0; }));
}

nvmlReturn_t find_link(const Gpu& gpu, unsigned int link, const NvLink** found) {
  if (link >= kMaxLinks) return NVML_ERROR_INVALID_ARGUMENT;
  if (gpu.links[link].present == 0)
    return link_count(gpu) == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  *found = &gpu.links[link];
  return NVML_SUCCESS;
}

}  // namespace gpulet::sim

using namespace gpulet::sim;

namespace {

// A whole call about one link: `read(link)` fills the result.
template <class Result, class Read>
nvmlReturn_t with_link(nvmlDevice_t device, unsigned int index, Result* result, Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(result)) return refused;
  const NvLink* link = nullptr;
  if (const auto missing = find_link(call.gpu(), index, &link)) return missing;
  return read(*link);
}

nvmlReturn_t remote_pci(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t* pci) {
  return with_link(device, index, pci, [pci](const NvLink& link) {
    if (link.active == 0) return NVML_ERROR_NOT_SUPPORTED;
    fill_pci(link.remote_pci, link.remote_device_id, 0, pci);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t edit_link_errors(nvmlDevice_t device, unsigned int index) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  const NvLink* found = nullptr;
  if (const auto missing = find_link(call.gpu(), index, &found)) return missing;
  NvLink& link = call.gpu().links[index];
  link.replay_errors = link.recovery_errors = link.crc_flit_errors = link.crc_data_errors = link.ecc_errors =
      0;
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int index, nvmlEnableState_t* active) {
  return with_link(device, index, active, [active](const NvLink& link) {
    *active = link.active != 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int index, unsigned int* version) {
  return with_link(device, index, version, [version](const NvLink& link) {
    *version = link.version;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int index,
                                           nvmlNvLinkCapability_t capability, unsigned int* result) {
  return with_link(device, index, result, [=](const NvLink&) {
    if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *result = capability == NVML_NVLINK_CAP_SLI_BRIDGE ? 0 : 1;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t* pci) {
  return remote_pci(device, index, pci);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int index,
                                                 nvmlPciInfo_t* pci) {
  return remote_pci(device, index, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int index,
                                                 nvmlIntNvLinkDeviceType_t* type) {
  return with_link(device, index, type, [type](const NvLink& link) {
    if (link.active == 0) return NVML_ERROR_NOT_SUPPORTED;
    *type = static_cast<nvmlIntNvLinkDeviceType_t>(link.remote);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int index,
                                             nvmlNvLinkErrorCounter_t counter, unsigned long long* value) {
  return with_link(device, index, value, [=](const NvLink& link) {
    switch (counter) {
      case NVML_NVLINK_ERROR_DL_REPLAY:
        *value = link.replay_errors;
        break;
      case NVML_NVLINK_ERROR_DL_RECOVERY:
        *value = link.recovery_errors;
        break;
      case NVML_NVLINK_ERROR_DL_CRC_FLIT:
        *value = link.crc_flit_errors;
        break;
      case NVML_NVLINK_ERROR_DL_CRC_DATA:
        *value = link.crc_data_errors;
        break;
      case NVML_NVLINK_ERROR_DL_ECC_DATA:
        *value = link.ecc_errors;
        break;
      default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned int index) {
  return edit_link_errors(device, index);
}
