// How options name the Service of the extender.
#pragma once

#include <optional>
#include <string>

#include "http/client.h"

namespace gpulet::extender {

struct ServiceName {
  std::string name_space, name;
  std::string scheme, port;  // empty: not given
};

// "gpulet/gpulet-scheduler", with ":9410" or ":PORT-NAME" behind it and "https:" before the name, as in the
// paths of the API server's service proxy. nullopt for another form. Pure. Source: Kubernetes, "Access
// Services Running on Clusters".
std::optional<ServiceName> parse_service_name(const std::string& text);

// Whether the response is an extender's that serves TLS, to a plain request through the service proxy: the
// request is then to be sent again with "https:" before the name.
bool requires_https(const http::ClientResponse& response);

}  // namespace gpulet::extender
