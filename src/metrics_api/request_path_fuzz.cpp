// Fuzzes what arrives from the network before authentication, an agent's page, and an entry of the record.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/dns_name.h"
#include "k8s/objects.h"
#include "metrics_api/agent_scraper.h"
#include "metrics_api/authentication.h"
#include "metrics_api/demand_forecast.h"
#include "metrics_api/responses.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::metrics_api;
  const std::string_view input(reinterpret_cast<const char*>(data), size);

  const auto target = parse_request_target(input);
  if (const auto* metric = target ? std::get_if<PodMetricRequest>(&*target) : nullptr) {
    // They become parts of an API server path.
    if (!is_dns_label(metric->name_space) || !(metric->selects_all() || is_dns_subdomain(metric->pod)))
      std::abort();
    if (!nlohmann::json::accept(metric_values_json(*metric, {{"pod", 1, {}}}))) std::abort();
  }
  if (!nlohmann::json::accept(
          failure_status_json(400, "BadRequest", target ? input : target.error().full_message())))
    std::abort();

  const http::Request request{.method = "GET",
                              .target = input,
                              .client = input,
                              .fields = {{input, input}, {"X-Remote-User", input}, {"Authorization", input}}};
  // First without a front proxy, then with one.
  if (user_from_front_proxy({}, request)) std::abort();
  const FrontProxy proxy{"PEM", {"front-proxy"},    {"X-Remote-User"},
                         {},    {"X-Remote-Group"}, {"X-Remote-Extra-"}};
  if (user_from_front_proxy(proxy, request).has_value() != (input == "front-proxy")) std::abort();
  if (const auto token = bearer_token(request); token && token->size() > kMaxTokenBytes) std::abort();

  // A key is never that of a malformed entry.
  DemandForecasts forecasts;
  if (forecasts.merge_record({{"demand-1", std::string(input)}}, {}).size() != 1) std::abort();

  AgentPageParser whole, parts;
  const bool taken = whole.parse_chunk(input).has_value();
  bool also = true;
  for (std::size_t at = 0; at < size && also; at += 3)
    also = parts.parse_chunk(input.substr(at, 3)).has_value();
  if (taken != also) std::abort();
  if (taken && whole.finish_page().pods != parts.finish_page().pods) std::abort();
  return 0;
}
