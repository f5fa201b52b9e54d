#include "tools/arguments.h"

#include <CLI/CLI.hpp>

#include "base/quantity.h"

namespace canarynet::tools {

void wrong(std::string_view option, std::string_view value, const std::string& takes) {
  throw Wrong{std::string(option) + " " + std::string(value) + ": takes " + takes};
}

double seconds(std::string_view option, std::string_view text) {
  const auto value = seconds_of(text);
  if (!value) wrong(option, text, "a time such as 1ms or 20us, or seconds such as 2e-10");
  return *value;
}

double rate(std::string_view option, std::string_view text) {
  const auto value = bits_per_second(text);
  if (!value || *value <= 0) wrong(option, text, "a rate such as 10gbit or 500mbit");
  return *value;
}

namespace {

// Checks that the first argument of a tool with subcommands is one of them, or an option.
void check_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty()) return;
  std::string names;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i]->get_name();
    if (!arguments.empty() && arguments[0] == commands[i]->get_name()) return;
  }
  if (arguments.empty()) throw Wrong{"takes a command: " + names + " (--help says more)"};
  const std::string& word = arguments[0];
  if (!word.starts_with('-')) throw Wrong{word + ": no such command: takes " + names};
  if (word != "-h" && word != "--help" && word != "--version") throw Wrong{word + ": takes a command first: " + names};
}

}  // namespace

std::string version_text(const std::string& tool) { return tool + " " + CANARYNET_VERSION; }

void parse(CLI::App& app, const std::vector<std::string>& arguments, const std::function<void()>& fill,
           Outcome* outcome) {
  app.set_version_flag("--version", version_text(app.get_name()));
  try {
    check_command(app, arguments);
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them in this order
    app.parse(reversed);
    fill();
  } catch (const CLI::CallForHelp&) {
    const auto named = app.get_subcommands();
    outcome->text = named.empty() ? app.help() : named.back()->help();
    outcome->exit_status = 0;
  } catch (const CLI::CallForVersion& e) {
    outcome->text = std::string(e.what()) + "\n";
    outcome->exit_status = 0;
  } catch (const CLI::Error& e) {
    outcome->text = app.get_name() + ": " + e.what() + " (--help lists what it takes)\n";
    outcome->exit_status = 2;
  } catch (const Wrong& e) {
    outcome->text = app.get_name() + ": " + e.text + "\n";
    outcome->exit_status = 2;
  }
}

}  // namespace canarynet::tools
