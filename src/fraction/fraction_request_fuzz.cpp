// A Pod as lines: "A KEY VALUE" is an annotation, "C NAME" and "I NAME" begin a main and an init container,
// "L KEY VALUE" is a limit of it. Any Pod has requests within their bounds, or an error of one line.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fraction/fraction_request.h"

namespace {

gpulet::fraction::PodFields parse_lines(std::string_view text) {
  gpulet::fraction::PodFields pod;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() < 2) continue;
    const std::string_view rest = line.substr(2);
    const auto blank = std::min(rest.find(' '), rest.size());
    const gpulet::fraction::PodField field{rest.substr(0, blank),
                                           rest.substr(std::min(blank + 1, rest.size()))};
    if (line[0] == 'A') pod.annotations.push_back(field);
    if (line[0] == 'C' || line[0] == 'I') pod.containers.push_back({rest, line[0] == 'I', {}});
    if (line[0] == 'L' && !pod.containers.empty()) pod.containers.back().limits.push_back(field);
  }
  return pod;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::fraction;
  constexpr std::size_t kMaxMessageBytes = 1000;
  constexpr unsigned kWhole = 1'000'000, kAllCompute = 1000;
  const auto pod = parse_lines({reinterpret_cast<const char*>(data), size});
  const auto requests = parse_fraction_requests(pod);
  if (!requests) {
    const auto& message = requests.error().message();
    if (message.empty() || message.size() > kMaxMessageBytes || message.find('\n') != message.npos)
      std::abort();
    return 0;
  }
  if (requests->size() > pod.containers.size()) std::abort();
  for (const auto& request : *requests) {
    for (const auto& amount : {request.memory, request.memory_limit}) {
      if (amount.mib > kMaxRequestMib || amount.millionths > kWhole) std::abort();
      if (amount.mib != 0 && amount.millionths != 0) std::abort();
    }
    if (request.compute_thousandths > kAllCompute) std::abort();
    if (request.memory.is_zero() && request.compute_thousandths == 0) std::abort();
    if (request.memory.is_zero() != request.memory_source.empty()) std::abort();
  }
  return 0;
}
