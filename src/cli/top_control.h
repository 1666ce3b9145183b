// What keys do to the view of `gpulet top`. Pure.
#pragma once

#include "cli/top_view.h"

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
    kEnd
  };
  Kind kind = Kind::kCharacter;
  char character = 0;  // printable ASCII
};

enum class TopAction { kNone, kQuit };
// The view after `key`, of which there are no more lines than `most_scroll` says.
TopAction press(TopView& view, const TopKey& key, std::size_t most_scroll);

}  // namespace gpulet::cli
