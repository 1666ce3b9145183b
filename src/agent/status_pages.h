// What the listener child serves: /healthz, /readyz and /metrics out of the agent's State. Pure.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agent/agent.h"
#include "metrics/exposition.h"
#include "web/listener.h"

namespace gpulet::agent {

// `events` counts by reason what the reporter was told since start.
// `add` puts the other metrics onto the page; may be empty.
web::Pages status_pages(const State& state, const std::map<std::string, std::uint64_t>& events,
                        const std::string& version, const std::function<void(metrics::Exposition&)>& add);

}  // namespace gpulet::agent
