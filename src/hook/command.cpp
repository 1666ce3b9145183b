#include "hook/command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <functional>

#include "base/text.h"
#include "hook/container.h"
#include "hook/ldcache.h"
#include "hook/limit_memory.h"
#include "hook/supervisor.h"

namespace gpulet::hook {
namespace {

constexpr std::array kAllSteps{Step::kCheckRequirements, Step::kDeviceParams, Step::kLinks,
                               Step::kCudaCompat,        Step::kAppProfile,   Step::kLdcache};
constexpr const char* kDirectoryOption = "folder";  // tidy: word because it is nvidia-cdi-hook's option
constexpr std::size_t kMaxArguments = 8192;
// limit-memory ends by itself at its limit: with a reason that a killed process would not give.
constexpr std::chrono::milliseconds kAnswerMargin{500};

tl::unexpected<Error> usage_error(std::string message) {
  return fail(Code::kInvalidArgument, std::move(message) + " (see gpulet-hook --help)");
}

std::string_view last_part(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Status disable_step(HookCommand& command, std::string_view names) {
  for (const std::string& hook : text::split(names, ',')) {
    if (hook == "all") {
      command.steps.clear();
      continue;
    }
    const auto step =
        std::find_if(kAllSteps.begin(), kAllSteps.end(), [&](Step s) { return step_name(s) == hook; });
    if (step == kAllSteps.end())
      return usage_error("--disable: unknown hook '" + printable_text(hook, 60) + "'");
    std::erase(command.steps, *step);
  }
  return {};
}

Status set_mode(HookCommand& command, const std::string& text) {
  const char* const end = text.c_str() + text.size();
  const auto read = std::from_chars(text.c_str(), end, command.mode, 8);
  if (text.empty() || read.ec != std::errc{} || read.ptr != end || command.mode > 07777)
    return usage_error("--mode: '" + printable_text(text, 20) + "' is not an octal mode");
  return {};
}

Status set_answer_wait(HookCommand& command, const std::string& text) {
  const auto wait = parse_duration(text);
  if (!wait || *wait <= std::chrono::nanoseconds::zero() || *wait > kMaxLimitWait)
    return usage_error("--timeout: '" + printable_text(text, 20) + "' is not a time up to 1m, such as 8s");
  command.answer_wait = std::chrono::ceil<std::chrono::milliseconds>(*wait);
  return {};
}

Status set_socket(HookCommand& command, std::string path) {
  if (!text::starts_with(path, "/"))
    return usage_error("--socket: '" + printable_text(path, 60) + "' is not an absolute path");
  command.socket = std::move(path);
  return {};
}

// Sets one option.
Status set_option(HookCommand& command, std::string_view option, std::string value) {
  if (option == "link") {
    GPULET_TRY_ASSIGN(Link link, parse_link(value));
    command.links.push_back(std::move(link));
  } else if (option == kDirectoryOption) {
    command.directories.push_back(std::move(value));
  } else if (option == "path") {
    command.paths.push_back(std::move(value));
  } else if (option == "mode") {
    return set_mode(command, value);
  } else if (option == "disable") {
    return disable_step(command, value);
  } else if (option == "socket") {
    return set_socket(command, std::move(value));
  } else if (option == "timeout") {
    return set_answer_wait(command, value);
  } else if (option == "ldconfig-path") {
    // NVIDIA's config marks a host path by "@"; here it always is one.
    command.ldconfig_path = text::starts_with(value, "@") ? value.substr(1) : value;
    if (text::starts_with(command.ldconfig_path, "/")) return {};
    return usage_error("--ldconfig-path: '" + printable_text(value, 60) + "' is not an absolute path");
  } else if (option == "host-driver-version") {
    command.host.driver = std::move(value);
  } else if (option == "host-cuda-version") {
    command.host.cuda = std::move(value);
  } else if (option == "host-arch") {
    command.host.arch = std::move(value);
  } else if (option == "host-brand") {
    command.host.brand = std::move(value);
  } else if (option == "cuda-compat-container-root") {
    command.compat_directory = value.empty() ? std::string(kCompatDirectory) : std::move(value);
  } else if (option == "host-proc") {
    command.host_proc = std::move(value);
  } else if (option == "container-spec") {
    command.state_path = std::move(value);
  } else if (option !=
             "driver-root") {  // NVIDIA's check-requirements reads it; here the properties are options
    return usage_error("unknown option '--" + printable_text(option, 60) + "'");
  }
  return {};
}

// Skips program names and NVIDIA's log options before the hook's name.
std::size_t skip_front(const std::vector<std::string>& arguments) {
  std::size_t at = 1;
  const bool is_ctk = !arguments.empty() && last_part(arguments[0]) == "nvidia-ctk";
  while (at < arguments.size() && (is_one_of(arguments[at], {"--debug", "-d", "--quiet", "-q"}) ||
                                   (is_ctk && arguments[at] == "hook")))
    ++at;
  return at;
}

// Sets the steps of the named hook. Returns false if it is unknown.
bool choose_steps(HookCommand& command, std::string_view hook) {
  if (hook == "create-container") {
    command.steps.assign(kAllSteps.begin(), kAllSteps.end());
    return true;
  }
  for (const Step step : kAllSteps)
    if (step_name(step) == hook) command.steps = {step};
  for (const Step step : {Step::kChmod, Step::kLimitMemory})
    if (step_name(step) == hook) command.steps = {step};
  return !command.steps.empty();
}

}  // namespace

std::string_view step_name(Step step) {
  switch (step) {
    case Step::kCheckRequirements:
      return "check-requirements";
    case Step::kLinks:
      return "create-symlinks";
    case Step::kCudaCompat:
      return "enable-cuda-compat";
    case Step::kLdcache:
      return "update-ldcache";
    case Step::kDeviceParams:
      return "disable-device-node-modification";
    case Step::kAppProfile:
      return "update-application-profile";
    case Step::kChmod:
      return "chmod";
    case Step::kLimitMemory:
      return "limit-memory";
  }
  return "";
}

bool is_required(Step step) {
  return step == Step::kCheckRequirements || step == Step::kDeviceParams || step == Step::kLimitMemory;
}

std::chrono::milliseconds command_time_limit(const HookCommand& command) {
  const bool asks = std::ranges::count(command.steps, Step::kLimitMemory) != 0;
  return asks ? command.answer_wait + kAnswerMargin : kHookTimeLimit;
}

Result<HookCommand> parse_command(const std::vector<std::string>& arguments) {
  if (arguments.size() > kMaxArguments) return usage_error("more than 8192 arguments");
  HookCommand command;
  std::size_t at = skip_front(arguments);
  if (at >= arguments.size()) return usage_error("missing hook name");
  const std::string& hook = arguments[at];
  if (is_one_of(hook, {"--help", "-h", "help"}))
    return HookCommand{.kind = HookCommand::Kind::kHelp, .requested_hook = {}};
  if (is_one_of(hook, {"--version", "-v"}))
    return HookCommand{.kind = HookCommand::Kind::kVersion, .requested_hook = {}};
  if (!choose_steps(command, hook)) {
    if (last_part(arguments[0]) == "gpulet-hook")
      return usage_error("unknown hook '" + printable_text(hook, 60) + "'");
    return HookCommand{.kind = HookCommand::Kind::kUnknownHook, .requested_hook = printable_text(hook, 60)};
  }
  for (++at; at < arguments.size(); ++at) {
    std::string_view option = arguments[at];
    if (is_one_of(option, {"--help", "-h"}))
      return HookCommand{.kind = HookCommand::Kind::kHelp, .requested_hook = {}};
    if (!text::starts_with(option, "--"))
      return usage_error("'" + printable_text(option, 60) + "' is not an option");
    option.remove_prefix(2);
    if (const auto equals = option.find('='); equals != std::string_view::npos) {
      GPULET_TRY(set_option(command, option.substr(0, equals), std::string(option.substr(equals + 1))));
    } else if (at + 1 < arguments.size()) {
      GPULET_TRY(set_option(command, option, arguments[++at]));
    } else {
      return usage_error("'--" + printable_text(option, 60) + "' needs a value");
    }
  }
  if (command.steps == std::vector{Step::kLimitMemory} && command.socket.empty())
    return usage_error("limit-memory needs --socket");
  return command;
}

std::string help_text() {
  return std::string(R"(Complete the driver set-up of a container.
gpulet-hook is an OCI createContainer hook: it reads the container's state from standard input.

  gpulet-hook create-container [OPTION...]   all of the following except chmod, in this order
  gpulet-hook check-requirements             NVIDIA_REQUIRE_*: refuse an image that needs a newer driver
  gpulet-hook disable-device-node-modification
  gpulet-hook create-symlinks                --link
  gpulet-hook enable-cuda-compat             prefer the image's newer libcuda if it works with this driver
  gpulet-hook update-application-profile
  gpulet-hook update-ldcache                 --)") +
         kDirectoryOption + R"(, --ldconfig-path
  gpulet-hook chmod                          --mode, --path
  gpulet-hook limit-memory                   --socket, --timeout: as a createRuntime hook, wait until the
                                             agent has set the driver's memory limits of the container

  --link TARGET::LINK                create the symbolic link LINK to TARGET (repeatable)
  --)" + kDirectoryOption +
         R"( PATH                      add a library directory to the ld cache (repeatable)
  --ldconfig-path PATH               the host's ldconfig (default /sbin/ldconfig)
  --host-driver-version VERSION      --host-cuda-version VERSION
  --host-arch VERSION                compute capability, for NVIDIA_REQUIRE_*
  --host-brand WORD                  brand, for NVIDIA_REQUIRE_*
  --cuda-compat-container-root PATH  directory of the image's libcuda (default /usr/local/cuda/compat)
  --host-proc PATH                   the host's /proc (default /proc)
  --disable NAME[,NAME]              skip these steps of create-container, or "all"
  --mode MODE --path PATH            chmod: an octal mode, and directories (repeatable)
  --socket PATH                      the agent's socket for memory limits
  --timeout TIME                     how long to wait for the agent (default 8s)
  --container-spec PATH              read the state from a file

Called as nvidia-cdi-hook, or as nvidia-ctk with "hook" first, it ignores unknown hooks.
)";
}

