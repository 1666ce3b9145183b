// Any text is redacted without a crash; and any secret, in each supported form and on its own line, is
// removed from any text.
#include <cctype>
#include <cstdlib>
#include <string>

#include "doctor/support_archive.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using gpulet::doctor::redact_secrets;
  const std::string text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(redact_secrets(text));

  std::string secret;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) secret += c;
  }
  secret = "S3" + secret + "T5";  // found nowhere else
  for (const std::string& line :
       {"{\"token\":\"" + secret + "\"}", "password: " + secret, "DB_PASSWORD=" + secret,
        "--auth-token " + secret, "- name: API_KEY\n  value: " + secret, "https://u:" + secret + "@host/",
        "Bearer " + secret, "secretData: |\n  " + secret + "\n  " + secret}) {
    if (redact_secrets(line + "\n").find(secret) != std::string::npos) std::abort();
  }
  return 0;
}
