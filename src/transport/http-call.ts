// One HTTP call and its one answer: what the handler reads, and whether the response may still be touched. State: the response until it is
// answered or aborted, and the body. Must never touch the response after either, nor the native request after construction.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
} from "uWebSockets.js";
import { addressText } from "./address.ts";
import { BARE_500, type WriteReply, writeReply } from "./http-reply.ts";
import { StreamBody } from "./http-stream.ts";
import type { TurnEnd } from "./turn-end.ts";
import type {
  HttpReply,
  HttpRequest,
  HttpStream,
  ListenerSpec,
} from "./types.ts";

const NO_BODY = new Uint8Array(0);

/** What of a call is known before its request is read. */
export interface CallTarget {
  readonly method: string;
  readonly path: string;
  readonly params: readonly string[];
  /** Names of the headers to keep, lower case. */
  readonly headerNames: readonly string[];
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
}

type Outcome = HttpReply | HttpStream;

export class HttpCall implements HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly params: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  /** Set before the handler runs. */
  body: Uint8Array = NO_BODY;
  readonly #onError: ListenerSpec["onError"];
  readonly #turnEnd: TurnEnd;
  #res: HttpResponse | undefined;
  /** Once the answer is a stream. */
  #stream: StreamBody | undefined;
  #remoteAddress: string | undefined;

  constructor(res: HttpResponse, req: NativeRequest, target: CallTarget) {
    this.method = target.method;
    this.path = target.path;
    this.params = target.params;
    this.query = req.getQuery() ?? ""; // undefined where the URL has no "?", whatever the library's type says
    const headers: Record<string, string> = {};
    for (const name of target.headerNames) headers[name] = req.getHeader(name);
    this.headers = headers;
    this.#onError = target.onError;
    this.#turnEnd = target.turnEnd;
    this.#res = res;
  }

  get remoteAddress(): string {
    if (this.#remoteAddress !== undefined) return this.#remoteAddress;
    if (this.#res === undefined) return "";
    this.#remoteAddress = addressText(this.#res.getRemoteAddress());
    return this.#remoteAddress;
  }

  /** The peer went away. */
  abort(): void {
    this.#res = undefined;
    this.#stream?.aborted();
  }

  /**
   * Runs the handler and answers: at once when it has the reply at once, else when its promise settles. What it throws becomes a bare 500.
   * Call it from a native callback only, where the socket is corked.
   */
  run(
    handle: (request: HttpRequest) => Outcome | Promise<Outcome>,
    write = writeReply,
  ): void {
    try {
      const outcome = handle(this);
      if (outcome instanceof Promise) void this.#later(outcome);
      else this.#answer(outcome, write);
    } catch (error) {
      this.#fail(error, write);
    }
  }

  async #later(outcome: Promise<Outcome>): Promise<void> {
    try {
      const reply = await outcome;
      if (this.#res === undefined) dismiss(reply);
      else this.#res.cork(() => this.#answer(reply, writeReply));
    } catch (error) {
      this.#fail(error, writeReply);
    }
  }

  #answer(reply: Outcome, write: WriteReply): void {
    const res = this.#res;
    if (res === undefined) return dismiss(reply);
    this.#res = undefined;
    try {
      if ("opened" in reply) this.#open(reply, res);
      else write(res, reply);
    } catch (error) {
      this.#onError(error, `${this.method} ${this.path}`);
      res.close(); // half written: nothing sound can follow
    }
  }

  #open(stream: HttpStream, res: HttpResponse): void {
    this.#stream = new StreamBody(stream, res, {
      turnEnd: this.#turnEnd,
      onError: this.#onError,
      where: `${this.method} ${this.path}`,
    });
    this.#stream.open();
  }

  #fail(error: unknown, write: WriteReply): void {
    this.#onError(error, `${this.method} ${this.path}`);
    this.#res?.cork(() => this.#answer(BARE_500, write));
  }
}

/** An answer that nobody is there for. */
function dismiss(reply: Outcome): void {
  if ("opened" in reply) reply.closed();
}
