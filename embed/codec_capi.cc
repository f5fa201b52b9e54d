// The C ABI of codecs: their numbers, and the error feedback of a group's tensors.
#include <cstddef>
#include <span>
#include <string>

#include "canarynet/canarynet.h"
#include "compress/codec_ask.h"
#include "compress/warm_up.h"
#include "embed/context_handles.h"
#include "embed/last_error.h"

using namespace canarynet;

namespace {

// Hands a command over, waits for its result and tells it. `make` makes it for a member and a ticket.
template <typename Make>
canary_status ask(const char* name, canary_group* handle, const Make& make) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(name, handle);
    return report(
        run_command(group.context(), group->member, [&](auto ticket) { return make(group->member, ticket); }));
  });
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_codec(const char* text, uint32_t* codec) {
  return guarded([&]() -> canary_status {
    if (text == nullptr || codec == nullptr) return invalid("canary_codec: an argument is NULL");
    const auto number = number_asked(text);
    if (!number.ok()) return report(number.status().wrap("canary_codec"));
    *codec = number.value();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_codec_warm_up(uint32_t codec, double first, uint64_t step, uint64_t steps,
                                              uint32_t* now) {
  return guarded([&]() -> canary_status {
    if (now == nullptr) return invalid("canary_codec_warm_up: now is NULL");
    const auto number = warmed_up(codec, first, step, steps);
    if (!number.ok()) return report(number.status().wrap("canary_codec_warm_up"));
    *now = number.value();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_feedback_save(canary_group* group, void* bytes, size_t* size) {
  if (size == nullptr) return invalid("canary_feedback_save: size is NULL");
  std::uint64_t needed = 0;
  const auto room = std::span(static_cast<std::byte*>(bytes), bytes != nullptr ? *size : 0);
  const canary_status code = ask("canary_feedback_save", group, [&](auto member, auto ticket) {
    return port::save_feedback(member, room, &needed, ticket);
  });
  if (code == CANARY_OK || code == CANARY_LIMIT) *size = needed;
  return code;
}

CANARY_API canary_status canary_feedback_restore(canary_group* group, const void* bytes, size_t size) {
  if (bytes == nullptr) return invalid("canary_feedback_restore: bytes are NULL");
  return ask("canary_feedback_restore", group, [&](auto member, auto ticket) {
    return port::restore_feedback(member, {static_cast<const std::byte*>(bytes), size}, ticket);
  });
}

CANARY_API canary_status canary_feedback_gain(canary_group* group, uint64_t tensor, double* gain,
                                              double* residual_norm) {
  port::FeedbackGain told;
  const canary_status code = ask("canary_feedback_gain", group, [&](auto member, auto ticket) {
    return port::feedback_gain(member, tensor, &told, ticket);
  });
  if (code == CANARY_OK && gain != nullptr) *gain = told.gain;
  if (code == CANARY_OK && residual_norm != nullptr) *residual_norm = told.residual_norm;
  return code;
}

CANARY_API canary_status canary_top_k_roots(canary_group* group, uint64_t* counts, size_t ranks) {
  if (counts == nullptr) return invalid("canary_top_k_roots: counts is NULL");
  return ask("canary_top_k_roots", group, [&](auto member, auto ticket) {
    return port::top_k_roots(member, {counts, ranks}, ticket);
  });
}

}  // extern "C"
