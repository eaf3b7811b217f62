// A request that waits for an answer from the bucket: off the worker's hands, and ended when its process is.
#pragma once

#include <memory>
#include <optional>

#include "fs/flights.h"
#include "fs/request.h"
#include "store/store.h"

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

// The same for an answer that a ticket cancels. `ask` gets the function that takes the answer, a T, and returns the
// ticket; `then` gets the request and the answer: once, on whichever thread it comes. `page_fault`: only the end of the
// process interrupts it.
template <typename T, typename Ask, typename Then>
void wait_for(Request request, Interrupts& interrupts, bool page_fault, Ask ask, Then then) {
  struct Waiting {
    explicit Waiting(Request r) : request(std::move(r)) {}
    Request request;
    Mutex mutex;
    bool done GUARDED_BY(mutex) = false;
    std::optional<Ticket> ticket GUARDED_BY(mutex);
  };
  auto tid = request.caller().tid;
  auto waiting = std::make_shared<Waiting>(std::move(request));
  auto token = interrupts.add(tid, page_fault, [waiting] {
    std::optional<Ticket> ticket;
    {
      MutexLock lock(waiting->mutex);
      ticket = waiting->ticket;
      if (!ticket) return waiting->done;
    }
    ticket->cancel();
    return true;
  });
  waiting->request.interrupts_as(token);
  auto ticket = ask([waiting, token, &interrupts, then = std::move(then)](const T& answer) {
    interrupts.remove(token);
    std::optional<Ticket> dropped;  // it may hold this very function
    {
      MutexLock lock(waiting->mutex);
      waiting->done = true;
      dropped.swap(waiting->ticket);
    }
    then(waiting->request, answer);
  });
  MutexLock lock(waiting->mutex);
  if (!waiting->done) waiting->ticket = std::move(ticket);
}

}  // namespace weightfs
