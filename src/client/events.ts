// Owns the app's event handlers. A handler that throws affects neither the other handlers nor the
// caller. Its error is reported as an `error` event. If there is no `error` handler, or if an
// `error` handler throws, the error becomes an uncaught exception.

import type { ClientEvents } from "./api.ts";
import { asJindouError } from "./errors.ts";
import { badOption, checkName } from "./options.ts";

export type Handler<T> = (value: T) => unknown;

type EventName = keyof ClientEvents;

const FINAL_EVENTS: readonly (EventName | undefined)[] = ["status", "kicked", "error"];

export class Events {
  readonly #handlers: { [E in EventName]: Handler<ClientEvents[E]>[] } = {
    message: [],
    sent: [],
    event: [],
    typing: [],
    stream: [],
    command: [],
    conversation: [],
    unread: [],
    presence: [],
    status: [],
    kicked: [],
    error: [],
  };
  #isClosed = false;

  /**
   * Adds a handler. A handler that is added twice is called twice. Throws `bad_option` if the event
   * is unknown or the handler is not a function.
   */
  on<E extends EventName>(event: E, handler: Handler<ClientEvents[E]>): () => void {
    checkName("on", event, Object.keys(this.#handlers).join(" "));
    if (typeof handler !== "function")
      throw badOption(`on: the handler of ${event} must be a function`);
    const handlers: Handler<ClientEvents[E]>[] = this.#handlers[event];
    const registered: Handler<ClientEvents[E]> = (value) => handler(value);
    handlers.push(registered);
    return () => {
      if (handlers.includes(registered)) handlers.splice(handlers.indexOf(registered), 1);
    };
  }

  /** Returns a copy of the event's handler list. Later changes do not affect the copy. */
  handlers<E extends EventName>(event: E): readonly Handler<ClientEvents[E]>[] {
    return [...this.#handlers[event]];
  }

  emit<E extends EventName>(event: E, value: ClientEvents[E]): void {
    for (const handler of this.handlers(event)) this.call(handler, value, event);
  }

  /** Stops the delivery of all events except `status`, `kicked` and `error`. */
  close(): void {
    this.#isClosed = true;
  }

  call<T>(handler: Handler<T>, value: T, event?: EventName): void {
    if (this.#isClosed && !FINAL_EVENTS.includes(event)) return;
    const report = (error: unknown) => this.report(error, event);
    try {
      // a handler may return anything; a promise is recognised by its `then`
      const result = handler(value) as Partial<PromiseLike<unknown>> | undefined;
      result?.then?.(undefined, report);
    } catch (error) {
      report(error);
    }
  }

  report(thrown: unknown, event: EventName | undefined): void {
    if (event === "error" || this.#handlers.error.length === 0)
      queueMicrotask(() => {
        throw thrown;
      });
    else this.emit("error", asJindouError(thrown, "handler_failed"));
  }
}
