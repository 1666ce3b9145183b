#include "hook/limit_memory.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "base/unified_cgroup.h"
#include "hook/container.h"
#include "hook/json_reader.h"
#include "hook/requirements.h"

namespace gpulet::hook {
namespace {

using LimitClock = std::chrono::steady_clock;

constexpr std::size_t kMaxNameBytes = 253;
constexpr std::size_t kMaxProcCgroupBytes = 64u << 10;
constexpr std::size_t kMaxReasonBytes = 600;
constexpr const char* kRetried = "; the kubelet tries again";
// An agent that is updated or restarted is back in a moment.
constexpr std::chrono::milliseconds kAgentRetry{100};

// The same facts under the names of each runtime.
struct RuntimeKeys {
  std::string_view pod_uid, container, name_space, pod;
};
constexpr std::array kRuntimeKeys{
    RuntimeKeys{"io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.container-name",
                "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},  // containerd
    RuntimeKeys{"io.kubernetes.pod.uid", "io.kubernetes.container.name", "io.kubernetes.pod.namespace",
                "io.kubernetes.pod.name"},  // CRI-O
};

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return text::is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
           c == '_';
  });
}

Status check_name(std::string_view what, std::string_view name) {
  if (is_plain_name(name)) return {};
  return fail(Code::kInvalidArgument, "the container's state: " + std::string(what) +
                                          (name.empty() ? " is missing" : " is not a name: '") +
                                          (name.empty() ? "" : printable_text(name, 60) + "'"));
}

// Takes the value of an annotation. A Pod's author may write the annotation of another runtime.
Status merge_name(std::string_view key, const std::string& found, std::string& name) {
  if (found.empty() || found == name) return {};
  if (!name.empty())
    return fail(Code::kInvalidArgument, "the container's state: annotation " + std::string(key) + " is '" +
                                            printable_text(found, 60) + "', another one says '" +
                                            printable_text(name, 60) + "'");
  name = found;
  return {};
}

// Null: the annotation is no name.
std::string* name_for(const RuntimeKeys& keys, std::string_view key, NamedContainer& container) {
  if (key == keys.pod_uid) return &container.pod_uid;
  if (key == keys.container) return &container.name;
  if (key == keys.name_space) return &container.name_space;
  return key == keys.pod ? &container.pod : nullptr;
}

Status read_annotations(JsonReader& json, NamedContainer& container) {
  if (json.consume_null()) return {};
  return json.read_object([&](std::string_view key) -> Status {
    for (const auto& keys : kRuntimeKeys) {
      auto* name = name_for(keys, key, container);
      if (name == nullptr) continue;
      std::string value;
      GPULET_TRY(json.read_string_into(value));
      return merge_name(key, value, *name);
    }
    return json.skip_value();
  });
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < ' ') {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15u];
    } else {
      out += c;
    }
  }
  out += '"';
}

tl::unexpected<Error> answer_late(std::chrono::milliseconds limit) {
  return fail(Code::kDeadlineExceeded, "the agent has not answered within " + format_duration(limit) +
                                           ", so no memory limit is in force" + kRetried);
}

tl::unexpected<Error> agent_ended(const std::string& socket) {
  return fail(
      Code::kUnavailable,
      "the agent ended before it answered: check that gpulet's Pod of this node runs" + std::string(kRetried),
      socket);
}

// Waits for one of `events`; false at `end`.
bool wait_for(int fd, short events, LimitClock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - LimitClock::now()).count();
    pollfd ready{fd, events, 0};
    const int count = ::poll(&ready, 1, left > 0 ? static_cast<int>(left) : 0);
    if (count > 0) return true;
    if (left <= 0) return false;
  }
}

// "" at the end of the connection; nullopt where there is nothing yet.
std::optional<std::string> receive_some(int fd) {
  std::array<char, 4096> buffer{};
  const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  return std::string(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
}

// `end` is when `limit` is over.
Result<std::string> exchange_lines(int fd, std::string_view request, const std::string& socket,
                                   std::chrono::milliseconds limit, LimitClock::time_point end) {
  while (!request.empty()) {
    if (!wait_for(fd, POLLOUT, end)) return answer_late(limit);
    const ssize_t sent = ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      request.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      break;  // an agent that refuses at once has answered already
    }
  }
  std::string answer;
  for (;;) {
    if (!wait_for(fd, POLLIN, end)) return answer_late(limit);
    const auto part = receive_some(fd);
    if (!part) continue;
    if (part->empty()) return agent_ended(socket);
    answer += *part;
    const auto newline = answer.find('\n');
    if (newline != std::string::npos) return answer.substr(0, newline);
    if (answer.size() > kMaxLimitAnswerBytes)
      return fail(Code::kInvalidArgument, "the agent's answer is too long", socket);
  }
}

