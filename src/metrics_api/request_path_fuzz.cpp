// What comes from the network before anything is known of who sent it, and what an agent's page may be.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cluster/objects.h"
#include "metrics_api/agent_page.h"
#include "metrics_api/answers.h"
#include "metrics_api/authentication.h"
#include "metrics_api/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::metrics_api;
  const std::string_view input(reinterpret_cast<const char*>(data), size);

  const auto target = parse_target(input);
  if (const auto* asked = target ? std::get_if<PodMetric>(&*target) : nullptr) {
    // They become parts of a path at the API server.
    if (!cluster::is_name(asked->name_space) || !(asked->all() || cluster::is_name(asked->pod))) std::abort();
    if (!nlohmann::json::accept(metric_values(*asked, {{"pod", 1, {}}}))) std::abort();
  }
  if (!nlohmann::json::accept(failure(400, "BadRequest", target ? input : target.error().text())))
    std::abort();

  const web::Request request{.method = "GET",
                             .target = input,
                             .client = input,
                             .fields = {{input, input}, {"X-Remote-User", input}, {"Authorization", input}}};
  // Nobody is trusted, and then nobody but the proxy.
  if (proxied_user({}, request)) std::abort();
  const FrontProxy proxy{"PEM", {"front-proxy"},    {"X-Remote-User"},
                         {},    {"X-Remote-Group"}, {"X-Remote-Extra-"}};
  if (proxied_user(proxy, request).has_value() != (input == "front-proxy")) std::abort();
  if (const auto token = bearer_token(request); token && token->size() > kMaxTokenBytes) std::abort();

  AgentPageReader whole, parts;
  const bool taken = whole.take(input).has_value();
  bool also = true;
  for (std::size_t at = 0; at < size && also; at += 3) also = parts.take(input.substr(at, 3)).has_value();
  if (taken != also) std::abort();
  if (taken && whole.finish().pods != parts.finish().pods) std::abort();
  return 0;
}
