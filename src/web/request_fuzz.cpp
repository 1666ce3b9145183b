// What comes from the network or over the socket pair before anything is known of it, whatever it is: the
// fields of a request, and the frames of the agent.
#include <cstdlib>

#include "web/accept.h"
#include "web/frame.h"
#include "web/passwords.h"
#include "web/site.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::web;
  const std::string_view input(reinterpret_cast<const char*>(data), size);

  FrameReader reader;
  reader.append(input);
  for (auto next = reader.next(); next && *next; next = reader.next()) {
    // What was understood is what would be sent for it.
    if (const auto* access = std::get_if<Access>(&**next)) {
      const auto again = decode_access(encode(*access));
      if (!again || !(*again == *access)) std::abort();
    }
  }

  if (decode_base64(input).size() > input.size()) std::abort();
  // No password makes this hash: it is too short.
  const Passwords::Users users = {{"alice", "$2b$04$abcdefghijklmnopqrstuu"}};
  Passwords passwords(users);
  if (passwords.check(input, Time{}) == Passwords::Verdict::kRight) std::abort();

  Site site;
  site.publish(frame_of({.metrics = "m 1\n", .open_metrics = "m 1\n# EOF\n"}, std::chrono::seconds(1)),
               Time{});
  const auto answer =
      site.answer({.method = "GET", .target = input, .accept = input, .accept_encoding = input}, Time{});
  if (answer.status != 200 && answer.status != 404 && answer.status != 503) std::abort();
  if (!answer.body) std::abort();
  const std::string head = head_of(answer, true);
  if (head.find("\r\n\r\n") != head.size() - 4) std::abort();
  return 0;
}
