// What NVIDIA's DRA driver remembers of the claims that it has prepared on this node, read once when gpulet
// takes its place: the claims' devices stay held until the kubelet unprepares them.
//
// Format: dra-driver-nvidia-gpu 25.3 to 0.5, `<kubelet>/plugins/gpu.nvidia.com/checkpoint.json`:
// {"v1": {"preparedClaims": {UID: …}}, "v2": {"nodeBootID": …, "preparedClaims": {UID: …}}}. Both may be
// there, and v2 is the newer. Their checksums are over a dump of Go values and are not compared: a version of
// the driver that adds a field calls the file of another corrupt (its issues 1080 and 1100).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dra/claim_record.h"

namespace gpulet::dra {

inline constexpr std::size_t kMaxCheckpointBytes = 16u << 20;

struct ImportedClaims {
  std::vector<ClaimRecord>
      records;                     // by uid; `name_space` and `name` are empty where the driver dropped them
  std::vector<std::string> notes;  // why a claim is left out: "claim UID: …"
};

// The claims that were prepared wholly: one that was not is prepared again by the kubelet. Devices that are
// neither a GPU nor a MIG device (VFIO) are left out. None are returned where `nodeBootID` is there and is
// not `boot_id`: nothing prepared survives a reboot. Errors: kInvalidArgument for a text that is no
// checkpoint, is larger than kMaxCheckpointBytes, or has more than kMaxRecords claims. Pure.
Result<ImportedClaims> parse_nvidia_checkpoint(std::string_view text, std::string_view boot_id);

// Adds a record for each claim of the checkpoint at `path` that has none in `records`. The file is renamed to
// `path` + ".imported", so that it is read once. Without such a file nothing is done. What fails is logged
// and left out: the kubelet can unprepare a claim without a record.
void import_nvidia_checkpoint(const std::string& path, const RecordStore& store,
                              std::map<std::string, ClaimRecord>& records);

}  // namespace gpulet::dra
