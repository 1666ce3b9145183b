// Parses bytes that arrive before authentication: the fields of a request, and the messages of the agent.
#include <cstdlib>

#include "base/text.h"
#include "http/access_gate.h"
#include "http/message.h"
#include "web/ipc_messages.h"
#include "web/router.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::http;
  using namespace gpulet::web;
  const std::string_view input(reinterpret_cast<const char*>(data), size);

  MessageReader reader;
  reader.append_bytes(input);
  for (auto next = reader.next_message(); next && *next; next = reader.next_message()) {
    // Encoding the decoded rules gives the same bytes.
    if (const auto* access = std::get_if<AccessRules>(&**next)) {
      MessageReader other;
      other.append_bytes(encode_access_message(*access));
      const auto again = other.next_message();
      if (!again || !*again || !(std::get<AccessRules>(**again) == *access)) std::abort();
    }
  }

  if (text::decode_base64(input).size() > input.size()) std::abort();
  // No password has this hash: it is too short.
  const PasswordChecker::Users users = {{"alice", "$2b$04$abcdefghijklmnopqrstuu"}};
  PasswordChecker passwords(users);
  int verdicts = 0;
  passwords.check_password(input, {}, Time{}, [&](PasswordChecker::Verdict verdict) {
    if (verdict == PasswordChecker::Verdict::kAccepted) std::abort();
    ++verdicts;
  });
  if (verdicts != 1) std::abort();

  Router site;
  site.publish_message(
      make_pages_message({.metrics = "m 1\n", .open_metrics = "m 1\n# EOF\n"}, std::chrono::seconds(1)),
      Time{});
  const auto answer = site.route_request(
      {.method = "GET", .target = input, .accept = input, .accept_encoding = input}, Time{});
  if (answer.status != 200 && answer.status != 404 && answer.status != 503) std::abort();
  if (!answer.body) std::abort();
  const std::string head = response_head(answer, true);
  if (head.find("\r\n\r\n") != head.size() - 4) std::abort();
  return 0;
}
