// engine/landing_words.h -- what the engine's flows remember of a landing's decision, in its cookie.
//
// The small numbers mean the same to all of them: a frame may land while its flow is not known and arrive when it is.
#pragma once

#include <cstdint>

namespace canarynet::landing {

inline constexpr std::uint64_t kForgotten = 0;  // a duplicate, or of something that is over: acknowledged and forgotten
inline constexpr std::uint64_t kNoPlace = 1;    // not acknowledged: it comes again
inline constexpr std::uint64_t kLanded = 2;
inline constexpr std::uint64_t kParked = 3;  // in an eager store of the peer's
inline constexpr std::uint64_t kMisfit = 4;  // a message that fits no receive: its arrival says so

}  // namespace canarynet::landing
