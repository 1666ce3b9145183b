// The handle of a GPU whose index was read before.
#pragma once

#include "base/result.h"
#include "base/types.h"
#include "nvml/session.h"

namespace gpulet::agent {

// On the driver's thread. Errors: kNotFound where the index is another GPU's meanwhile; those of the driver.
inline Result<nvml::Device> find_gpu_at(const nvml::Session& session, unsigned index, const DeviceUuid& gpu) {
  GPULET_TRY_ASSIGN(const auto device, session.device(index));
  GPULET_TRY_ASSIGN(const auto uuid, session.device_uuid(device));
  if (uuid != gpu) return fail(Code::kNotFound, "another GPU has its place", gpu.str());
  return device;
}

}  // namespace gpulet::agent
