// A body of whoever connects: a question or an error, and a question is answered in JSON.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "scheduler/extender_json.h"
#include "scheduler/filter.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::scheduler;
  const auto args = ExtenderArgs::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!args) {
    if (args.error().message().empty()) std::abort();
    return 0;
  }
  for (const auto& malformed : args->pod().malformed) {
    if (malformed.text().find('\n') != std::string::npos) std::abort();
  }
  std::vector<std::size_t> passed;
  std::vector<ExtenderArgs::Failed> failed;
  for (std::size_t i = 0; i < args->nodes().size(); ++i) {
    if (i % 2 == 0) {
      passed.push_back(i);
    } else {
      failed.push_back({i, i % 3 == 0, "because"});
    }
  }
  const Filter filter(args->pod());
  if (filter.wants() == args->pod().containers.empty()) std::abort();
  const std::vector<int> scores(args->nodes().size(), 3);
  for (const auto& text : {args->filter_result(passed, failed), args->priorities(scores)}) {
    if (text.empty() || (text.front() != '{' && text.front() != '[')) std::abort();
  }
  return 0;
}
