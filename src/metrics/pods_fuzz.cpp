// /proc/PID/cgroup of any process, which can name its cgroups freely: the results must be valid UIDs.
#include <cstdlib>

#include "metrics/pods.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::metrics;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto uids = pod_uids(input);
  for (const auto& uid : uids) {
    if (uid.size() != 32 && uid.size() != 36) std::abort();
    if (uid.find_first_not_of("0123456789abcdef-") != std::string::npos) std::abort();
  }
  if (const auto directory = parse_log_directory(input); directory && directory->pod.name.empty())
    std::abort();
  return 0;
}
