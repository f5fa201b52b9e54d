// tools/arguments.h -- the common part of the tools' command lines: the values of options, the words for wrong ones,
// and how parsing ends.
//
// Pure: nothing is opened, nothing printed.
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace canarynet::tools {

// An option's value that can't be used; parse() makes a text of it.
struct Wrong {
  std::string text;
};
// Throws "--links -1: takes a whole number from 0 to 100000".
[[noreturn]] void wrong(std::string_view option, std::string_view value, const std::string& takes);

// Reads the whole text as one number within the range; returns nothing if it is none.
template <typename T>
std::optional<T> whole(std::string_view text, T min, T max) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) return {};
  return value;
}
// The same, or wrong().
template <typename T>
T number(std::string_view option, std::string_view text, T min, T max) {
  const auto value = whole(text, min, max);
  if (!value) wrong(option, text, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  return *value;
}

// Seconds from "1ms", "20us" or "2e-10", or wrong().
double seconds(std::string_view option, std::string_view text);
// Bits per second (> 0) from "10gbit" or "500mbit", or wrong().
double rate(std::string_view option, std::string_view text);

// "canary-perf 0.1.0"
std::string version_text(const std::string& tool);

// The result of parsing a command line.
struct Outcome {
  std::string text;      // help or error, to be printed
  int exit_status = -1;  // -1: go on
};
// Parses for the tool that `app` is named after, then calls `fill`, which may throw Wrong. Help is that of the
// subcommand for which it was asked; every tool has --version. The error for a word in place of a subcommand names it
// and the subcommands.
void parse(CLI::App& app, const std::vector<std::string>& arguments, const std::function<void()>& fill,
           Outcome* outcome);

}  // namespace canarynet::tools
