// A request that waits for an answer from the bucket: off the worker's hands, and ended when its process is.
#pragma once

#include <memory>

#include "fs/flights.h"
#include "fs/request.h"

namespace weightfs {

// Asks, and calls `then` with the request and the answer: once, on a thread of the pool, the interrupts', or this one.
template <typename Key, typename T, typename Then>
void ask_for(Request request, Interrupts& interrupts, Flights<Key, T>& flights, const Key& key, Duration deadline,
             typename Flights<Key, T>::Ask ask, Then then) {
  auto waiter = flights.new_waiter();
  auto token =
      interrupts.add(request.caller().tid, false, [&flights, key, waiter] { return flights.leave(key, waiter); });
  request.interrupts_as(token);
  auto parked = std::make_shared<Request>(std::move(request));
  flights.join(key, waiter, deadline, std::move(ask),
               [parked, token, &interrupts, then = std::move(then)](const Result<T>& result) {
                 interrupts.remove(token);
                 then(std::move(*parked), result);
               });
}

}  // namespace weightfs
