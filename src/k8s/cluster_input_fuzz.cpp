// What a cluster or its files say: members of lists and watches in any fragments, a kubeconfig, and the
// output of its credential program.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/file.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace {

using namespace gpulet;

struct Members {
  std::vector<std::string> all;
  bool done = false, failed = false;
  friend bool operator==(const Members&, const Members&) = default;
};

Members read_members(std::string_view text, std::size_t fragment) {
  Members members;
  k8s::JsonStream stream(
      4096,
      [&](std::string_view key, std::string_view value) {
        if (value.empty()) std::abort();
        members.all.push_back(std::string(key) + "=" + std::string(value));
      },
      [&](std::string_view item) { members.all.emplace_back(item); });
  for (std::size_t at = 0; at < text.size() && !members.failed; at += fragment)
    members.failed = !stream.feed(text.substr(at, fragment));
  members.done = stream.is_done();
  return members;
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
