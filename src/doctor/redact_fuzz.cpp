// Any text is redacted without a crash; and any secret, in each supported form and on its own line, is
// removed from any text.
#include <cctype>
#include <cstdlib>
#include <string>

#include "doctor/redact.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using gpulet::doctor::kRedacted;
  using gpulet::doctor::redact_file;
  using gpulet::doctor::redact_text;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"a.json", "a.yaml", "a.toml", "a.env", "a", "kernel.txt"}) {
    const std::string clean = redact_file(name, text);
    // What is written as a format can be read as that format. Lines of NAME=value may lose a quote.
    const std::string_view format(name);
    const bool strict = format == "a.json" || format == "a.yaml" || format == "a.toml";
    if (strict && !clean.starts_with(kRedacted) && redact_file(name, clean).starts_with(kRedacted))
      std::abort();
  }

  std::string secret;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) secret += c;
  }
  secret = "S3" + secret + "T5";  // found nowhere else
  for (const std::string& line :
       {"{\"token\":\"" + secret + "\"}", "password: " + secret, "DB_PASSWORD=" + secret,
        "--auth-token " + secret, "- name: API_KEY\n  value: " + secret, "https://u:" + secret + "@host/",
        "Bearer " + secret, "secretData: |\n  " + secret + "\n  " + secret}) {
    if (redact_text(line + "\n").find(secret) != std::string::npos) std::abort();
  }
  return 0;
}
