#include "sim/root/tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::sim {
namespace {

bool leads_out(const std::string& path) {
  if (path.empty() || path.front() == '/') return true;
  const auto parts = text::split(path, '/');
  return std::find(parts.begin(), parts.end(), "..") != parts.end();
}

Error making(int error_number, const std::string& path) {
  if (error_number == EEXIST) return Error(Code::kFailedPrecondition, "is there already and not ours", path);
  return errno_error("make", error_number, path);
}

Status write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(errno_error("write", errno, path));
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<Tree> Tree::open(std::string root, std::string_view list_path) {
  Tree tree(std::move(root));
  GPULET_TRY_ASSIGN(const std::string list, read_file(tree.full(list_path)));
  for (const std::string& path : text::split(list, '\n')) {
    if (path.empty()) continue;
    if (leads_out(path))
      return fail(Code::kInvalidArgument, "no list of what was made: '" + path + "'", tree.full(list_path));
    tree.made_.push_back(path);
  }
  return tree;
}

Status Tree::save(std::string_view list_path) {
  if (std::find(made_.begin(), made_.end(), list_path) == made_.end()) {
    GPULET_TRY(parents_of(list_path));
    made_.emplace_back(list_path);
  }
  std::string list;
  for (const std::string& path : made_) list += path + "\n";
  return write_file_atomic(full(list_path), list);
}

Status Tree::parents_of(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? Status{} : directory(path.substr(0, slash));
}

Status Tree::directory(std::string_view path) {
  const std::string there = full(path);
  if (mkdir(there.c_str(), 0755) == 0) {
    made_.emplace_back(path);
    return {};
  }
  if (errno == EEXIST) return {};
  if (errno != ENOENT) return fail(making(errno, there));
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return fail(making(errno, there));
  GPULET_TRY(directory(path.substr(0, slash)));
  if (mkdir(there.c_str(), 0755) != 0) return fail(making(errno, there));
  made_.emplace_back(path);
  return {};
}

Status Tree::file(std::string_view path, std::string_view content, mode_t mode) {
  GPULET_TRY(parents_of(path));
  const std::string there = full(path);
  const FileDescriptor fd(::open(there.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail(making(errno, there));
  made_.emplace_back(path);
  GPULET_TRY(write_all(fd.get(), content, there));
  if (fchmod(fd.get(), mode) != 0) return fail(errno_error("chmod", errno, there));
  return {};
}

Status Tree::copy(std::string_view path, const std::string& source, mode_t mode) {
  GPULET_TRY_ASSIGN(const std::string content, read_file(source));
  return file(path, content, mode);
}

Status Tree::link(std::string_view path, std::string_view target) {
  GPULET_TRY(parents_of(path));
  const std::string there = full(path);
  if (symlink(std::string(target).c_str(), there.c_str()) != 0) return fail(making(errno, there));
  made_.emplace_back(path);
  return {};
}

Status Tree::node(std::string_view path, unsigned major, unsigned minor, mode_t mode) {
  GPULET_TRY(parents_of(path));
  const std::string there = full(path);
  if (mknod(there.c_str(), S_IFCHR | mode, makedev(major, minor)) != 0) return fail(making(errno, there));
  made_.emplace_back(path);
  if (chmod(there.c_str(), mode) != 0) return fail(errno_error("chmod", errno, there));
  return {};
}

void Tree::remove(std::string_view path) {
  const auto found = std::find(made_.begin(), made_.end(), path);
  if (found == made_.end()) return;
  unlink(full(path).c_str());
  made_.erase(found);
}

void Tree::undo() {
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    const std::string there = full(*path);
    if (unlink(there.c_str()) != 0) rmdir(there.c_str());
  }
  made_.clear();
}

}  // namespace gpulet::sim
