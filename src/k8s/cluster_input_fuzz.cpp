// What a cluster or its files say: members of lists and watches in any fragments, events of a watch, a
// refusal, a kubeconfig, and the output of its credential program.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace {

using namespace gpulet;

constexpr std::size_t kMaxMemberBytes = 4096;

struct Members {
  std::vector<std::string> all;
  bool done = false, failed = false;
  friend bool operator==(const Members&, const Members&) = default;
};

Members read_members(std::string_view text, std::size_t fragment) {
  Members members;
  k8s::JsonStream stream(
      kMaxMemberBytes,
      [&](std::string_view key, std::string_view value) {
        if (value.empty() || (value.front() == '{' && value.size() > kMaxMemberBytes)) std::abort();
        members.all.push_back(std::string(key) + "=" + std::string(value));
      },
      [&](std::string_view item) {
        if (item.empty() || item.size() > kMaxMemberBytes) std::abort();
        members.all.emplace_back(item);
      });
  for (std::size_t at = 0; at < text.size() && !members.failed; at += fragment)
    members.failed = !stream.feed(text.substr(at, fragment));
  members.done = stream.is_done();
  return members;
}

// Every object that another library takes, within the limits, is taken apart to its end, and each part of it
// is JSON again: this is how an event of a watch gets its object.
void compare_with_library(std::string_view text) {
  if (text.size() > kMaxMemberBytes || text.starts_with("\xEF\xBB\xBF")) return;  // a byte order mark
  const auto document = parse_json<nlohmann::json>(text);
  if (!document.is_object()) return;
  k8s::JsonStream stream(
      kMaxMemberBytes,
      [&](std::string_view key, std::string_view value) {
        const auto name = parse_json<nlohmann::json>("\"" + std::string(key) + "\"");
        const auto member = parse_json<nlohmann::json>(value);
        if (!name.is_string() || !document.contains(name.get<std::string>()) || member.is_discarded())
          std::abort();
      },
      [&](std::string_view item) {
        if (!parse_json<nlohmann::json>(item).is_object()) std::abort();
      });
  if (stream.feed(text) && !stream.is_done()) std::abort();
  for (const char* name : {"type", "kind"}) {
    const auto read = k8s::string_member(text, name);
    if (!read.empty() && !document.contains(name)) std::abort();
  }
}

// One line of bounded length for the log, whatever the server answers.
void check_refusal(const std::string& text) {
  const http::ClientResponse refusal{.status = 403, .body = text};
  const auto described = k8s::describe_response(refusal);
  if (described.empty() || described.find('\n') != std::string::npos) std::abort();
  if (k8s::has_cause(refusal, "NamespaceTerminating") && text.find("causes") == std::string::npos &&
      text.find('\\') == std::string::npos)
    std::abort();
}

Result<k8s::ClientConfig> read_kubeconfig(const std::string& text) {
  const FileDescriptor file(::memfd_create("kubeconfig", MFD_CLOEXEC));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  return k8s::load_kubeconfig("/proc/self/fd/" + std::to_string(file.get()), {.allowed = true});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // However the bytes arrive, the members are the same.
  if (!(read_members(text, text.size() + 1) == read_members(text, 1u + data[0] % 16))) std::abort();
  if (k8s::metadata_string(text, "name").size() > text.size()) std::abort();
  compare_with_library(text);
  check_refusal(text);

  const auto credential = k8s::parse_exec_credential(text, k8s::kExecVersions[0]);
  if (credential && (credential->token.find('\n') != std::string::npos ||
                     credential->certificate.empty() != credential->key.empty()))
    std::abort();
  if (!credential && credential.error().message().find('\n') != std::string::npos) std::abort();

  const auto config = read_kubeconfig(text);
  if (config && (config->host.empty() || config->token.find('\n') != std::string::npos)) std::abort();
  if (!config && config.error().full_message().find('\n') != std::string::npos) std::abort();
  return 0;
}
