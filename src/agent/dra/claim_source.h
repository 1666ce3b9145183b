// Reads claims for dra/claim_controller.h from the API server.
#pragma once

#include <memory>

#include "base/loop.h"
#include "dra/claim_controller.h"
#include "k8s/client_config.h"

namespace gpulet::agent {

// Needs get on resourceclaims. Several claims are read at the same time (k8s/parallel_reader.h), and a name
// that is none is a claim that does not exist.
std::unique_ptr<dra::ClaimSource> make_claim_source(Loop& loop, const k8s::ClientConfig& access);

}  // namespace gpulet::agent
