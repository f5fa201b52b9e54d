// transport/channel_limits.h -- the channel's fixed numbers and why they are what they are.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace canarynet::limits {

// A lane that carried nothing for so long, was never busy, or has outgrown its rate is tried with probes. A trial sends
// twice what a shaper may let pass as a burst. One that shows nothing new makes the pause until the next twice as long,
// in time and in what the channel sends meanwhile, unless the lane has carried far more a short while ago: so probes
// are a small part of what short operations send, too.
inline constexpr Nanos kTrialPauseMin = 500_ms;
inline constexpr Nanos kTrialPauseMax = 8_s;
inline constexpr Nanos kTrialMax = 500_ms;
inline constexpr Nanos kTrialQueue = 2_ms;
inline constexpr std::uint64_t kTrialBytes = 640 * 1024;
// What of it says enough where it takes as long as ever: a burst would have passed faster.
inline constexpr std::uint64_t kTrialEnough = 96 * 1024;
// A lane whose pieces take so much less time than they should has changed: a shaper's bucket makes them five times as
// fast, a round trip that was never seen bare eight times (PathEstimator::kVariation).
inline constexpr std::int64_t kOutgrownTimes = 16;
// By this part of its time a piece may be later on the rail that its plan gives it: the plan knows what else is sent
// meanwhile. By much less, since what a lane has proved beside others is a share of its NIC, rails of equal rates look
// unequal, and pieces of rings that have a rail each meet on one (docs/decisions/0074-the-rail-of-a-plan.md).
inline constexpr int kPlannedRail = 3;
// Another engine's channel may just have given so much to either end's NIC: little on a fast one, long on a slow one.
inline constexpr std::uint64_t kStrangerBytes = 16 * 1024;
// Operations of which more than a burst waits for one peer need to know what every lane carries.
inline constexpr std::uint64_t kLongWaits = 320 * 1024;
inline constexpr std::uint32_t kProbeBytes = 16 * 1024;
// A train over a link that is slower than this, or of which nothing is known, has smaller ones: a piece that comes then
// goes behind three of them.
inline constexpr std::uint32_t kProbesUnderWay = 3;
inline constexpr Nanos kTrainQueue = 20_ms;  // or kProbeWindow, while a train finds out that a link is faster
inline constexpr BytesPerSec kSlowLink = BytesPerSec::from_mbit(50);
inline constexpr std::uint32_t kSlowProbeBytes = 4 * 1024;
inline constexpr std::uint64_t kProbeWindow = 64 * 1024;
inline constexpr std::uint64_t kSentBeforeTrial = 64 * 1024;
inline constexpr std::uint64_t kSentBetweenTrials = 4 * 1024 * 1024;  // in the shortest pause
// Before anything is measured.
inline constexpr BytesPerSec kAssumedRate = BytesPerSec::from_mbit(1000);
// The lane that carries what there is until anything is proved is taken for this: one that has proved a gigabit takes
// its place, as TCP leaves it.
inline constexpr BytesPerSec kGuessedRate = BytesPerSec::from_mbit(750);
// A lane's first window, before anything is measured, follows from its round trip and this.
inline constexpr BytesPerSec kFirstRate = BytesPerSec::from_mbit(50);
// And the slowest that it may turn out to have, where patience is the question.
inline constexpr BytesPerSec kSlowestRate = BytesPerSec::from_mbit(10);

// A heartbeat's echo that waited longer than that for a frame back is not believed: clocks drift by 20 ppm.
inline constexpr Nanos kEchoHeldMax = 3_s;

// A lane may hold at least so many: one travels, and of one that arrived the ack comes behind a piece of the peer's.
inline constexpr std::int64_t kPiecesInFlight = 3;

// Beside urgent pieces, and for so long after the last one, bulk fills lanes less: an urgent piece comes behind what
// they hold. The queue bridges wake-ups that are a little late; beyond that the link's time is worth less than the
// wait.
inline constexpr Nanos kUrgentMemory = 60_s;
inline constexpr Nanos kQueueBeforeUrgent = 5_ms;
inline constexpr std::int64_t kPiecesBeforeUrgent = 2;
// While urgent pieces are under way, and for so long after (and a round trip), one: the next step's are about to come.
inline constexpr Nanos kUrgentPause = 2_ms;
// Bulk that waits has its part among many urgent bytes in a row: one in so many, by pieces. Nothing starves.
inline constexpr std::int64_t kFirstToBulk = 15;
inline constexpr std::int64_t kFirstLead = kFirstToBulk * 64 * 1024;

inline constexpr Nanos kAckDelay = 1_ms;
inline constexpr Nanos kAskInterval = 1_ms;  // an ack that nobody waits for is asked for so often, for the round trip
inline constexpr std::uint64_t kAckBytes = 64 * 1024;  // large pieces are acked one by one: they feed the rate estimate
inline constexpr std::uint32_t kAckFrames = 16;
inline constexpr std::uint32_t kAckFramesInCompany = 4;  // where another frame leaves at the same time
inline constexpr std::uint32_t kReorderFrames = 3;       // TCP's old rule: three later ones arrived, so it is lost

// Timers run up to 76 ms late on a loaded two-core machine. A stall only moves pieces to another lane (a duplicate at
// worst), so it may be suspected early; giving a lane up needs evidence from another lane and more time.
inline constexpr Nanos kStallMin = 60_ms;
inline constexpr Nanos kStallMax = 1_s;
inline constexpr Nanos kDeadAfterStall = 200_ms;
// A piece is late when it took so much longer than expected.
inline constexpr Nanos kHedgeMargin = 2_ms;
// The same for an encoded piece, before which its peer may have others to decode and to encode. It is not hedged before
// it is late: an idle lane tells nothing where the next piece is still being encoded.
inline constexpr Nanos kEncodedMargin = 20_ms;
// So many of the frames that a lane holds are looked at for a hedge at a time, from the youngest.
inline constexpr std::uint32_t kHedgeLooks = 32;

inline constexpr Nanos kDialTimeout = 500_ms;
inline constexpr Nanos kAnswerPatienceMax = 8_s;
// Likewise beside a lane whose connection backs off, for where a round trip takes no longer: a job goes on within a
// second after an outage, which leaves time for a few of them.
inline constexpr Nanos kBesideTimeout = 250_ms;
inline constexpr Nanos kDialRetry = 100_ms;
// An accepted lane that said nothing for so many heartbeat intervals makes room for one that was dialled in its place.
inline constexpr int kReplaceAfterBeats = 3;
// How often a lane is asked what its connection lost.
inline constexpr Nanos kLossInterval = 1_s;
inline constexpr Nanos kProbationFirst = 100_ms;
inline constexpr Nanos kProbationMax = 60_s;
inline constexpr Nanos kCleanAfter = 10_s;

}  // namespace canarynet::limits
