// Who listens to what. State: the handlers. A handler that throws never stops the others nor the caller.

export type Handler<T> = (value: T) => unknown;

type Handlers<Events> = {
  [E in keyof Events]?: readonly Handler<Events[E]>[];
};

export class Emitter<Events> {
  readonly #handlers: Handlers<Events> = {};
  readonly #onThrow: (error: unknown, event?: keyof Events) => void;

  /** `onThrow` is told what a handler threw, or what the promise it returned was rejected with. */
  constructor(onThrow: (error: unknown, event?: keyof Events) => void) {
    this.#onThrow = onThrow;
  }

  /** Adds a handler; the returned function takes it away again. Added twice it is called twice. */
  on<E extends keyof Events>(
    event: E,
    handler: Handler<Events[E]>,
  ): () => void {
    const own: Handler<Events[E]> = (value) => handler(value);
    this.#handlers[event] = [...this.handlers(event), own];
    return () => {
      this.#handlers[event] = this.handlers(event).filter((one) => one !== own);
    };
  }

  handlers<E extends keyof Events>(event: E): readonly Handler<Events[E]>[] {
    return this.#handlers[event] ?? [];
  }

  /** Calls the handlers there are now, in the order in which they came. */
  emit<E extends keyof Events>(event: E, value: Events[E]): void {
    for (const handler of this.handlers(event))
      this.call(handler, value, event);
  }

  /** Calls one handler as if it had been added. */
  call<T>(handler: Handler<T>, value: T, event?: keyof Events): void {
    const failed = (error: unknown) => this.#onThrow(error, event);
    try {
      const result = handler(value) as
        | Partial<PromiseLike<unknown>>
        | undefined; // whatever it is, `then` tells
      result?.then?.(undefined, failed);
    } catch (error) {
      failed(error);
    }
  }
}
