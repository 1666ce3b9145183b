// A header as it should be: says what it is. It may say sleep(1), "throw" and NULL in words.
#pragma once

namespace gpulet {
inline const char* text() { return "std::cout << getenv(\"HOME\") // NULL"; }
inline constexpr int kMillion = 1'000'000;
}  // namespace gpulet
