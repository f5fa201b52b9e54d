#include "port/check_parts.h"

namespace canarynet::port {

Status wrong(const std::string& what) { return Status(CANARY_INVALID_ARGUMENT, what); }
Status no_such_group() { return wrong("its group has been destroyed"); }
Status no_such_ticket(const Command& c) { return wrong("nobody waits for ticket " + std::to_string(c.ticket.place)); }

Status check_buffer(const MemoryRef& m, std::uint64_t needs, const char* what, const Regions& regions) {
  if (needs == 0) return {};
  if (m.nowhere()) return wrong(std::string(what) + " is NULL");
  if (m.bytes < needs) {
    return wrong(std::string(what) + " has " + std::to_string(m.bytes) + " bytes: the operation needs " +
                 std::to_string(needs));
  }
  if (regions.has(m)) return {};
  return wrong(std::string(what) + " of " + std::to_string(m.bytes) + " bytes at " + std::to_string(m.offset) +
               " lies outside of region " + std::to_string(m.region));
}

Status check_words(const Command& c, std::uint64_t words, const char* what, const Regions& regions) {
  if (c.numbers.bytes != words * sizeof(std::uint64_t)) {
    return wrong(std::string(what) + " take " + std::to_string(words * sizeof(std::uint64_t)) + " bytes, not " +
                 std::to_string(c.numbers.bytes));
  }
  if (Status s = check_buffer(c.numbers, c.numbers.bytes, what, regions); !s.ok()) return s;
  return reinterpret_cast<std::uintptr_t>(regions.at(c.numbers)) % alignof(std::uint64_t) == 0
             ? Status()
             : wrong(std::string(what) + " are not aligned to 8 bytes");
}

}  // namespace canarynet::port
