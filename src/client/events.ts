// The app's event handlers. State: those. A handler that throws stops neither the others nor the
// caller: the `error` event reports it. Without a handler of `error`, or from within one, it
// becomes an uncaught exception.

import type { ClientEvents } from "./api.ts";
import { asJindouError } from "./errors.ts";
import { badOption, checkName } from "./options.ts";

export type Handler<T> = (value: T) => unknown;

type EventName = keyof ClientEvents;

export class Events {
  readonly #handlers: { [E in EventName]: Handler<ClientEvents[E]>[] } = {
    message: [],
    event: [],
    stream: [],
    command: [],
    conversation: [],
    presence: [],
    status: [],
    kicked: [],
    error: [],
  };

  /**
   * Adds a handler; the returned function removes it. Added twice it is called twice. Throws
   * `bad_option`.
   */
  on<E extends EventName>(event: E, handler: Handler<ClientEvents[E]>): () => void {
    checkName("on", event, Object.keys(this.#handlers).join(" "));
    if (typeof handler !== "function")
      throw badOption(`on: the handler of ${event} must be a function`);
    const handlers: Handler<ClientEvents[E]>[] = this.#handlers[event];
    const own: Handler<ClientEvents[E]> = (value) => handler(value);
    handlers.push(own);
    return () => {
      if (handlers.includes(own)) handlers.splice(handlers.indexOf(own), 1);
    };
  }

  /** The handlers of this moment. */
  handlers<E extends EventName>(event: E): readonly Handler<ClientEvents[E]>[] {
    return [...this.#handlers[event]];
  }

  /** Calls the handlers of this moment, in the order of `on`. */
  emit<E extends EventName>(event: E, value: ClientEvents[E]): void {
    for (const handler of this.handlers(event)) this.call(handler, value, event);
  }

  /** Calls one handler as if it had been added. */
  call<T>(handler: Handler<T>, value: T, event?: EventName): void {
    const failed = (error: unknown) => this.#failed(error, event);
    try {
      const result = handler(value) as Partial<PromiseLike<unknown>> | undefined; // anything; a promise is recognised by its `then`
      result?.then?.(undefined, failed);
    } catch (error) {
      failed(error);
    }
  }

  #failed(thrown: unknown, event: EventName | undefined): void {
    if (event === "error" || this.#handlers.error.length === 0)
      queueMicrotask(() => {
        throw thrown;
      });
    else this.emit("error", asJindouError(thrown, "handler_failed"));
  }
}
