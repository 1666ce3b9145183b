#include "k8s/blocking_reader.h"

#include <utility>

#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

// Whether there is something: false for 404.
Result<bool> judge_response(const http::ClientResponse& response, const std::string& permission) {
  if (response.status == 200) return true;
  if (response.status == 404) return false;
  const bool refused = response.status == 401 || response.status == 403;
  return fail(refused ? Code::kPermissionDenied : Code::kUnavailable,
              (refused ? "missing permission: " + permission + ": " : "") + describe_response(response));
}

}  // namespace

BlockingReader::BlockingReader(const ClientConfig& access, Duration limit)
    : limit_(limit), client_(loop_, access, limit) {}

Result<http::ClientResponse> BlockingReader::stream(const ApiRequest& request,
                                                    const std::function<Status(std::string_view)>& piece) {
  Result<http::ClientResponse> result = fail(Code::kInternal, "no response");
  client_.stream_response(request, limit_, piece, [&](Result<http::ClientResponse> response) {
    result = std::move(response);
    loop_.stop_loop();
  });
  loop_.run_loop();
  return result;
}

Result<bool> BlockingReader::list_objects(const std::string& path, const std::string& permission,
                                          const std::function<void(std::string_view)>& item,
                                          const std::string& accept) {
  const std::string query =
      (path.find('?') == std::string::npos ? "?" : "&") + ("limit=" + std::to_string(kReadPage));
  std::string from;
  for (std::size_t page = 0; page < kMaxReadPages; ++page) {
    std::string metadata;
    JsonStream members(
        kMaxReadBytes,
        [&](std::string_view key, std::string_view value) {
          if (key == "metadata") metadata = value;
        },
        item);
    GPULET_TRY_ASSIGN(
        const auto response,
        stream({.method = "GET",
                .path = path + query + (from.empty() ? "" : "&continue=" + encode_query_value(from)),
                .accept = accept},
               [&](std::string_view bytes) { return members.feed(bytes); }));
    GPULET_TRY_ASSIGN(const bool exists, judge_response(response, permission));
    if (!exists) return false;
    if (!members.is_done())
      return fail(Code::kIo, "the API server returned something that is not a list", path);
    from = string_member(metadata, "continue");
    if (from.empty()) return true;
  }
  return fail(Code::kUnsupported, "more than " + std::to_string(kReadPage * kMaxReadPages) + " objects",
              path);
}

Result<std::optional<std::string>> BlockingReader::get_object(const std::string& path,
                                                              const std::string& permission) {
  GPULET_TRY_ASSIGN(auto response, get_response(path, "application/json"));
  GPULET_TRY_ASSIGN(const bool exists, judge_response(response, permission));
  return exists ? std::optional(std::move(response.body)) : std::nullopt;
}

Result<http::ClientResponse> BlockingReader::get_response(const std::string& path,
                                                          const std::string& accept) {
  std::string body;
  GPULET_TRY_ASSIGN(
      auto response,
      stream({.method = "GET", .path = path, .accept = accept}, [&](std::string_view bytes) -> Status {
        if (body.size() + bytes.size() > kMaxReadBytes)
          return fail(Code::kIo, "larger than " + std::to_string(kMaxReadBytes) + " bytes", path);
        body += bytes;
        return {};
      }));
  if (response.status / 100 == 2) response.body = std::move(body);
  return response;
}

}  // namespace gpulet::k8s
