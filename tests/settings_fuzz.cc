// tests/settings_fuzz.cc -- gives every setting any text: a value is either taken, within its limits, or refused with a
// reason.
#include <cstdlib>

#include "base/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const auto table = canarynet::setting_table();
  const canarynet::SettingInfo& info = table[data[0] % table.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  auto settings = canarynet::Settings::defaults();
  const canarynet::Status status = settings.set(info.name, text);
  if (!status.ok() && status.text().empty()) std::abort();
  if (const auto parsed = canarynet::parse_bytes(text); parsed.ok() && parsed.value() < canarynet::Bytes{})
    std::abort();
  if (const auto parsed = canarynet::parse_duration(text); parsed.ok() && parsed.value() < canarynet::Nanos{})
    std::abort();
  return 0;
}
