// Checks what manifests say to this driver before they reach a cluster: the API server and the scheduler do
// not look inside configs, so that a mistake there shows only when a Pod starts, and a constraint on a
// misspelt attribute is met by no device. Each config is read by the parser that prepares claims
// (dra/opaque_config.h).
//
// Source: resource.k8s.io v1, v1beta1 and v1beta2: ResourceClaim, ResourceClaimTemplate and DeviceClass;
// docs/dra.md.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dra/opaque_config.h"

namespace gpulet::dra {

// A config that the driver would refuse, or a constraint on an unknown attribute of gpulet.io.
struct ManifestProblem {
  unsigned line = 0, column = 0;  // of the field, from 1
  std::size_t document = 0;       // of those that are not empty, from 1
  std::string object;             // "ResourceClaimTemplate team/one-gpu"; of a text that is none "document"
  std::string field;    // "spec.spec.devices.config[0].opaque.parameters.sharing.strategy", or empty
  std::string message;  // what was found and what is expected
};

struct ManifestReport {
  std::size_t objects = 0;  // of every kind
  std::size_t configs = 0;  // for this driver
  std::vector<ManifestProblem> problems;
};

// Reads a file of YAML or JSON documents, Lists of objects included. Objects of other kinds and configs for
// other drivers are passed over. One problem a config, because its parser stops at the first. Errors: those
// of config::yaml::parse_documents, with `file` as their subject. Pure.
Result<ManifestReport> check_manifests(std::string_view text, const std::string& file,
                                       std::string_view driver, const FeatureGates& gates);

}  // namespace gpulet::dra
