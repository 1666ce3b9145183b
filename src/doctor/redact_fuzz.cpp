// Any text loses its secrets without a fault; and a secret of any letters, in each form that has one, is gone
// from any text that it stands in a line of its own of.
#include <cctype>
#include <cstdlib>
#include <string>

#include "doctor/redact.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using gpulet::doctor::without_secrets;
  const std::string text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(without_secrets(text));

  std::string secret;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) secret += c;
  }
  secret = "S3" + secret + "T5";  // found nowhere else
  for (const std::string& line :
       {"{\"token\":\"" + secret + "\"}", "password: " + secret, "DB_PASSWORD=" + secret,
        "--auth-token " + secret, "- name: API_KEY\n  value: " + secret, "https://u:" + secret + "@host/",
        "Bearer " + secret, "secretData: |\n  " + secret + "\n  " + secret}) {
    if (without_secrets(line + "\n").find(secret) != std::string::npos) std::abort();
  }
  return 0;
}
