// Small pieces of what is said to the API server, and of what it says.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration
#include <string>
#include <string_view>

#include "base/loop.h"
#include "cluster/connection.h"

namespace gpulet::cluster {

// What may stand in a path: the letters of a DNS name, which every namespace and Pod has.
bool is_name(std::string_view text);

// What to accept where only metadata is read, or the status alone: an object without its images and the rest.
inline constexpr const char* kMetadataOnly =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

// An annotation: what a kubelet runs from a file of its own, shown by the API server.
inline constexpr const char* kMirrorPod = "kubernetes.io/config.mirror";

// A status: the resourceVersion that a list or watch goes on from is no longer known, so list anew.
inline constexpr int kTooOld = 410;

// As the value of a query: "a%3Db".
std::string in_query(std::string_view text);

// "2026-01-31T12:00:00Z"
std::string rfc3339(WallTime time);

// At most `limit` bytes, not cut inside a character.
std::string shortened(std::string text, std::size_t limit);

// The member of an object, or null; whatever else `object` is.
const nlohmann::json& member(const nlohmann::json& object, const char* name);
// The text, or nothing for what is none.
std::string text_of(const nlohmann::json& value);
// Metadata's labels or annotations, by key.
std::map<std::string, std::string> texts_of(const nlohmann::json& metadata, const char* field);
// As a body. What is no UTF-8 (a driver's text may be anything) is replaced, never refused.
std::string body_of(const nlohmann::json& object);

// "the API server answered 403: nodes "a" is forbidden", with the cause where a status has one.
std::string said(const ApiResponse& response);
// Whether a Status names this among its causes: "NamespaceTerminating".
bool has_cause(const ApiResponse& response, std::string_view reason);

}  // namespace gpulet::cluster
