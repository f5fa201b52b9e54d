// tools/perf/report.h -- rows as a table for people and as JSON for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/perf/measure.h"

namespace canarynet::perf {

// The lines that hold for the whole run; they start with '#'.
std::string table_head(const PerfOptions& options, int ranks);
// Titles of the columns for one operation's rows.
std::string table_titles(Op op);
// One line, and one below for rank 0's NICs.
std::string table_row(const Row& row, const PerfOptions& options);

nlohmann::json json_row(const Row& row, const PerfOptions& options);
// {"results": [...], …}
nlohmann::json json_run(const PerfOptions& options, int ranks);

}  // namespace canarynet::perf
