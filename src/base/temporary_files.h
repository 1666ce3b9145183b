// What write_file_atomic() (base/file.h) leaves of a file when its process is killed.
#pragma once

#include <string>
#include <string_view>

namespace gpulet {

// Whether `name` is that of a file which was to become one that ends with `suffix`.
bool is_temporary_file(std::string_view name, std::string_view suffix);

// Removes those of a directory whose name begins with `prefix`. Nobody may be writing such a file. One that
// cannot be removed stays; a missing directory has none.
void remove_temporary_files(const std::string& directory, std::string_view prefix, std::string_view suffix);

}  // namespace gpulet
