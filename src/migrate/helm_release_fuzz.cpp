// Fuzzes the Secret of a Helm release. The first byte chooses what the rest is: '0' the release, which is
// packed as Helm does, '1' the Secret, '2' the release's gzip.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "http/message.h"
#include "migrate/scan.h"

namespace {

using namespace gpulet;
using nlohmann::json;

constexpr const char* kPassword = "a-password-of-the-release";

std::string secret_of(std::string_view gzip) {
  return json{{"type", "helm.sh/release.v1"},
              {"data", {{"release", text::encode_base64(text::encode_base64(gzip))}}}}
      .dump();
}

// Leaves as parse_helm_release() counts them: a list, an empty object and the free text of config.map are
// one.
std::size_t count_leaves(const json& values, const std::string& path) {
  std::size_t count = 0;
  for (const auto& [key, value] : values.items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    count += value.is_object() && !value.empty() && name != "config.map" ? count_leaves(value, name) : 1;
  }
  return count;
}

void check_release(const migrate::HelmRelease& release) {
  if (release.name.empty() || release.chart.empty()) std::abort();
  for (const auto& [name, value] : release.values) {
    if (name.empty() || value.find(kPassword) != std::string::npos) std::abort();
  }
}

// A release that was packed here: every value is accounted for, and a password is not among them.
void check_packed_release(json release) {
  json& values = release["config"];
  if (!values.is_object()) values = json::object();
  if (values.dump(-1, ' ', false, json::error_handler_t::replace).find(kPassword) != std::string::npos)
    return;
  values["fuzz"] = {{"password", kPassword}};
  const auto made = migrate::parse_helm_release(
      secret_of(http::gzip(release.dump(-1, ' ', false, json::error_handler_t::replace))));
  if (!made) {
    if (made.error().message().find(kPassword) != std::string::npos) std::abort();
    return;
  }
  check_release(*made);
  if (made->values.size() + made->other_names.size() != count_leaves(values, "")) std::abort();
  std::size_t passwords = 0;
  for (const auto& name : made->other_names) passwords += name == "fuzz.password" ? 1 : 0;
  if (passwords == 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) {
    if (auto release = parse_json<json>(rest); release.is_object()) check_packed_release(std::move(release));
    return 0;
  }
  const std::string secret = data[0] % 3 == 1 ? std::string(rest) : secret_of(rest);
  const auto release = migrate::parse_helm_release(secret);
  if (release) return check_release(*release), 0;
  // The message has none of the Secret's content.
  const auto& message = release.error().message();
  if (message.empty() || message.size() > 100) std::abort();
  return 0;
}
