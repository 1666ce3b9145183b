#include "hook/command.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace gpulet::hook {
namespace {

constexpr std::array kAllSteps{Step::kCheckRequirements, Step::kLinks,        Step::kCudaCompat,
                               Step::kLdcache,           Step::kDeviceParams, Step::kAppProfile};
constexpr std::size_t kMaxArguments = 8192;

tl::unexpected<Error> usage(std::string message) {
  return fail(Code::kInvalidArgument, std::move(message) + " (gpulet-hook --help says what there is)");
}

std::string_view last_part(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Status disable(Command& command, std::string_view names) {
  for (const std::string& hook : text::split(names, ',')) {
    if (hook == "all") {
      command.steps.clear();
      continue;
    }
    const auto step =
        std::find_if(kAllSteps.begin(), kAllSteps.end(), [&](Step s) { return name(s) == hook; });
    if (step == kAllSteps.end()) return usage("--disable: there is no hook '" + shown(hook, 60) + "'");
    std::erase(command.steps, *step);
  }
  return {};
}

Status set_mode(Command& command, const std::string& text) {
  const char* const end = text.c_str() + text.size();
  const auto read = std::from_chars(text.c_str(), end, command.mode, 8);
  if (text.empty() || read.ec != std::errc{} || read.ptr != end || command.mode > 07777)
    return usage("--mode: '" + shown(text, 20) + "' is no octal mode");
  return {};
}

// One option with its value.
Status set_option(Command& command, std::string_view option, std::string value) {
  if (option == "link") {
    GPULET_TRY_ASSIGN(Link link, parse_link(value));
    command.links.push_back(std::move(link));
  } else if (option == "folder") {
    command.folders.push_back(std::move(value));
  } else if (option == "path") {
    command.paths.push_back(std::move(value));
  } else if (option == "mode") {
    return set_mode(command, value);
  } else if (option == "disable") {
    return disable(command, value);
  } else if (option == "ldconfig-path") {
    // "@" in front is how NVIDIA's config says "the host's": it always is.
    command.ldconfig_path = text::starts_with(value, "@") ? value.substr(1) : value;
    if (text::starts_with(command.ldconfig_path, "/")) return {};
    return usage("--ldconfig-path: '" + shown(value, 60) + "' is not an absolute path");
  } else if (option == "host-driver-version") {
    command.host.driver = std::move(value);
  } else if (option == "host-cuda-version") {
    command.host.cuda = std::move(value);
  } else if (option == "host-arch") {
    command.host.arch = std::move(value);
  } else if (option == "host-brand") {
    command.host.brand = std::move(value);
  } else if (option == "cuda-compat-container-root") {
    command.compat_folder = value.empty() ? std::string(kCompatFolder) : std::move(value);
  } else if (option == "host-proc") {
    command.host_proc = std::move(value);
  } else if (option == "container-spec") {
    command.state_path = std::move(value);
  } else if (option != "driver-root") {  // check-requirements' of NVIDIA: ours is told what it would look for
    return usage("there is no option '--" + shown(option, 60) + "'");
  }
  return {};
}

// What stands before the hook's name: programs' names, and switches of NVIDIA's that say how much to log.
std::size_t skip_front(const std::vector<std::string>& arguments) {
  std::size_t at = 1;
  const bool is_ctk = !arguments.empty() && last_part(arguments[0]) == "nvidia-ctk";
  while (at < arguments.size() && (is_one_of(arguments[at], {"--debug", "-d", "--quiet", "-q"}) ||
                                   (is_ctk && arguments[at] == "hook")))
    ++at;
  return at;
}

// The hook's name into the command's steps. False when it is no hook of ours.
bool choose_steps(Command& command, std::string_view hook) {
  if (hook == "create-container") {
    command.steps.assign(kAllSteps.begin(), kAllSteps.end());
    return true;
  }
  for (const Step step : {Step::kCheckRequirements, Step::kLinks, Step::kCudaCompat, Step::kLdcache,
                          Step::kDeviceParams, Step::kAppProfile, Step::kChmod})
    if (name(step) == hook) command.steps = {step};
  return !command.steps.empty();
}

}  // namespace

std::string_view name(Step step) {
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
  }
  return "";
}

Result<Command> parse_command(const std::vector<std::string>& arguments) {
  if (arguments.size() > kMaxArguments) return usage("more than 8192 arguments");
  Command command;
  std::size_t at = skip_front(arguments);
  if (at >= arguments.size()) return usage("a hook's name is missing");
  const std::string& hook = arguments[at];
  if (is_one_of(hook, {"--help", "-h", "help"})) return Command{.kind = Command::Kind::kHelp, .asked = {}};
  if (is_one_of(hook, {"--version", "-v"})) return Command{.kind = Command::Kind::kVersion, .asked = {}};
  if (!choose_steps(command, hook)) {
    if (last_part(arguments[0]) == "gpulet-hook") return usage("there is no hook '" + shown(hook, 60) + "'");
    return Command{.kind = Command::Kind::kUnknownHook, .asked = shown(hook, 60)};
  }
  for (++at; at < arguments.size(); ++at) {
    std::string_view option = arguments[at];
    if (is_one_of(option, {"--help", "-h"})) return Command{.kind = Command::Kind::kHelp, .asked = {}};
    if (!text::starts_with(option, "--")) return usage("'" + shown(option, 60) + "' is no option");
    option.remove_prefix(2);
    if (const auto equals = option.find('='); equals != std::string_view::npos) {
      GPULET_TRY(set_option(command, option.substr(0, equals), std::string(option.substr(equals + 1))));
    } else if (at + 1 < arguments.size()) {
      GPULET_TRY(set_option(command, option, arguments[++at]));
    } else {
      return usage("'--" + shown(option, 60) + "' is without its value");
    }
  }
  return command;
}

std::string help_text() {
  return R"(gpulet-hook: finishes a container's driver set-up.
An OCI createContainer hook: it reads the container's state from standard input.

  gpulet-hook create-container [OPTION...]   all of the following but chmod, in this order
  gpulet-hook check-requirements             NVIDIA_REQUIRE_*: refuse an image that this driver is too old for
  gpulet-hook create-symlinks                --link
  gpulet-hook enable-cuda-compat             the image's newer libcuda first, if it works with this driver
  gpulet-hook update-ldcache                 --folder, --ldconfig-path
  gpulet-hook disable-device-node-modification
  gpulet-hook update-application-profile
  gpulet-hook chmod                          --mode, --path

  --link TARGET::LINK                a symbolic link LINK that says TARGET (repeated)
  --folder PATH                      a folder of libraries for the ld cache (repeated)
  --ldconfig-path PATH               the host's ldconfig (/sbin/ldconfig)
  --host-driver-version VERSION      --host-cuda-version VERSION
  --host-arch VERSION                compute capability, for NVIDIA_REQUIRE_*
  --host-brand WORD                  brand, for NVIDIA_REQUIRE_*
  --cuda-compat-container-root PATH  where the image has its libcuda (/usr/local/cuda/compat)
  --host-proc PATH                   the host's /proc (/proc)
  --disable NAME[,NAME]              leave out these of create-container, by the names above, or "all"
  --mode MODE --path PATH            chmod: an octal mode, and folders (repeated)
  --container-spec PATH              the state from a file

Called as nvidia-cdi-hook, or as nvidia-ctk with "hook" in front, it passes over hooks that it does not have.
)";
}

}  // namespace gpulet::hook
