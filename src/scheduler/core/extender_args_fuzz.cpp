// Any request body is either parsed or rejected, and a parsed one gets valid JSON as a response.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "scheduler/core/decision.h"
#include "scheduler/core/extender_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::scheduler;
  const auto args = ExtenderArgs::parse_body(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!args) {
    if (args.error().message().empty()) std::abort();
    return 0;
  }
  for (const auto& malformed : args->pod_request().malformed) {
    if (malformed.message().find('\n') != std::string::npos) std::abort();
  }
  if (args->pod_request().request_error.find('\n') != std::string::npos) std::abort();
  std::vector<std::size_t> passed;
  std::vector<ExtenderArgs::FailedNode> failed;
  for (std::size_t i = 0; i < args->node_names().size(); ++i) {
    if (i % 2 == 0) {
      passed.push_back(i);
    } else {
      failed.push_back({i, i % 3 == 0, "because"});
    }
  }
  const Filter filter(args->pod_request());
  if (filter.requests_devices() == args->pod_request().containers.empty()) std::abort();
  const std::vector<int> scores(args->node_names().size(), 3);
  for (const auto& text : {args->filter_result_json(passed, failed), args->priorities_json(scores)}) {
    if (text.empty() || (text.front() != '{' && text.front() != '[')) std::abort();
  }
  return 0;
}
