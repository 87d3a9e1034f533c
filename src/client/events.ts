// What the app listens to, and what becomes of an error that a handler throws: the `error` event, or, where nobody listens to that, an
// uncaught exception as if nobody had called the handler. No state but the handlers.

import type { ClientEvents } from "./api.ts";
import { Emitter } from "./emitter.ts";
import { asJindouError } from "./errors.ts";

export type Events = Emitter<ClientEvents>;

export function createEvents(): Events {
  const events: Events = new Emitter((thrown, event) => {
    if (event === "error" || events.handlers("error").length === 0)
      return queueMicrotask(() => {
        throw thrown;
      });
    events.emit("error", asJindouError(thrown, "handler_failed"));
  });
  return events;
}
