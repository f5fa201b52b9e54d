#include "tools/arguments.h"

#include <CLI/CLI.hpp>

namespace canarynet::tools {

void wrong(std::string_view option, std::string_view value, const std::string& takes) {
  throw Wrong{std::string(option) + " " + std::string(value) + ": takes " + takes};
}

void parse(CLI::App& app, const std::vector<std::string>& arguments, const std::function<void()>& fill,
           Outcome* outcome) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
    app.parse(reversed);
    fill();
  } catch (const CLI::CallForHelp&) {
    const auto named = app.get_subcommands();
    outcome->text = named.empty() ? app.help() : named.back()->help();
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
