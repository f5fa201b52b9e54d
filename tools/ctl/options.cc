#include "tools/ctl/options.h"

#include <CLI/CLI.hpp>

#include "base/quantity.h"

namespace canarynet::ctl {
namespace {

using tools::number;
using tools::wrong;

struct Texts {
  std::string interval, pid, links;
};

void fill(const Texts& t, CtlOptions* o) {
  if (!t.interval.empty()) {
    const auto seconds = seconds_of(t.interval);
    if (!seconds || *seconds < 0.1 || *seconds > 3600)
      wrong("--interval", t.interval, "a time from 100ms to 1h such as 2s");
    o->interval = Nanos::from_seconds(*seconds);
  }
  if (!t.pid.empty()) o->pid = number("--pid", t.pid, 1, 1 << 22);
  if (!t.links.empty()) o->links = number("--links", t.links, 0, 100'000);
}

constexpr const char* kFooter = R"(
  canaryctl top                         every process that has counters, live
  canaryctl top --once --json           one look, for programs
  canaryctl top --pid 1234 --interval 5s
  canaryctl links                       each path's alpha, beta, share, losses and age
  canaryctl explain                     which algorithm runs what, why, and how long it takes
  canaryctl info                        what was built, what this kernel offers, which NICs there are

Processes of other users are seen by root only.
Exit status: 0; 1 what was asked for is not there; 2 wrong arguments.)";

}  // namespace

ParsedOptions parse_ctl_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  CtlOptions& o = parsed.options;
  Texts t;
  CLI::App app{"Looks into running processes of Canary, and at what this host offers them.", "canaryctl"};
  app.footer(kFooter);
  app.require_subcommand(1);
  auto* top = app.add_subcommand("top", "bytes per second, state and round trips of every NIC and link");
  auto* links = app.add_subcommand("links", "what is known of each path: alpha, beta, share, losses, age");
  auto* explain = app.add_subcommand("explain", "which algorithm runs what, why, and how long it takes");
  auto* info = app.add_subcommand("info", "versions, dependencies, kernel, NICs");
  top->add_flag("--once", o.once, "one table, of one interval, then end");
  top->add_flag("--json", o.json, "a JSON object per table, on a line of its own");
  top->add_option("--interval", t.interval, "between two tables, 100ms at least [1s]");
  top->add_option("--pid", t.pid, "one process only; ends with it");
  top->add_option("--links", t.links, "links shown of each process [8]; JSON has all");
  links->add_flag("--json", o.json, "a JSON object, on one line");
  links->add_option("--interval", t.interval, "over which shares are taken, 100ms at least [1s]");
  links->add_option("--pid", t.pid, "one process only");
  explain->add_flag("--json", o.json, "a JSON object, on one line");
  explain->add_option("--pid", t.pid, "one process only");
  const auto take = [&] {
    o.command = info->parsed()      ? Command::kInfo
                : links->parsed()   ? Command::kLinks
                : explain->parsed() ? Command::kExplain
                                    : Command::kTop;
    o.once |= links->parsed();
    fill(t, &o);
  };
  tools::parse(app, arguments, take, &parsed);
  return parsed;
}

}  // namespace canarynet::ctl
