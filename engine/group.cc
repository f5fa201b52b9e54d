#include "engine/group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "compress/codec_ask.h"
#include "engine/session.h"
#include "kernels/crc32c.h"

namespace canarynet {

Operation* Run::operation() const {
  Operation* const op = member->find(number);
  CANARY_CHECK(op != nullptr, "a run without its operation");
  return op;
}

namespace {

// Places in the counts of a signature, behind those of codecs: a session says what all its workers must agree on.
constexpr std::size_t kSessionPlace = 2, kColayerPlace = 3, kColayersPlace = 4, kElementsPlace = 5, kCodecPlace = 6;
// Of an all-reduce's matrix, which no session's is.
constexpr std::size_t kRowsPlace = 3;
// In the place of a codec: colayers have several.
constexpr std::uint64_t kCodecsDiffer = ~std::uint64_t{0};
// Beside the layout's hash.
constexpr std::uint64_t kGoesOn = std::uint64_t{1} << 33;

void sign_session(const Session& session, int colayer, wire::SignaturePayload* s) {
  std::uint64_t elements = 0;
  std::uint32_t crc = 0;
  std::uint64_t codec = session.colayers.front().codec;
  for (const auto& c : session.colayers) {
    const std::uint64_t layout[] = {c.count, c.codec};
    elements += c.count;
    crc = crc32c(crc, layout, sizeof layout);
    if (c.codec != session.colayers.front().codec) codec = kCodecsDiffer;
  }
  s->counts_moment = crc | std::uint64_t{1} << 32;  // never 0
  if (session.goes_on) s->counts_moment |= kGoesOn;
  s->counts[kSessionPlace] = session.number;
  s->counts[kColayerPlace] = static_cast<std::uint64_t>(colayer + 1);
  s->counts[kColayersPlace] = session.colayers.size();
  s->counts[kElementsPlace] = elements;
  s->counts[kCodecPlace] = codec;
}

bool is_of_session(const wire::SignaturePayload& s) {
  const bool is = s.collective == static_cast<std::uint32_t>(Collective::kAllReduce) ||
                  s.collective == static_cast<std::uint32_t>(Collective::kBroadcast);
  return is && s.counts_crc == 0 && s.counts_moment != 0;
}

// "session #1 of 3 colayers with 1000 elements (layout 1a2b3c4d), colayer 2:"
std::string describe_session(const wire::SignaturePayload& s) {
  char layout[16];
  std::snprintf(layout, sizeof layout, "%08x", static_cast<unsigned>(s.counts_moment));
  std::string out = "session #" + std::to_string(s.counts[kSessionPlace]) + " of " +
                    std::to_string(s.counts[kColayersPlace]) + " colayers with " +
                    std::to_string(s.counts[kElementsPlace]) + " elements";
  const std::uint64_t codec = s.counts[kCodecPlace];
  if (codec == kCodecsDiffer) out += ", several codecs";
  if (codec != 0 && codec != kCodecsDiffer) out += ", codec " + text_asked(static_cast<std::uint32_t>(codec));
  out += std::string(" (layout ") + layout + ")";
  if ((s.counts_moment & kGoesOn) != 0) out += " that goes on after deaths";
  if (s.counts[kColayerPlace] != 0) out += ", colayer " + std::to_string(s.counts[kColayerPlace] - 1);
  return out + ":";
}

}  // namespace

std::optional<std::uint64_t> session_in(const wire::SignaturePayload& signature) {
  if (!is_of_session(signature)) return {};
  return signature.counts[kSessionPlace];
}

wire::SignaturePayload make_signature(const GroupMember& m, const OpRequest& request, const Program& program) {
  wire::SignaturePayload s;
  s.count = request.count;
  s.collective = static_cast<std::uint32_t>(request.collective);
  s.type = request.type;
  s.redop = request.redop;
  s.root = has_root(request.collective) ? request.root : -1;
  s.planner = static_cast<std::uint32_t>(program.planner);
  s.piece_bytes = program.piece_bytes;
  s.members = static_cast<std::uint32_t>(m.group->members.size());
  s.table = m.group->decisions ? m.group->decisions->table_for(m.entered).identity() : 0;
  s.world_rank = static_cast<std::uint32_t>(m.world_rank);
  if (request.collective == Collective::kAllGatherV) {
    s.counts_crc = crc32c(0, request.counts.data(), request.counts.size_bytes());
    for (std::size_t i = 0; i < request.counts.size(); ++i) {
      s.counts_moment += (i + 1) * request.counts[i];
      if (i < wire::kSignatureCounts) s.counts[i] = request.counts[i];
    }
  }
  if (m.group->partial) {
    const PartialCall& call = *m.group->partial->calls[m.group->place_of(m)];
    sign_partial(*m.group->partial, m.group->members, call.step == PartialCall::Step::kWeights, &s);
  }
  if (m.session != nullptr) sign_session(*m.session, m.colayer, &s);
  if (request.codec != 0 && s.members > 1) {
    s.counts[0] = request.codec;
    s.counts[1] = request.tensor;
    if (request.rows != 0) s.counts[kRowsPlace] = request.rows;
  }
  return s;
}

wire::SignaturePayload addressed(const wire::SignaturePayload& signature, const OpRequest& request, std::size_t to) {
  wire::SignaturePayload s = signature;
  if (request.collective == Collective::kAllToAllV) {
    s.counts[0] = request.counts[to];
    s.counts[1] = request.counts[2 * std::size_t{s.members} + to];
  }
  return s;
}

port::MemberShape GroupMember::shape() const { return {rank, static_cast<int>(group->members.size())}; }

bool GroupMember::exchanges(const port::Command& c) const {
  const std::uint64_t tensor = port::tensor_of(c), all = port::part_of(c), begin = port::part_begin_of(c);
  return tensor != 0 && std::any_of(operations.begin(), operations.end(), [&](const Operation& op) {
           const OpRequest& r = op.request;
           if (r.tensor != tensor) return false;
           if (all == 0 || r.part_of == 0 || r.momentum != port::momentum_of(c)) return true;
           return begin < r.part_begin + r.count && r.part_begin < begin + c.count;
         });
}

bool GroupMember::pending() const {
  if (!operations.empty() || chains() || waiting.claimed() != waiting.taken()) return true;
  if (called_messages.claimed() != called_messages.taken()) return true;
  for (const auto& end : messages) {
    if (end && !end->idle()) return true;
  }
  return false;
}

std::uint32_t signature_hash(wire::SignaturePayload signature) {
  signature.world_rank = 0;
  // The counts between two ranks differ from pair to pair.
  if (signature.collective == static_cast<std::uint32_t>(Collective::kAllToAllV))
    std::fill(std::begin(signature.counts), std::end(signature.counts), 0);
  return crc32c(0, &signature, sizeof signature);
}

bool same_arguments(const wire::SignaturePayload& a, const wire::SignaturePayload& b) {
  wire::SignaturePayload as_b = a;
  as_b.world_rank = b.world_rank;
  // In all-to-all-v each rank must send what the other expects, which takes more than a glance.
  return a.collective != static_cast<std::uint32_t>(Collective::kAllToAllV) && std::memcmp(&as_b, &b, sizeof as_b) == 0;
}

namespace {

// A peer may send a number that names nothing.
template <typename Enum>
std::string named(const char* kind, std::uint32_t number, int count) {
  if (number < static_cast<std::uint32_t>(count)) return std::string(name_of(static_cast<Enum>(number)));
  return std::string(kind) + " " + std::to_string(number);
}

}  // namespace

std::string describe(const wire::SignaturePayload& s) {
  std::string out = named<Collective>("collective", s.collective, kCollectiveCount);
  if (s.collective >= kCollectiveCount) return out;
  const auto op = static_cast<Collective>(s.collective);
  if (op == Collective::kBarrier) return out;
  if (is_partial(s)) out = describe_partial(s);
  if (is_of_session(s)) out = describe_session(s);
  out += " " + named<DataType>("type", s.type, kDataTypeCount);
  if (op != Collective::kAllToAllV) out += " n=" + std::to_string(s.count);
  if (op == Collective::kAllGatherV) {
    const std::size_t shown = std::min<std::size_t>(s.members, wire::kSignatureCounts);
    for (std::size_t i = 0; i < shown; ++i) out += (i == 0 ? " counts=[" : ",") + std::to_string(s.counts[i]);
    out += shown < s.members ? ",...]" : "]";
  }
  if (reduces(op)) out += " " + named<ReduceOp>("operation", s.redop, kReduceOpCount);
  if (s.root >= 0) out += " root=" + std::to_string(s.root);
  if (op == Collective::kAllReduce && s.counts[0] != 0) {
    out += " codec=" + text_asked(static_cast<std::uint32_t>(s.counts[0]));
    if (s.counts[1] != 0) out += " tensor=" + std::to_string(s.counts[1]);
    if (!is_of_session(s) && !is_partial(s) && s.counts[kRowsPlace] != 0)
      out += " rows=" + std::to_string(s.counts[kRowsPlace]);
  }
  return out + " " + named<PlannerId>("planner", s.planner, kPlannerCount) + " piece=" + std::to_string(s.piece_bytes);
}

std::string disagreement(const wire::SignaturePayload& a, const wire::SignaturePayload& b) {
  const auto rank = [](const wire::SignaturePayload& s) { return "rank " + std::to_string(s.world_rank); };
  const auto called = [&](const wire::SignaturePayload& s) { return rank(s) + " called " + describe(s); };
  const bool v = a.collective == b.collective && a.collective < kCollectiveCount &&
                 has_counts(static_cast<Collective>(a.collective));
  if (signature_hash(a) != signature_hash(b)) {
    // Ranks that decide apart differ in their planners as well, which follows from it.
    if (a.table != b.table) {
      return rank(a) + " decides by " + table_name(a.table) + ", " + rank(b) + " by " + table_name(b.table) + ": " +
             called(a) + "; " + called(b);
    }
    std::string text = called(a) + "; " + called(b);
    // Two lists that differ in one place: by `apart` there, and by that times the place in the moments.
    const std::uint64_t apart = b.count - a.count, moment = b.counts_moment - a.counts_moment;
    if (v && a.members == b.members) {
      for (std::size_t i = wire::kSignatureCounts; apart != 0 && i < a.members; ++i) {
        if (apart * (i + 1) == moment && std::equal(std::begin(a.counts), std::end(a.counts), std::begin(b.counts)))
          text += "; only counts[" + std::to_string(i) + "] differs, by " +
                  std::to_string(static_cast<std::int64_t>(apart)) + " at " + rank(b);
      }
    }
    return text;
  }
  if (!v || a.collective != static_cast<std::uint32_t>(Collective::kAllToAllV)) return "";
  const auto sends = [&](const wire::SignaturePayload& from, const wire::SignaturePayload& to) {
    if (from.counts[0] == to.counts[1]) return std::string();
    return called(from) + " with " + std::to_string(from.counts[0]) + " elements for " + rank(to) + "; " + called(to) +
           " with " + std::to_string(to.counts[1]) + " elements from " + rank(from);
  };
  const std::string there = sends(a, b);
  return there.empty() ? sends(b, a) : there;
}

}  // namespace canarynet
