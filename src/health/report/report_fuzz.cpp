// A report from anywhere: it is refused in one line, or it is written and read back the same.
#include <cstdint>
#include <cstdlib>

#include "health/report/health_report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::health;
  const auto view = parse_report({reinterpret_cast<const char*>(data), size});
  if (!view) {
    const auto& message = view.error().message();
    if (message.empty() || message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const auto text = format_report(*view);
  const auto again = parse_report(text);
  if (!again || format_report(*again) != text) std::abort();
  for (const auto& device : view->devices) {
    if (describe_device(device).empty()) std::abort();
    if (!device.status.faults.empty() && next_step(device).empty()) std::abort();
  }
  return 0;
}
