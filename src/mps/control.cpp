#include "mps/control.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::mps {
namespace {

constexpr std::string_view kProgramFolders[] = {
    "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin",
    "/bin",     "/sbin",     "/opt/bin",       "/usr/local/nvidia/bin"};
constexpr std::string_view kLibraryFolders[] = {"/usr/lib64", "/usr/lib/x86_64-linux-gnu",
                                                "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64"};

std::string below(const std::string& root, std::string_view path) {
  return (root == "/" ? std::string() : root) + std::string(path);
}

Result<std::pair<FileDescriptor, FileDescriptor>> make_pipe() {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(errno_error("pipe", errno));
  return std::pair(FileDescriptor(ends[0]), FileDescriptor(ends[1]));
}

// The first line, which says what went wrong.
std::string first_line(const std::string& text) {
  return std::string(text::trim(std::string_view(text).substr(0, text.find('\n'))));
}

}  // namespace

Result<std::string> find_driver_program(const std::string& driver_root, std::string_view name) {
  for (const auto& root_path : {driver_root, std::string("/")}) {
    const auto root = RootDirectory::open(root_path);
    if (!root) continue;
    for (const auto folder : kProgramFolders) {
      const auto inside = root->resolve(std::string(folder) + "/" + std::string(name));
      if (!inside) continue;
      std::string path = below(root_path, *inside);
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return fail(Code::kNotFound, "is in no bin folder below " + driver_root + " or /", std::string(name));
}

std::vector<std::string> driver_environment(const std::string& driver_root) {
  std::vector<std::string> programs, libraries;
  for (const auto folder : kProgramFolders) programs.push_back(below(driver_root, folder));
  if (driver_root != "/") {
    programs.insert(programs.end(), {"/usr/bin", "/bin"});
    for (const auto folder : kLibraryFolders) libraries.push_back(below(driver_root, folder));
  }
  std::vector<std::string> environment{"PATH=" + text::join(programs, ":")};
  if (!libraries.empty()) environment.push_back("LD_LIBRARY_PATH=" + text::join(libraries, ":"));
  return environment;
}

Result<std::unique_ptr<ProgramCall>> ProgramCall::start(Loop& loop, const Request& request, Duration limit,
                                                        std::function<void(Result<std::string>)> done) {
  GPULET_TRY_ASSIGN(auto input, make_pipe());
  GPULET_TRY_ASSIGN(auto output, make_pipe());
  // A few commands: far less than a pipe holds, so this never waits.
  ::fcntl(input.second.get(), F_SETFL, O_NONBLOCK);
  const auto written = ::write(input.second.get(), request.input.data(), request.input.size());
  if (written != static_cast<ssize_t>(request.input.size())) {
    return fail(errno_error("cannot write its commands", errno, request.program));
  }
  input.second.reset();
  ::fcntl(output.first.get(), F_SETFL, O_NONBLOCK);
  std::vector<std::string> arguments{std::string(text::base_name(request.program))};
  arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
  GPULET_TRY_ASSIGN(
      auto process,
      Process::start(
          {.program = request.program,
           .arguments = arguments,
           .environment = request.environment,
           .descriptors = {{input.first.get(), 0}, {output.second.get(), 1}, {output.second.get(), 2}},
           .dies_with_parent = !request.leaves_a_daemon}));
  std::unique_ptr<ProgramCall> call(new ProgramCall);
  call->done_ = std::move(done);
  call->name_ = arguments.front();
  call->output_ = std::move(output.first);
  call->process_ = std::move(process);
  ProgramCall* const self = call.get();
  call->reading_ = loop.watch(self->output_.get(), EPOLLIN, [self](std::uint32_t) { self->read_output(); });
  call->limit_ = loop.after(limit, [self, limit] {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    self->end(fail(Code::kDeadlineExceeded, "did not answer in " + std::to_string(milliseconds) + " ms",
                   self->name_));
  });
  // Its exit, not the end of its output: a daemon that it leaves behind may keep that open.
  call->process_->on_exit(loop, [self](const ProcessExit& exit) {
    self->read_output();
    if (exit.ok()) return self->end(std::move(self->output_text_));
    const std::string said = first_line(self->output_text_);
    self->end(
        fail(Code::kUnavailable, said.empty() ? exit.text() : said + " (" + exit.text() + ")", self->name_));
  });
  return call;
}

void ProgramCall::read_output() {
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return reading_.reset();
    const auto room = kMaxAnswerBytes - std::min(kMaxAnswerBytes, output_text_.size());
    output_text_.append(buffer, std::min(room, static_cast<std::size_t>(got)));
  }
}

void ProgramCall::end(Result<std::string> result) {
  reading_.reset();
  limit_.reset();
  process_.reset();
  const auto done = std::move(done_);
  done(std::move(result));  // which may destroy this object
}

}  // namespace gpulet::mps
