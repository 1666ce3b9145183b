// Kubernetes objects as JSON: references, paths, queries, responses, and a reader that takes a list apart
// as it arrives.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "http/client.h"

namespace gpulet::k8s {

// The field Accept where only metadata or the status is read.
inline constexpr const char* kMetadataOnly =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

// An annotation of the API server's copy of a static Pod, which the kubelet runs from a file.
inline constexpr const char* kMirrorPod = "kubernetes.io/config.mirror";

// HTTP status: the resourceVersion of a list or watch has expired; list again.
inline constexpr int kStatusGone = 410;

// Percent-encoded for a query: "a%3Db".
std::string encode_query_value(std::string_view text);

// "2026-01-31T12:00:00Z"
std::string format_rfc3339(WallTime time);
// The same, also with fractions of a second, which are dropped, or an offset of "+02:00". nullopt for
// anything else.
std::optional<WallTime> parse_rfc3339(const std::string& text);

// At most `limit` bytes, not cut inside a character.
std::string truncate_utf8(std::string text, std::size_t limit);

// Text of others as one line for a terminal or a log: each control character, U+0080 to U+009F included,
// becomes blanks. The size stays.
std::string sanitize_line(std::string text);

// `field` of an object's metadata: its labels or annotations.
std::map<std::string, std::string> json_text_map(const nlohmann::json& metadata, const char* field);
// As a request body. Invalid UTF-8, which a driver's texts may contain, is replaced.
std::string serialize_json(const nlohmann::json& object);

// "the API server answered 403: nodes "a" is forbidden", with the cause if the Status has one; one line.
std::string describe_response(const http::ClientResponse& response);
// Whether the Status in the response has this cause: "NamespaceTerminating".
bool has_cause(const http::ClientResponse& response, std::string_view reason);

// Splits a JSON object into its members as the bytes arrive and keeps one of them at a time, so that a list
// of thousands of objects needs the memory of its largest. Only checks what it needs to find the end of
// each member; the caller parses them.

class JsonStream {
 public:
  // `member` gets each member that is an object or a string, as written (a string with its quotes). `item`
  // gets each object in the member "items". One above `limit` bytes is an error.
  JsonStream(std::size_t limit, std::function<void(std::string_view key, std::string_view value)> member,
             std::function<void(std::string_view)> item);

  // Parses the next bytes. Errors: kIo for what is not a JSON object, or too large.
  Status feed(std::string_view bytes);
  // Whether the object has ended.
  bool is_done() const { return done_; }

 private:
  Status consume_string(std::string_view bytes, std::size_t& at);
  Status consume_char(char c);
  Status end_value();

  const std::size_t limit_;
  std::function<void(std::string_view, std::string_view)> member_;
  std::function<void(std::string_view)> item_;
  std::size_t depth_ = 0;
  bool in_text_ = false, escaped_ = false, done_ = false;
  bool items_ = false;      // inside the list "items"
  bool capturing_ = false;  // `value_` grows
  bool key_next_ = true;    // the next string of the object is a key
  std::string text_;        // of the object itself: a key, or a string member
  std::string key_, value_;
};

// A string member of `object`; empty where there is none, or it has escapes.
std::string string_member(std::string_view object, std::string_view name);
// The same for a member of the object's metadata.
std::string metadata_string(std::string_view object, std::string_view name);

}  // namespace gpulet::k8s
