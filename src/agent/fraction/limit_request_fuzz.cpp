// Fuzzes the line of gpulet-hook and the records of memory limits.
#include <cstdlib>

#include "agent/fraction/limit_records.h"
#include "agent/fraction/limit_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::agent;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto request = parse_limit_request(text)) {
    if (!is_container_id(request->container_id) || request->pid == 0) std::abort();
  }
  if (const auto record = parse_limit_record(text)) {
    const auto again = parse_limit_record(limit_record_json(*record));
    if (!again || *again != *record || record->limits.empty()) std::abort();
  }
  return 0;
}
