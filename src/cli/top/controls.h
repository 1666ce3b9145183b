// What keys and the mouse do on the screen of `gpulet top`. Pure.
#pragma once

#include <cstddef>

#include "cli/top/view.h"

namespace gpulet::cli {

struct TopKey {
  enum class Kind {
    kCharacter,
    kEnter,
    kEscape,
    kBackspace,
    kTab,
    kBackTab,
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd,
    kClick,
    kWheelUp,
    kWheelDown
  };
  Kind kind = Kind::kCharacter;
  char character = 0;               // printable ASCII
  std::size_t row = 0, column = 0;  // of a click, counted from 0
};

enum class TopAction { kNone, kQuit };
// Changes the view as `key` says. `screen` is what the user sees: the last one of this view.
TopAction apply_key(TopView& view, const TopKey& key, const TopScreen& screen);

}  // namespace gpulet::cli
