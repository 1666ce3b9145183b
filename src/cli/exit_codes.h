// What the commands' exit codes mean. 0: done, and nothing is wrong.
#pragma once

namespace gpulet::cli {

inline constexpr int kFailed =
    1;  // it could not be done, or something is wrong, as standard error or the report says
inline constexpr int kWrongCommand = 2;  // an option or argument that will not do

}  // namespace gpulet::cli
