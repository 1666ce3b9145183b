// Reads the documents of a running agent from its socket, for commands on the node.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::agent {

inline constexpr const char* kAgentSocket = "/run/gpulet/agent.sock";

// Fetches a JSON object ("/api/node") and blocks for at most `limit`. Errors: kNotFound without an agent;
// kDeadlineExceeded; those of the connection; kInvalidArgument for what is no such document.
Result<nlohmann::json> fetch_agent_json(const std::string& socket, const std::string& path, Duration limit);

}  // namespace gpulet::agent
