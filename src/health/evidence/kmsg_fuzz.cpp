// The kernel's log, whatever is in it: a line that is read names a device, and is evidence for no other.
#include <cstdlib>

#include "health/evidence/kmsg_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::health;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto record = parse_kmsg_record(input);
  if (record && record->text.size() > kMaxKmsgLine) std::abort();
  const auto line = parse_kmsg_line(record ? std::string_view(record->text) : input);
  if (!line) return 0;
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.pci = {0, 0x3b + i, 0, 0};
    snapshot.gpus.push_back(gpu);
  }
  const auto evidence = kmsg_line_evidence(*line, snapshot, Time{});
  if (evidence.size() > 1) std::abort();
  for (const auto& one : evidence) {
    if (one.scope.is_whole_gpu() && one.scope.compute_instance != kNoInstance) std::abort();
    const auto* xid = std::get_if<XidLine>(&*line);
    const auto bus = one.scope.gpu.str() == "GPU-0" ? 0x3bu : 0x3cu;
    if (xid != nullptr && xid->gpu.bus != bus) std::abort();
  }
  return 0;
}
