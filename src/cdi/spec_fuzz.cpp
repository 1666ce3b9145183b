// Any CDI document is parsed or refused with reasons; what is parsed is written and parses as the
// same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cdi/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::cdi;
  const auto read = read_spec({reinterpret_cast<const char*>(data), size}, "spec");
  if (read.spec.has_value() != read.problems.empty()) std::abort();
  for (const auto& problem : read.problems) {
    if (problem.message.empty() || problem.problem_text().find("spec") == std::string::npos) std::abort();
  }
  if (!read.spec) return 0;
  if (*version_rank(read.spec->version) < *version_rank(minimum_version(*read.spec))) std::abort();
  for (const auto& text : {to_json(*read.spec), to_yaml(*read.spec)}) {
    const auto again = read_spec(text, "again");
    if (!again.spec || *again.spec != *read.spec) std::abort();
  }
  return 0;
}
