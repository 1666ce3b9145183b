#include "agent/observe/agent_client.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "http/client.h"
#include "http/socket.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxAgentDocument = 16u << 20;

}  // namespace

Result<nlohmann::json> fetch_agent_json(const std::string& socket, const std::string& path, Duration limit) {
  GPULET_TRY_ASSIGN(const auto address, http::unix_address(socket));
  EpollLoop loop;
  std::string text;
  Status ended = fail(Code::kDeadlineExceeded, "the agent did not respond in time", socket);
  const auto end_fetch = [&](Status status) {
    ended = std::move(status);
    loop.stop_loop();
  };
  auto get = http::HttpGet::start_get(loop, address, "localhost", path,
                                      {.on_piece = [&](std::string_view piece) -> Status {
                                         if (text.size() + piece.size() > kMaxAgentDocument)
                                           return fail(Code::kIo, "the response is too large", socket);
                                         text += piece;
                                         return {};
                                       },
                                       .on_end = end_fetch});
  if (!get) return fail(get.error());
  const auto over = loop.after(limit, [&] { loop.stop_loop(); });
  loop.run_loop();
  GPULET_TRY(ended);
  auto document = parse_json(text);
  if (!document.is_object()) return fail(Code::kInvalidArgument, "the response is not from an agent", socket);
  return document;
}

}  // namespace gpulet::agent
