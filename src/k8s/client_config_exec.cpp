#include "base/json.h"
#include "k8s/client_config.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/text.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kMaxStderrBytes = 16u << 10;  // of standard error, for the error message
constexpr std::size_t kMaxErrorTextBytes = 300;

// A non-blocking end for gpulet and an end for the program.
struct Pipe {
  FileDescriptor our_end, child_end;
};
Result<Pipe> make_pipe(const std::string& about) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno, about));
  Pipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
    return fail(errno_error("cannot set up a pipe", errno, about));
  return pipe;
}

bool is_executable(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// Finds a name without a slash in the absolute directories of PATH: a program in the working directory must
// not be run by accident.
Result<std::string> find_in_path(const ExecPlugin& plugin, const ExecPolicy& programs) {
  const std::string hint = plugin.install_hint.empty() ? "" : "; " + truncate_utf8(plugin.install_hint, 1000);
  if (plugin.command.find('/') != std::string::npos) {
    if (is_executable(plugin.command)) return plugin.command;
    return fail(Code::kNotFound, "program not found: " + plugin.command + hint, plugin.source);
  }
  const auto path = programs.environment.find("PATH");
  if (path != programs.environment.end()) {
    for (const auto& directory : text::split(path->second, ':')) {
      std::string file = directory + "/" + plugin.command;
      if (directory.starts_with('/') && is_executable(file)) return file;
    }
  }
  return fail(Code::kNotFound, "program not found: " + plugin.command + " in PATH" + hint, plugin.source);
}

std::vector<std::string> make_child_environment(const ExecPlugin& plugin, const ExecPolicy& programs,
                                                bool interactive) {
  auto all = programs.environment;
  for (const auto& [name, value] : plugin.environment) all[name] = value;
  json spec{{"interactive", interactive}};
  if (!plugin.cluster.empty()) spec["cluster"] = parse_json(plugin.cluster);
  all["KUBERNETES_EXEC_INFO"] =
      serialize_json({{"apiVersion", plugin.api_version}, {"kind", "ExecCredential"}, {"spec", spec}});
  std::vector<std::string> result;
  for (const auto& [name, value] : all) result.push_back(name + "=" + value);
  return result;
}

// The first non-empty line, safe for a terminal.
std::string first_line(const std::string& output) {
  for (const auto& line : text::split(output, '\n')) {
    std::string text = sanitize_line(std::string(text::trim(line)));
    if (!text.empty()) return truncate_utf8(std::move(text), kMaxErrorTextBytes);
  }
  return {};
}

// The output of the program, read until it exits.
class PluginOutput {
 public:
  PluginOutput(const ExecPlugin& plugin, FileDescriptor answer, FileDescriptor errors, bool passed_on)
      : plugin_(plugin), answer_(std::move(answer)), errors_(std::move(errors)), passed_on_(passed_on) {}

  Result<ProcessExit> read_until_end(Process& process, SteadyTime deadline) {
    for (;;) {
      GPULET_TRY(read_both());
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return fail(Code::kDeadlineExceeded, "", plugin_.source);
      std::array<pollfd, 3> waiting{pollfd{answer_.get(), POLLIN, 0}, pollfd{errors_.get(), POLLIN, 0},
                                    pollfd{process.descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(),
             static_cast<int>(std::min<std::int64_t>(left.count(), 3'600'000)));
      // Its child processes may keep the pipes open, so its own exit ends the read.
      if (waiting[2].revents == 0) continue;
      GPULET_TRY(read_both());
      return process.wait_for_exit(std::chrono::seconds(1));
    }
  }

  const std::string& standard_output() const { return answer_text_; }
  const std::string& standard_error() const { return error_text_; }

 private:
  Status read_both() {
    GPULET_TRY(read_pipe(answer_, [this](std::string_view piece) {
      answer_text_ += piece;
      return answer_text_.size() <= kMaxExecOutputBytes;
    }));
    return read_pipe(errors_, [this](std::string_view piece) {
      if (passed_on_) {
        [[maybe_unused]] const auto written = ::write(STDERR_FILENO, piece.data(), piece.size());
      }
      if (error_text_.size() < kMaxStderrBytes) error_text_ += piece;
      return true;
    });
  }

  template <class Take>
  Status read_pipe(FileDescriptor& from, Take take) {
    std::array<char, 16'384> buffer;
    while (from.is_open()) {
      const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return {};
      if (got <= 0) {
        from.reset();  // poll ignores it
      } else if (!take(std::string_view(buffer.data(), static_cast<std::size_t>(got)))) {
        return fail(Code::kInvalidArgument, plugin_.command + " printed more than 1 MiB", plugin_.source);
      }
    }
    return {};
  }

  const ExecPlugin& plugin_;
  FileDescriptor answer_, errors_;
  const bool passed_on_;
  std::string answer_text_, error_text_;
};

}  // namespace

Result<Credential> parse_exec_credential(const std::string& answer, const std::string& version) {
  const auto wrong = [](const std::string& message) { return fail(Code::kInvalidArgument, message); };
  const auto object = parse_json(answer);
  if (!object.is_object()) return wrong(answer.empty() ? "printed nothing" : "did not print a JSON object");
  if (json_text(json_member(object, "kind")) != "ExecCredential")
    return wrong("did not print an ExecCredential");
  if (const auto printed = json_text(json_member(object, "apiVersion")); printed != version)
    return wrong("printed the apiVersion " + serialize_json(truncate_utf8(printed, 100)) +
                 ", and the kubeconfig has apiVersion: " + version);
  const auto& status = json_member(object, "status");
  Credential credential{.token = json_text(json_member(status, "token")),
                        .certificate = json_text(json_member(status, "clientCertificateData")),
                        .key = json_text(json_member(status, "clientKeyData")),
                        .expires = {}};
  if (credential.certificate.empty() != credential.key.empty())
    return wrong("printed a certificate without its key, or a key without its certificate");
  if (credential.token.empty() && credential.certificate.empty())
    return wrong("printed neither a token nor a certificate");
  if (credential.token.find_first_of("\r\n") != std::string::npos)
    return wrong("printed a token of more than one line");
  if (const auto expires = json_text(json_member(status, "expirationTimestamp")); !expires.empty()) {
    credential.expires = parse_rfc3339(expires);
    if (!credential.expires)
      return wrong("printed the expirationTimestamp " + serialize_json(truncate_utf8(expires, 100)) +
                   ", which is not a time");
  }
  return credential;
}

Result<Credential> run_exec_plugin(const ExecPlugin& plugin, const ExecPolicy& programs) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  const bool interactive = terminal && plugin.interactive != ExecPlugin::Interactive::kNever;
  if (!interactive && plugin.interactive == ExecPlugin::Interactive::kAlways) {
    return fail(
        Code::kFailedPrecondition,
        plugin.command + " requires a terminal (interactiveMode: Always), and standard input is not one",
        plugin.source);
  }
  GPULET_TRY_ASSIGN(const std::string program, find_in_path(plugin, programs));
  GPULET_TRY_ASSIGN(Pipe answer, make_pipe(plugin.source));
  GPULET_TRY_ASSIGN(Pipe errors, make_pipe(plugin.source));
  ProcessOptions options{.program = program,
                         .arguments = {plugin.command},
                         .environment = make_child_environment(plugin, programs, interactive),
                         .descriptors = {{answer.child_end.get(), 1}, {errors.child_end.get(), 2}}};
  options.arguments.insert(options.arguments.end(), plugin.arguments.begin(), plugin.arguments.end());
  if (interactive) options.descriptors.emplace_back(STDIN_FILENO, 0);
  options.own_group = !interactive;  // in another process group it could not read from the terminal
  const auto process = Process::spawn(options);
  if (!process) return fail(process.error().code(), process.error().full_message(), plugin.source);
  answer.child_end.reset();
  errors.child_end.reset();
  const Duration limit = interactive ? std::max(programs.limit, kExecLimitAtTerminal) : programs.limit;
  PluginOutput listening(plugin, std::move(answer.our_end), std::move(errors.our_end), interactive);
  const auto ended = listening.read_until_end(**process, std::chrono::steady_clock::now() + limit);
  const auto error_line = first_line(listening.standard_error());
  const std::string why = error_line.empty() ? "" : ": " + error_line;
  if (!ended && ended.error().code() == Code::kDeadlineExceeded) {
    return fail(Code::kDeadlineExceeded,
                plugin.command + " did not end within " +
                    std::to_string(std::chrono::ceil<std::chrono::seconds>(limit).count()) + " s" + why,
                plugin.source);
  }
  if (!ended) return fail(ended.error());
  if (!ended->succeeded())
    return fail(Code::kUnavailable, plugin.command + " ended with " + ended->exit_text() + why,
                plugin.source);
  auto credential = parse_exec_credential(listening.standard_output(), plugin.api_version);
  if (credential) return credential;
  return fail(credential.error().code(), plugin.command + " " + credential.error().message(), plugin.source);
}

std::function<Result<Credential>()> cache_exec_credential(ExecPlugin plugin, ExecPolicy programs) {
  // Shared by all copies of a ClientConfig, so that the program does not run once for each.
  const auto last = std::make_shared<std::optional<Credential>>();
  return [plugin = std::move(plugin), programs = std::move(programs), last]() -> Result<Credential> {
    const bool valid = *last && (!(*last)->expires || *(*last)->expires > std::chrono::system_clock::now());
    if (!valid) {
      GPULET_TRY_ASSIGN(*last, run_exec_plugin(plugin, programs));
    }
    return **last;
  };
}

}  // namespace gpulet::k8s