// Runs the steps of a command.

namespace {

// The deprecated chmod hook, for directories only: it was made for /dev/dri and /dev/nvidia-caps.
Status change_modes(const Container& container, const HookCommand& command) {
  for (const std::string& path : command.paths) {
    // As for writes: only on the root's own mount or the container's own /dev.
    if (!container.root.is_directory(path)) continue;
    GPULET_TRY_ASSIGN(const FileDescriptor directory, container.root.make_directories(path));
    const std::string own = "/proc/self/fd/" + std::to_string(directory.get());
    if (::chmod(own.c_str(), command.mode) != 0)
      return fail(errno_error("cannot change its mode", errno, path));
  }
  return {};
}

Status run_step(Step step, const HookCommand& command, const Container& container) {
  switch (step) {
    case Step::kCheckRequirements:
      return check_requirements(container.environment, command.host);
    case Step::kLinks:
      return make_links(container, command.links);
    case Step::kCudaCompat:
      return enable_cuda_compat(container, {command.host.driver, command.host.cuda},
                                command.compat_directory);
    case Step::kLdcache:
      return update_ldcache(container, LdcacheOptions{command.ldconfig_path, command.directories});
    case Step::kDeviceParams:
      return disable_device_modification(container, command.host_proc);
    case Step::kAppProfile:
      return write_app_profile(container);
    case Step::kChmod:
      return change_modes(container, command);
    case Step::kLimitMemory:  // runs without the container's files
      break;
  }
  return {};
}

// Calls `read` with a descriptor of the state.
template <class Read>
auto read_state(const std::string& path, Read read) -> decltype(read(STDIN_FILENO)) {
  if (path.empty() || path == "-") return read(STDIN_FILENO);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.is_open()) return fail(errno_error("cannot open", errno, path));
  return read(file.get());
}