Result<std::string> ask_agent(const std::string& request, const std::string& socket,
                              std::chrono::milliseconds limit, LimitClock::time_point end) {
  const auto agent = connect_unix_socket(socket);
  if (!agent) {
    return fail(Error(Code::kUnavailable,
                      "no agent answers (" + agent.error().message() +
                          "): check that gpulet's Pod of this node runs, with "
                          "gpulet.fraction.driverLimits" +
                          kRetried,
                      socket));
  }
  return exchange_lines(agent->get(), request, socket, limit, end);
}

}  // namespace

Result<NamedContainer> parse_named_container(std::string_view state) {
  JsonReader json(state);
  NamedContainer container;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "id") return json.read_string_into(container.id);
    if (key == "annotations") return read_annotations(json, container);
    if (key != "pid") return json.skip_value();
    GPULET_TRY_ASSIGN(container.pid, json.read_unsigned());
    return {};
  }));
  GPULET_TRY(json.expect_end());
  GPULET_TRY(check_name("its id", container.id));
  if (container.pid == 0)
    return fail(Code::kInvalidArgument, "the container's state: the pid of its first process is missing");
  GPULET_TRY(
      check_name("the annotation with the Pod's UID (io.kubernetes.cri.sandbox-uid)", container.pod_uid));
  GPULET_TRY(check_name("the annotation with its name (io.kubernetes.cri.container-name)", container.name));
  return container;
}

std::string limit_request_line(const NamedContainer& container, std::string_view cgroup) {
  std::string line = R"({"version":1,"id":)";
  append_quoted(line, container.id);
  line += R"(,"pid":)" + std::to_string(container.pid) + R"(,"podUID":)";
  append_quoted(line, container.pod_uid);
  line += R"(,"container":)";
  append_quoted(line, container.name);
  line += R"(,"cgroup":)";
  append_quoted(line, cgroup);
  // The agent trusts neither: it reads that Pod first, and compares its UID.
  if (is_plain_name(container.name_space) && is_plain_name(container.pod)) {
    line += R"(,"namespace":)";
    append_quoted(line, container.name_space);
    line += R"(,"pod":)";
    append_quoted(line, container.pod);
  }
  return line + "}\n";
}

Status parse_limit_answer(std::string_view line) {
  JsonReader json(line);
  std::optional<bool> allowed;
  std::string reason;
  const auto read = json.read_object([&](std::string_view key) -> Status {
    if (key == "reason") return json.read_string_into(reason);
    if (key != "allowed") return json.skip_value();
    GPULET_TRY_ASSIGN(allowed, json.read_boolean());
    return {};
  });
  if (!read || !json.expect_end() || !allowed)
    return fail(Code::kInvalidArgument,
                "the agent's answer is not one of gpulet's: check that agent and "
                "gpulet-hook have the same version");
  if (*allowed) return {};
  return fail(Code::kPermissionDenied, "no memory limit: " + printable_text(reason, kMaxReasonBytes));
}

Status limit_memory(int state_fd, const std::string& socket, const std::string& host_proc,
                    std::chrono::milliseconds limit) {
  GPULET_TRY_ASSIGN(const std::string state, read_all(state_fd, "the container's state", kMaxStateBytes));
  GPULET_TRY_ASSIGN(const auto container, parse_named_container(state));
  GPULET_TRY_ASSIGN(
      const std::string cgroup,
      read_file(host_proc + "/" + std::to_string(container.pid) + "/cgroup", kMaxProcCgroupBytes));
  const std::string request = limit_request_line(container, unified_cgroup(cgroup));
  const auto end = LimitClock::now() + limit;
  for (;;) {
    const auto answer = ask_agent(request, socket, limit, end);
    if (answer) return parse_limit_answer(*answer);
    if (answer.error().code() != Code::kUnavailable || LimitClock::now() + kAgentRetry >= end)
      return fail(answer.error());
    ::poll(nullptr, 0, static_cast<int>(kAgentRetry.count()));
  }
}

}  // namespace gpulet::hook
