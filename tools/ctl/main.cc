// canaryctl: looks into running processes. `canaryctl --help` and docs/canaryctl.md say how to use it.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "base/clock.h"
#include "tools/ctl/info.h"
#include "tools/ctl/options.h"
#include "tools/ctl/view.h"
#include "tools/environment.h"

namespace canarynet::ctl {
namespace {

constexpr int kNotThere = 1;

int fail(const std::string& text) {
  std::fprintf(stderr, "canaryctl: %s\n", text.c_str());
  return kNotThere;
}

void sleep_for(Nanos t) {
  timespec left{static_cast<time_t>(t.count / 1'000'000'000), static_cast<long>(t.count % 1'000'000'000)};
  while (nanosleep(&left, &left) != 0) continue;
}

Result<Look> look(const CtlOptions& options) {
  const SystemClock clock;
  auto scan = ipc::scan_counters(options.pid);
  if (!scan.ok()) return scan.status();
  return Look{scan.take(), clock.now()};
}

std::string text_of(const CtlOptions& options, const Look& before, const Look& after) {
  if (options.command == Command::kLinks) return options.json ? links_json(before, after) : links_text(before, after);
  return options.json ? top_json(before, after) : top_text(before, after, options.links);
}

// Says why where the process that was asked for is not there.
bool is_there(const CtlOptions& options, const Look& look) {
  if (options.pid == 0 || !look.scan.tables.empty()) return true;
  const std::string who = "pid " + std::to_string(options.pid);
  if (!look.scan.notes.empty()) {
    fail(look.scan.notes.front());
  } else {
    fail(who + (look.scan.hidden != 0 ? " belongs to another user: its counters can't be read"
                                      : " has no counters: it has ended, or does not use libcanarynet"));
  }
  return false;
}

int explain(const CtlOptions& options) {
  const auto found = look(options);
  if (!found.ok()) return fail(found.status().text());
  if (!is_there(options, found.value())) return kNotThere;
  std::fputs((options.json ? explain_json(found.value()) : explain_text(found.value())).c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : fail("can't write to standard output");
}

// Of `top` and `links`.
int watch(const CtlOptions& options) {
  auto first = look(options);
  if (!first.ok()) return fail(first.status().text());
  Look before = first.take();
  if (!is_there(options, before)) return kNotThere;
  const bool clears = isatty(STDOUT_FILENO) != 0 && !options.once && !options.json;
  for (;;) {
    sleep_for(options.interval);
    auto next = look(options);
    if (!next.ok()) return fail(next.status().text());
    Look after = next.take();
    if (options.pid != 0 && after.scan.tables.empty()) {
      std::fprintf(stderr, "canaryctl: pid %d has ended\n", options.pid);
      return 0;
    }
    if (clears) std::fputs("\x1b[H\x1b[2J", stdout);
    std::fputs(text_of(options, before, after).c_str(), stdout);
    if (!options.once && !options.json && !clears) std::fputs("\n", stdout);
    if (std::fflush(stdout) != 0) return fail("can't write to standard output");
    if (options.once) return 0;
    before = std::move(after);
  }
}

int info() {
  auto facts = build_facts(CANARYNET_DEPENDENCIES);
  const auto kernel = kernel_facts();
  bool ok = false;
  const auto nics = nic_facts(&ok);
  facts.insert(facts.end(), kernel.begin(), kernel.end());
  facts.insert(facts.end(), nics.begin(), nics.end());
  std::fputs(info_text(facts).c_str(), stdout);
  return ok ? 0 : kNotThere;
}

}  // namespace
}  // namespace canarynet::ctl

int main(int argc, char** argv) {
  using namespace canarynet::ctl;
  try {
    const ParsedOptions parsed = parse_ctl_options({argv + 1, argv + argc});
    if (parsed.exit_status >= 0) {
      std::fputs(parsed.text.c_str(), parsed.exit_status == 0 ? stdout : stderr);
      return parsed.exit_status;
    }
    canarynet::tools::warn_of_environment("canaryctl");
    switch (parsed.options.command) {
      case Command::kInfo:
        return info();
      case Command::kExplain:
        return explain(parsed.options);
      case Command::kTop:
      case Command::kLinks:
        break;
    }
    return watch(parsed.options);
  } catch (const std::exception& e) {  // memory ran out
    return fail(e.what());
  }
}
