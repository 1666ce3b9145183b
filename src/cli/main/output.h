// What a command shows: arguments/output.h under the names that every command of this program uses, and
// colours.
#pragma once

#include "arguments/arguments.h"
#include "arguments/output.h"

namespace gpulet::cli {

using arguments::add_output_options;
using arguments::Column;
using arguments::ColumnUse;
using arguments::document_text;
using arguments::draw_table;
using arguments::kOutputColumns;
using arguments::kOutputGroup;
using arguments::model_cell;
using arguments::OutputFlag;
using arguments::OutputOptions;
using arguments::render_output;
using arguments::TableStyle;
using arguments::uuid_cell;
using arguments::wrap_lines;
using arguments::yaml_of_json;

// Whether standard output shows colours: a terminal that has them, and no NO_COLOR (https://no-color.org).
bool shows_color();

}  // namespace gpulet::cli
