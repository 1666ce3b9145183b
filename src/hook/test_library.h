// For tests: a small ELF file with the note of a forward compatible libcuda, made by hand.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <string_view>

namespace gpulet::hook {

struct TestLibrary {
  std::string text = R"({"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 590], "Device": [1, 2]})";
  std::string owner = "NVIDIA Corporation";
  std::string section = ".note.cuda.fwd_compatibility";
  std::uint64_t alignment = 4;
  std::uint32_t padding = 0;  // added to the description's size, as one of NVIDIA's libraries has it

  // Header, note, names, section headers (null, note, names).
  std::string bytes() const {
    const auto padded = [&](std::string part) {
      const auto step = alignment == 8 ? 8u : 4u;
      part.resize((part.size() + step - 1) / step * step, '\0');
      return part;
    };
    const Elf64_Nhdr note{static_cast<std::uint32_t>(owner.size() + 1),
                          static_cast<std::uint32_t>(text.size() + 1) + padding, 1};
    const std::string notes = raw(note) + padded(owner + '\0') + padded(text + '\0');
    const std::string names = std::string(1, '\0') + section + '\0' + ".shstrtab" + '\0';
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shstrndx = 2;
    header.e_shoff = sizeof header + notes.size() + names.size();
    Elf64_Shdr first{};
    first.sh_name = 1;
    first.sh_type = SHT_NOTE;
    first.sh_offset = sizeof header;
    first.sh_size = notes.size();
    first.sh_addralign = alignment;
    Elf64_Shdr second{};
    second.sh_name = static_cast<std::uint32_t>(section.size() + 2);
    second.sh_type = SHT_STRTAB;
    second.sh_offset = sizeof header + notes.size();
    second.sh_size = names.size();
    return raw(header) + notes + names + raw(Elf64_Shdr{}) + raw(first) + raw(second);
  }

 private:
  template <class T>
  static std::string raw(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
};

}  // namespace gpulet::hook