Status ask_for_limits(const HookCommand& command) {
  const auto asked = read_state(command.state_path, [&](int state) {
    return limit_memory(state, command.socket, command.host_proc, command.answer_wait);
  });
  if (asked) return {};
  return fail(asked.error().code(),
              std::string(step_name(Step::kLimitMemory)) + ": " + asked.error().full_message());
}

}  // namespace

Status run_command(const HookCommand& command, const std::function<void(const Error&)>& warn,
                   const std::function<void(std::size_t)>& begin_step) {
  if (command.steps == std::vector{Step::kLimitMemory}) {
    begin_step(0);
    return ask_for_limits(command);
  }
  GPULET_TRY_ASSIGN(const Container container, read_state(command.state_path, read_container));
  for (std::size_t i = 0; i < command.steps.size(); ++i) {
    const Step step = command.steps[i];
    begin_step(i);
    const Status done = run_step(step, command, container);
    if (done) continue;
    const Code code = done.error().code();
    const Error error(code, std::string(step_name(step)) + ": " + done.error().full_message());
    // Read-only root, a mount in the way, missing permission, or no time: the container runs without this
    // step.
    const bool may_miss = code == Code::kPermissionDenied || code == Code::kDeadlineExceeded;
    if (is_required(step) || !may_miss) return fail(error);
    warn(error);
  }
  return {};
}

Overrun describe_overrun(const HookCommand& command, std::size_t begun) {
  const std::size_t unfinished = begun == 0 ? 0 : begun - 1;
  const bool may_start = begun > 0 && begun <= command.steps.size() &&
                         std::none_of(command.steps.begin() + static_cast<std::ptrdiff_t>(unfinished),
                                      command.steps.end(), is_required);
  const std::string where =
      begun == 0 ? std::string("reading the container's state")
                 : std::string(step_name(command.steps[std::min(unfinished, command.steps.size() - 1)]));
  return {Error(Code::kDeadlineExceeded,
                where + ": ended at the limit of " + format_duration(command_time_limit(command)) +
                    (may_start ? "; the container starts without it and what follows it" : "")),
          may_start};
}

}  // namespace gpulet::hook
