#include "doctor/support_archive.h"

#include <array>
#include <cstdio>

namespace gpulet::doctor {
namespace {

constexpr std::size_t kBlock = 512;

// Position and length of the header fields.
struct Field {
  std::size_t at, size;
};
constexpr Field kName{0, 100}, kMode{100, 8}, kUser{108, 8}, kGroup{116, 8}, kSize{124, 12}, kTime{136, 12},
    kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kUserName{265, 32}, kGroupName{297, 32},
    kPrefix{345, 155};

using Header = std::array<char, kBlock>;

void write_field(Header& header, Field field, std::string_view text) {
  text.copy(header.data() + field.at, field.size);
}

// Octal with leading zeroes and a trailing NUL.
void write_octal(Header& header, Field field, unsigned long long value) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(field.size) - 1, value);
  write_field(header, field, text);
}

// Length of the prefix part of a name, without the slash behind it; npos if the name does not fit.
std::size_t prefix_length(const std::string& name) {
  if (name.empty()) return std::string::npos;
  if (name.size() <= kName.size) return 0;
  const auto slash = name.find('/', name.size() - kName.size - 1);
  return slash == 0 || slash > kPrefix.size ? std::string::npos : slash;
}

Header make_header(const ArchiveFile& file, std::size_t prefix, long long seconds) {
  Header header{};
  write_field(header, kName, std::string_view(file.name).substr(prefix == 0 ? 0 : prefix + 1));
  write_field(header, kPrefix, std::string_view(file.name).substr(0, prefix));
  write_octal(header, kMode, 0600);
  write_octal(header, kUser, 0);
  write_octal(header, kGroup, 0);
  write_octal(header, kSize, file.content.size());
  write_octal(header, kTime, static_cast<unsigned long long>(seconds > 0 ? seconds : 0));
  write_field(header, kType, "0");
  write_field(header, kMagic,
              std::string_view("ustar\0"
                               "00",
                               8));
  write_field(header, kUserName, "root");
  write_field(header, kGroupName, "root");
  write_field(header, kChecksum, std::string(kChecksum.size, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[9];
  std::snprintf(text, sizeof text, "%06o", sum);
  write_field(header, kChecksum,
              std::string_view(text, 7));  // with its NUL, then the blank that is already there
  return header;
}

}  // namespace

Result<std::string> make_tar(const std::vector<ArchiveFile>& files,
                             std::chrono::system_clock::time_point at) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  std::string archive;
  for (const auto& file : files) {
    const auto prefix = prefix_length(file.name);
    if (prefix == std::string::npos)
      return fail(Code::kInvalidArgument, "is not a valid archive name: expected 1 to 100 bytes", file.name);
    const auto header = make_header(file, prefix, seconds);
    archive.append(header.data(), header.size());
    archive += file.content;
    archive.append((kBlock - file.content.size() % kBlock) % kBlock, '\0');
  }
  archive.append(2 * kBlock, '\0');
  return archive;
}

}  // namespace gpulet::doctor
