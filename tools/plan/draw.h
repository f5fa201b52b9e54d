// tools/plan/draw.h -- a schedule as a picture: ranks downwards, rounds to the right, an arrow per message.
#pragma once

#include <string>
#include <vector>

#include "collectives/schedule.h"

namespace canarynet::plan {

// plans[r] is rank r's. The text is a table with a row per rank and a column per round; "2>3" in rank 1's row says that
// it sends leaf 2 to rank 3. `only`: one rank's row; -1: all.
std::string draw_text(const std::vector<Plan>& plans, int only);
// A complete SVG file. Colours tell the leaf, and the arrow's title says everything.
std::string draw_svg(const std::vector<Plan>& plans, const std::string& title);

}  // namespace canarynet::plan
