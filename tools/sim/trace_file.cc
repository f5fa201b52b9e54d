#include "tools/sim/trace_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/text.h"

namespace canarynet::sim {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 40;
constexpr double kSecondsMax = 1e6;
constexpr std::size_t kLayersMax = 16384;  // the exact planner takes the square of it

// An error with the value's path in the file. The readers below throw it, parse_trace_file() catches it.
struct Wrong {
  std::string text;
};

// The value as an error quotes it.
std::string quoted(const Json& value) {
  std::string text = value.is_structured() ? std::string(value.type_name())
                                           : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  make_printable(&text);
  return text;
}

const Json& member(const Json& object, const std::string& path, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw Wrong{path + "\"" + key + "\" is missing"};
  return *found;
}

double seconds(const Json& object, const std::string& path, const char* key) {
  const Json& value = member(object, path, key);
  if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kSecondsMax))
    throw Wrong{path + key + ": takes seconds from 0 to 1000000, not " + quoted(value)};
  return value.get<double>();
}

TraceFile read(const Json& file) {
  if (!file.is_object()) throw Wrong{"takes an object with forward_seconds and layers, not " + quoted(file)};
  TraceFile trace;
  trace.pass.forward_seconds = seconds(file, "", "forward_seconds");
  const Json& layers = member(file, "", "layers");
  if (!layers.is_array() || layers.size() > kLayersMax)
    throw Wrong{"layers: takes a list of at most " + std::to_string(kLayersMax) + ", not " +
                (layers.is_array() ? "one of " + std::to_string(layers.size()) : quoted(layers))};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Json& layer = layers[l];
    const std::string where = "layers[" + std::to_string(l) + "]", path = where + ".";
    if (!layer.is_object())
      throw Wrong{where + ": takes an object with bytes and backward_seconds, not " + quoted(layer)};
    const Json& bytes = member(layer, where + ": ", "bytes");
    if (!bytes.is_number_unsigned() || bytes.get<std::uint64_t>() > kBytesMax)
      throw Wrong{path + "bytes: takes a whole number from 0 to " + std::to_string(kBytesMax) + ", not " +
                  quoted(bytes)};
    if (!layer.contains("backward_seconds")) throw Wrong{where + ": \"backward_seconds\" is missing"};
    trace.pass.layers.push_back({seconds(layer, path, "backward_seconds"), bytes.get<std::uint64_t>()});
    const auto name = layer.find("name");
    if (name != layer.end() && !name->is_string()) throw Wrong{path + "name: takes a text, not " + quoted(*name)};
    trace.names.push_back(name == layer.end() ? "" : name->get<std::string>());
    make_printable(&trace.names.back());
  }
  return trace;
}

}  // namespace

Result<TraceFile> parse_trace_file(std::string_view text, const std::string& name) {
  const auto refused = [&](const std::string& why) { return Status(CANARY_INVALID_ARGUMENT, name + ": " + why); };
  try {
    return read(Json::parse(text));
  } catch (const Wrong& w) {
    return refused(w.text);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error …": the code helps nobody.
    std::string why = error.what();
    const auto code = why.find("] ");
    if (code != std::string::npos) why.erase(0, code + 2);
    make_printable(&why);
    return refused(why);
  }
}

Result<TraceFile> read_trace_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Status(CANARY_INVALID_ARGUMENT, path + ": can't be read: " + std::strerror(errno));
  return parse_trace_file(text.str(), path);
}

}  // namespace canarynet::sim
