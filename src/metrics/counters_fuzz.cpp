// A counters file, whatever is in it: each row is served, left out with a reason, or refused in one line.
#include <cstdlib>
#include <set>

#include "metrics/counters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::metrics;
  const auto counters =
      parse_counters(std::string_view(reinterpret_cast<const char*>(data), size), "counters.csv");
  if (!counters) {
    if (counters.error().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  std::set<std::string> names;
  for (const auto& counter : counters->all) {
    if (!names.insert(counter.name).second || find_field(counter.name) == nullptr) std::abort();
  }
  for (const auto& line : counters->unserved) {
    if (line.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
