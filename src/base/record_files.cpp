#include "base/record_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/temporary_files.h"

namespace gpulet {
namespace {

constexpr std::string_view kRecordSuffix = ".json";
constexpr mode_t kRecordMode = 0600;

}  // namespace

std::string RecordFiles::path_of(std::string_view id) const {
  return directory_ + "/" + std::string(id) + std::string(kRecordSuffix);
}

Result<std::vector<Error>> RecordFiles::read_files(std::size_t max_files, std::size_t max_bytes,
                                                   const Use& use) const {
  std::vector<Error> errors;
  std::vector<std::string> names;
  std::error_code error;
  auto it = std::filesystem::directory_iterator(directory_, error);
  if (error == std::errc::no_such_file_or_directory) return errors;
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (is_temporary_file(name, kRecordSuffix)) {
      ::unlink(it->path().c_str());
    } else if (name.ends_with(kRecordSuffix)) {
      names.push_back(std::move(name));
    }
    if (names.size() > max_files)
      return fail(Code::kInvalidArgument, "expected at most " + std::to_string(max_files) + " records",
                  directory_);
  }
  if (error) return fail(errno_error("cannot read the directory", error.value(), directory_));
  std::ranges::sort(names);
  for (const auto& name : names) {
    const std::string path = directory_ + "/" + name;
    const auto text = gpulet::read_file(path, max_bytes);
    const auto used =
        text ? use(name.substr(0, name.size() - kRecordSuffix.size()), *text) : fail(text.error());
    if (!used) errors.emplace_back(used.error().code(), used.error().message(), path);
  }
  return errors;
}

Status RecordFiles::write_file(std::string_view id, std::string_view text) const {
  return write_file_atomic(path_of(id), text, kRecordMode);
}

Status RecordFiles::remove_file(std::string_view id) const {
  const std::string path = path_of(id);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return fail(errno_error("cannot remove the record", errno, path));
}

}  // namespace gpulet
