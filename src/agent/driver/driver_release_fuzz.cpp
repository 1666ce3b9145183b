// Parses any bytes as the file of `gpulet driver release`: it is refused in one line, or written and parsed
// as the same, with a reason of one line.
#include <cstdlib>

#include "agent/driver/driver_release.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::agent;
  const auto request = parse_release({reinterpret_cast<const char*>(data), size});
  if (!request) {
    if (request.error().message().empty()) std::abort();
    return 0;
  }
  const auto again = parse_release(format_release(*request));
  if (!again || *again != *request) std::abort();
  const auto reason = release_reason(*request, false, {});
  if (!reason || reason->find('\n') != std::string::npos) std::abort();
  return 0;
}
