#include "engine/newcomer_flow.h"

#include <cstring>

#include "engine/engine.h"
#include "engine/flow/mux.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

constexpr std::size_t kStraysMax = 1024;

bool is_of_messages(const wire::Header& h) { return (h.flow & wire::kMessageFlow) != 0; }
bool is_of_decisions(const wire::Header& h) { return (h.flow & wire::kConnectionFlow) == wire::kDecisionFlow; }
bool is_of_a_connection(const wire::Header& h) { return (h.flow & wire::kConnectionFlow) == wire::kConnectionFlow; }

}  // namespace

Landing NewcomerFlow::landing_for(Mux& from, const wire::Header& h) {
  const bool over = engine_.over(h) || is_of_a_connection(h);
  if (is_of_messages(h))
    return engine_.messages_.landing_for(*engine_.peers_[from.peer()].messages, {nullptr, over}, h);
  if (wire::has_signature(h)) return {Landing::Kind::kSlot, nullptr, landing::kLanded};
  if (over || is_of_decisions(h)) return {Landing::Kind::kDiscard, nullptr, landing::kForgotten};
  return engine_.park(from.peer(), h);
}

bool NewcomerFlow::on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) {
  // It was unknown when the frame began to land. Groups know what was decided then; others' frames come again.
  if (Flow* const known = engine_.flows_.find(h.flow)) {
    if (is_of_decisions(h) || engine_.find_group(h.flow & ~wire::kMessageFlow) != nullptr)
      return known->on_arrival(from, h, arrival);
    engine_.unpark(from.peer(), h);
    return false;
  }
  Engine::EnginePeer& peer = engine_.peers_[from.peer()];
  const bool over = engine_.over(h) || is_of_a_connection(h);
  if (is_of_messages(h)) return engine_.messages_.on_arrival(*peer.messages, {nullptr, over}, h, arrival, engine_.now_);
  if (is_of_decisions(h)) return over;  // else it comes again, and finds its group
  if (wire::has_signature(h)) return on_signature(from, h, arrival, over);
  if (arrival.discarded) return arrival.cookie != landing::kNoPlace;
  EagerStore::Entry* const parked = arrival.cookie == landing::kParked ? peer.eager->find(h) : nullptr;
  if (parked == nullptr) return true;
  parked->complete = true;
  if (over) peer.eager->release(parked);
  return true;
}

bool NewcomerFlow::on_signature(Mux& from, const wire::Header& h, const Arrival& arrival, bool over) {
  const bool with_piece = h.kind == wire::Kind::kPiece;
  wire::SignedPiece piece;
  const bool read =
      with_piece ? from.is_read(h, arrival.payload, &piece) : from.is_read(h, arrival.payload, &piece.signature);
  if (!read) return true;
  engine_.settle_debt(engine_.peers_[from.peer()], h);  // of a rank that is done with the group
  if (over) return true;
  // Its creation is on the way to us.
  if (engine_.strays_.size() >= kStraysMax) return false;
  if (with_piece && !engine_.park_whole(from.peer(), piece.piece, piece.elements)) return false;
  engine_.strays_.push_back(
      {h.flow, h.epoch, h.source, h.destination, from.peer(), h.op, piece.signature, engine_.now_});
  if (wire::is_partial(h.flow)) {
    const Engine::StraySignature stray = engine_.strays_.back();
    if (!engine_.contradicts_any(stray)) engine_.refuse_session_stray(stray);
  }
  return true;
}

void NewcomerFlow::on_landing_lost(Mux& from, const wire::Header& h, std::uint64_t cookie) {
  Flow* const known = engine_.flows_.find(h.flow);
  if (known != nullptr && engine_.find_group(h.flow & ~wire::kMessageFlow) != nullptr)
    return known->on_landing_lost(from, h, cookie);
  if (is_of_messages(h)) {
    engine_.messages_.on_landing_lost(*engine_.peers_[from.peer()].messages, {nullptr, true}, h, cookie);
  } else if (cookie == landing::kParked) {
    engine_.unpark(from.peer(), h);
  }
}

}  // namespace canarynet
